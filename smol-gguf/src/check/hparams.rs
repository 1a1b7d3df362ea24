//! Counts and dimensions in the metadata.

use crate::Value;
use crate::error::ErrorKind;

use super::architecture;
use super::model::key_type;
use super::{Model, Report};

const MAX_LAYERS: u32 = 512;
const MAX_EXPERTS: u32 = 1024;
/// Above any model there is, and small enough that products of two stay far from overflow.
const MAX_WIDTH: u32 = 1 << 20;
const MAX_HEADS: u32 = 1 << 16;
const MAX_FEED_FORWARD: u32 = 1 << 26;

pub(super) fn check(model: &Model<'_>, report: &mut Report) {
    required(model, report);
    strings(model, report);
    model.u32_in("context_length", 1..=i32::MAX as u32, report);
    let n_embd = model.u32_in("embedding_length", 1..=MAX_WIDTH, report);
    model.u32("rope.scaling.original_context_length", report);
    // Without a valid number of layers nothing can be said about values for each layer.
    let Some(n_layer) = model.u32_in("block_count", 1..=MAX_LAYERS, report) else { return };
    model.u32_in("nextn_predict_layers", 0..=n_layer, report);
    layers_of_decoders(model, n_layer, report);
    experts(model, n_layer, report);
    if let Some(lengths) = model.per_layer("feed_forward_length", n_layer, report)
        && let Some(&found) = lengths.iter().find(|&&n| n > MAX_FEED_FORWARD)
    {
        let allowed = format!("0 to {MAX_FEED_FORWARD}");
        model.out_of_range("feed_forward_length", found, allowed, report);
    }
    if let Some(heads) = heads(model, n_layer, report) {
        head_sizes(model, heads, n_embd, report);
    }
}

fn required(model: &Model<'_>, report: &mut Report) {
    if model.is_vocabulary_only() {
        return;
    }
    for suffix in ["context_length", "embedding_length", "block_count"] {
        if model.get(suffix).is_none() {
            report.error(model.first(), ErrorKind::MissingKey { key: model.key(suffix) });
        }
    }
}

/// Names out of a fixed set; others abort.
fn strings(model: &Model<'_>, report: &mut Report) {
    let sets: [(&str, &[&str]); 2] = [
        ("rope.scaling.type", &["none", "linear", "yarn", "longrope"]),
        ("classifier.activation", &["gelu", "silu", "tanh"]),
    ];
    for (suffix, allowed) in sets {
        let Some(value) = model.get(suffix) else { continue };
        match value.as_bytes() {
            Some(s) if allowed.iter().any(|a| a.as_bytes() == s) => {}
            Some(_) => model.out_of_range(suffix, value, allowed.join(", "), report),
            None => report.error(model.first(), key_type(&model.key(suffix), value, "str")),
        }
    }
}

/// Parts of a model that have their own layers.
fn layers_of_decoders(model: &Model<'_>, n_layer: u32, report: &mut Report) {
    if model.arch == "wavtokenizer-dec" {
        model.u32_in("posnet.block_count", 0..=n_layer, report);
        model.u32_in("convnext.block_count", 0..=n_layer, report);
    }
    if model.arch == "gemma4-assistant" {
        model.u32_in("attention.shared_kv_layers", 0..=n_layer, report);
    }
}

fn experts(model: &Model<'_>, n_layer: u32, report: &mut Report) {
    const USED: &str = "expert_used_count";
    const GROUPS: &str = "expert_group_count";
    const GROUPS_USED: &str = "expert_group_used_count";
    let mut n_expert = 0;
    if model.get("expert_count").is_some() {
        let Some(n) = model.u32_in("expert_count", 0..=MAX_EXPERTS, report) else { return };
        n_expert = n;
    }
    // Dense models of these families carry counts of one expert, which are ignored.
    if matches!(model.arch, "hunyuan-dense" | "hunyuan_vl") && n_expert <= 1 {
        return;
    }
    let used = match model.get(USED) {
        None => 0,
        Some(_) => match model.per_layer(USED, n_layer, report) {
            Some(used) => used.into_iter().max().unwrap_or(0),
            None => return,
        },
    };
    let groups = model.u32(GROUPS, report).unwrap_or(0);
    let groups_used = model.u32(GROUPS_USED, report).unwrap_or(0);
    let count = format!("{} = {n_expert}", model.key("expert_count"));
    if n_expert == 0 {
        if used > 0 {
            model.out_of_range(USED, used, format!("0 without experts ({count})"), report);
        }
        if groups > 0 {
            model.out_of_range(GROUPS, groups, format!("0 without experts ({count})"), report);
        }
        return;
    }
    if used == 0 || used > n_expert {
        model.out_of_range(USED, used, format!("1 to {n_expert} ({count})"), report);
    }
    if groups >= n_expert {
        let allowed = format!("0 to {} ({count})", n_expert - 1);
        model.out_of_range(GROUPS, groups, allowed, report);
    } else if groups > 1 {
        if !n_expert.is_multiple_of(groups) {
            model.out_of_range(
                GROUPS,
                groups,
                format!("a divisor of {n_expert} ({count})"),
                report,
            );
        }
        if groups_used == 0 || groups_used >= groups {
            model.out_of_range(GROUPS_USED, groups_used, format!("1 to {}", groups - 1), report);
        }
    }
}

/// Returns the number of heads of the first layer.
fn heads(model: &Model<'_>, n_layer: u32, report: &mut Report) -> Option<u32> {
    const HEADS: &str = "attention.head_count";
    const HEADS_KV: &str = "attention.head_count_kv";
    let heads = model.per_layer(HEADS, n_layer, report);
    let heads_kv = model.per_layer(HEADS_KV, n_layer, report);
    let heads = heads?;
    // Layers without attention have no heads, but a single number is meant for all of them.
    let single = matches!(model.get(HEADS), Some(Value::U32(_)));
    let least = u32::from(single && model.has_attention());
    if let Some(&found) = heads.iter().find(|&&n| n < least || n > MAX_HEADS) {
        model.out_of_range(HEADS, found, format!("{least} to {MAX_HEADS}"), report);
        return None;
    }
    for (layer, (&n, &kv)) in heads.iter().zip(heads_kv.iter().flatten()).enumerate() {
        if n > 0 && kv > 0 && !n.is_multiple_of(kv) {
            let allowed = format!("a divisor of the {n} heads of layer {layer}");
            model.out_of_range(HEADS_KV, kv, allowed, report);
            break;
        }
    }
    heads.first().copied()
}

/// The length of keys, values and their rotated part in the first layer.
fn head_sizes(model: &Model<'_>, n_head: u32, n_embd: Option<u32>, report: &mut Report) {
    const KEY: &str = "attention.key_length";
    const VALUE: &str = "attention.value_length";
    const ROTATED: &str = "rope.dimension_count";
    const ROTATED_SWA: &str = "rope.dimension_count_swa";
    // Lengths aren't read where the first layer has no heads.
    let Some(n_embd) = n_embd.filter(|_| n_head > 0) else { return };
    // Compressed keys and values have lengths of their own.
    let is_compressed = model.get("attention.key_length_mla").is_some();
    let least = u32::from(model.has_attention() && !is_compressed);
    let length = |suffix: &str, default: u32, report: &mut Report| match model.get(suffix) {
        None => Some(default),
        Some(_) => model.u32_in(suffix, least..=MAX_WIDTH, report),
    };
    let key = length(KEY, n_embd / n_head, report);
    let value = length(VALUE, n_embd / n_head, report);
    if model.get(KEY).is_none() && !n_embd.is_multiple_of(n_head) {
        let kind = ErrorKind::KeyRange {
            key: model.key("embedding_length"),
            found: n_embd.to_string(),
            allowed: format!("a multiple of the {n_head} heads"),
        };
        if model.has_attention() {
            report.error(model.first(), kind);
        } else {
            report.warning(model.first(), kind);
        }
        return;
    }
    let (Some(key), Some(value)) = (key, value) else { return };
    if architecture::has_equal_key_and_value(model.arch) && key != value {
        let allowed = format!("{key}, the length of keys, in a {} model", model.arch);
        model.out_of_range(VALUE, value, allowed, report);
    }
    let Some(rotated) = model.u32(ROTATED, report) else { return };
    if architecture::rotates_whole_head(model.arch) {
        if rotated != key {
            let allowed = format!("{key}, the length of keys, in a {} model", model.arch);
            model.out_of_range(ROTATED, rotated, allowed, report);
        }
    } else if architecture::has_rope(model.arch) {
        let most = if is_compressed { MAX_WIDTH } else { key };
        if rotated < 2 || rotated > most || !rotated.is_multiple_of(2) {
            let allowed = format!("an even number from 2 to {most}");
            model.out_of_range(ROTATED, rotated, allowed, report);
        }
        if let Some(rotated) = model.u32(ROTATED_SWA, report)
            && (rotated < 2 || !rotated.is_multiple_of(2))
        {
            model.out_of_range(ROTATED_SWA, rotated, "an even number from 2", report);
        }
    }
}

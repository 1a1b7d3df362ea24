//! Relations between numbers that single architectures assert.

use crate::{Array, Value};

use super::architecture::{self, StateSpace};
use super::{Model, Report};

const MAX_LAYERS: u32 = 512;
/// Far above any width, and small enough for products of two.
const MAX_WIDTH: u32 = 1 << 20;

pub(super) fn check(model: &Model<'_>, report: &mut Report) {
    at_least_one(model, report);
    sections(model, report);
    state_space(model, report);
    gating(model, report);
    match model.arch {
        "bailingmoe2" | "glm4moe" | "grovemoe" | "llada-moe" | "smallthinker" => {
            if matches!(model.get("expert_count"), None | Some(Value::U32(0))) {
                let found = model.get("expert_count").map_or("missing", |_| "0");
                model.out_of_range("expert_count", found, "1 to 1024", report);
            }
        }
        "gemma4" => own_keys_and_values(model, report),
        "gemma-embedding" => dense_layers(model, report),
        "nanbeige" => loops(model, report),
        "bailingmoe3" => {
            gates(model, report);
            compressed_key(model, report);
        }
        "wavtokenizer-dec" => {
            let width = model.get("convnext.embedding_length").and_then(Value::as_u64);
            equal(model, "posnet.embedding_length", width, "convnext.embedding_length", report);
        }
        "deepseek2" => {
            unrotated_part(model, report);
            compressed_key(model, report);
        }
        "hy_v4" => unrotated_part(model, report),
        _ => {}
    }
}

/// Numbers that are divided by.
fn at_least_one(model: &Model<'_>, report: &mut Report) {
    for suffix in architecture::at_least_one(model.arch) {
        model.u32_in(suffix, 1..=i32::MAX as u32, report);
    }
    if let Some(expected) = architecture::token_shift_count(model.arch) {
        model.u32_in("token_shift_count", expected..=expected, report);
    }
    let width = model.get("embedding_length").and_then(Value::as_u64);
    if let (Some(n @ 1..), Some(width)) = (get(model, "wkv.head_size"), width)
        && architecture::token_shift_count(model.arch).is_some()
        && !width.is_multiple_of(n)
    {
        model.out_of_range("wkv.head_size", n, format!("a divisor of {width}"), report);
    }
}

/// How the rotated dimensions are divided among position axes.
fn sections(model: &Model<'_>, report: &mut Report) {
    const SECTIONS: &str = "rope.dimension_sections";
    let Some(Value::Array(array @ (Array::I32(_) | Array::U32(_)))) = model.get(SECTIONS) else {
        return;
    };
    let numbers: Vec<i64> = array.iter().filter_map(|v| v.as_i64()).collect();
    if numbers.iter().any(|n| !(0..=i64::from(MAX_WIDTH)).contains(n)) {
        let allowed = format!("0 to {MAX_WIDTH} each");
        model.out_of_range(SECTIONS, format!("{numbers:?}"), allowed, report);
    } else if architecture::rotates_in_sections(model.arch)
        && numbers.iter().take(3).all(|&n| n == 0)
    {
        let allowed = "more than 0 in one of the first three";
        model.out_of_range(SECTIONS, format!("{numbers:?}"), allowed, report);
    }
}

fn state_space(model: &Model<'_>, report: &mut Report) {
    const INNER: &str = "ssm.inner_size";
    const HEADS: &str = "ssm.time_step_rank";
    const GROUPS: &str = "ssm.group_count";
    // Asserted for dense models of the family too.
    if matches!(model.arch, "granitehybrid" | "jamba") {
        let width = get(model, "embedding_length").map(|n| 2 * n);
        equal(model, INNER, width, "2 * embedding_length", report);
    }
    let Some(kind) = architecture::state_space(model.arch) else { return };
    // Dense models of a hybrid family may carry any number.
    if !model.tensors().any(|t| t.name().contains(".ssm_")) {
        return;
    }
    let Some(inner) = model.u32_in(INNER, 1..=MAX_WIDTH, report) else { return };
    let Some(heads) = model.u32_in(HEADS, 1..=MAX_WIDTH, report) else { return };
    if !inner.is_multiple_of(heads) {
        let allowed = format!("a divisor of {inner} ({})", model.key(INNER));
        model.out_of_range(HEADS, heads, allowed, report);
    }
    let divided = match kind {
        StateSpace::Heads => return,
        StateSpace::HeadsAndGroups => inner,
        StateSpace::SharedHeads => {
            let state = model.u32_in("ssm.state_size", 1..=MAX_WIDTH, report);
            let width = state.map(|n| u64::from(n) * u64::from(heads));
            equal(model, INNER, width, "ssm.state_size * ssm.time_step_rank", report);
            heads
        }
    };
    if let Some(groups) = model.u32_in(GROUPS, 1..=MAX_WIDTH, report)
        && !divided.is_multiple_of(groups)
    {
        model.out_of_range(GROUPS, groups, format!("a divisor of {divided}"), report);
    }
}

/// The function that turns router outputs into weights of experts.
fn gating(model: &Model<'_>, report: &mut Report) {
    if get(model, "expert_count").is_some_and(|n| n > 0) {
        let least = u32::from(architecture::needs_gating(model.arch));
        model.u32_in("expert_gating_func", least..=4, report);
    }
}

/// Layers that share keys and values read those of the last two that have their own.
fn own_keys_and_values(model: &Model<'_>, report: &mut Report) {
    const SHARED: &str = "attention.shared_kv_layers";
    let Some(layers) = get(model, "block_count") else { return };
    let shared = get(model, SHARED).unwrap_or(0);
    if layers < 2 {
        model.out_of_range("block_count", layers, "2 to 512 in a gemma4 model", report);
    } else if layers.checked_sub(shared).is_none_or(|own| own < 2) {
        model.out_of_range(SHARED, shared, format!("0 to {}", layers - 2), report);
    }
}

fn dense_layers(model: &Model<'_>, report: &mut Report) {
    let width = get(model, "embedding_length");
    for suffix in ["dense_2_feat_in", "dense_3_feat_out"] {
        if get(model, suffix).is_some_and(|n| n != 0) {
            equal(model, suffix, width, "embedding_length", report);
        }
    }
}

fn loops(model: &Model<'_>, report: &mut Report) {
    if let (Some(loops), Some(layers @ 1..)) = (get(model, "num_loops"), get(model, "block_count"))
        && loops.saturating_mul(layers) > u64::from(MAX_LAYERS)
    {
        let most = u64::from(MAX_LAYERS) / layers;
        model.out_of_range("num_loops", loops, format!("1 to {most}"), report);
    }
}

fn gates(model: &Model<'_>, report: &mut Report) {
    if let Some(Value::Bool(false)) = model.get("kda.safe_gate") {
        model.out_of_range("kda.safe_gate", false, "true", report);
    }
    if let Some(&Value::F32(v)) = model.get("kda.gate_lower_bound")
        && v >= 0.0
    {
        model.out_of_range("kda.gate_lower_bound", v, "less than 0", report);
    }
}

/// A part of each compressed key stays unrotated.
fn unrotated_part(model: &Model<'_>, report: &mut Report) {
    const ROTATED: &str = "rope.dimension_count";
    let key = get(model, "attention.key_length_mla").filter(|&n| n > 0);
    if let (Some(key), Some(rotated)) =
        (key.or_else(|| get(model, "attention.key_length")), get(model, ROTATED))
        && rotated >= key
    {
        model.out_of_range(ROTATED, rotated, format!("less than {key}, the key's"), report);
    }
}

/// The cache holds the compressed key beside its rotated part.
fn compressed_key(model: &Model<'_>, report: &mut Report) {
    const KEY: &str = "attention.key_length";
    let is_compressed = ["attention.key_length_mla", "attention.value_length_mla"]
        .iter()
        .all(|suffix| get(model, suffix).is_some_and(|n| n > 0));
    let (Some(rank), Some(rotated)) =
        (get(model, "attention.kv_lora_rank"), get(model, "rope.dimension_count"))
    else {
        return;
    };
    if !is_compressed {
        return;
    }
    let expected = rank.saturating_add(rotated);
    if model.get(KEY).is_none() {
        model.out_of_range(KEY, "missing", expected.to_string(), report);
    }
    let formula = "attention.kv_lora_rank + rope.dimension_count";
    equal(model, KEY, Some(expected), formula, report);
}

fn get(model: &Model<'_>, suffix: &str) -> Option<u64> {
    model.get(suffix).and_then(Value::as_u64)
}

fn equal(
    model: &Model<'_>,
    suffix: &str,
    expected: Option<u64>,
    formula: &str,
    report: &mut Report,
) {
    if let (Some(found), Some(expected)) = (get(model, suffix), expected)
        && found != expected
    {
        model.out_of_range(suffix, found, format!("{expected}, which is {formula}"), report);
    }
}

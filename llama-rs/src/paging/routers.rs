//! The routers of a model, read once more from its files, to predict what they will choose.

use smol_engine::expert::predict::Router;
use smol_engine::expert::routing::Gating;
use smol_gguf::{Metadata, Shards};

use crate::experts::{RoutedLayer, number};
use crate::ffi::pager::Corrections;

/// The routers of the layers; `None` for those that are not understood, which are not predicted.
pub(super) fn read(
    shards: &Shards,
    metadata: &Metadata,
    layers: &[RoutedLayer],
) -> Vec<Option<Router>> {
    layers.iter().map(|layer| of(shards, metadata, layer)).collect()
}

/// What the routers of the layers add to the scores.
pub(super) fn corrections(shards: &Shards, layers: &[RoutedLayer]) -> Corrections {
    let of = |layer: &RoutedLayer| floats(shards, &correction_name(layer.block));
    layers.iter().map(of).collect()
}

fn correction_name(block: u32) -> String {
    format!("blk.{block}.exp_probs_b.bias")
}

fn of(shards: &Shards, metadata: &Metadata, layer: &RoutedLayer) -> Option<Router> {
    let of_layer = |name: &str| floats(shards, &format!("blk.{}.{name}", layer.block));
    let count = |key| number(metadata, key, layer.block).and_then(|n| u32::try_from(n).ok());
    let gating = Gating::from_metadata(metadata.architecture()?, count("expert_gating_func"))?;
    let weights = of_layer("ffn_gate_inp.weight")?;
    let mut router = Router::new(weights, layer.experts, layer.used, gating).ok()?;
    if let Some(bias) = of_layer("ffn_gate_inp.bias") {
        router = router.with_logit_bias(bias).ok()?;
    }
    if let Some(bias) = floats(shards, &correction_name(layer.block)) {
        router = router.with_selection_bias(bias).ok()?;
    }
    if let Some(groups @ 2..) = count("expert_group_count") {
        router = router.with_groups(groups, count("expert_group_used_count")?).ok()?;
    }
    // Some architectures name the norm before the experts after what it follows.
    if let Some(norm) =
        of_layer("ffn_norm.weight").or_else(|| of_layer("post_attention_norm.weight"))
    {
        router = router.with_norm(norm).ok()?;
    }
    Some(router)
}

/// A tensor's values.
fn floats(shards: &Shards, name: &str) -> Option<Vec<f32>> {
    let (file, info) = shards.tensor(name)?;
    let bytes = file.data(info).ok()?;
    let n = usize::try_from(info.n_elements()).ok()?;
    ggml_sys::quants::dequantize(info.ty().id() as i32, &bytes, n).ok()
}

#[cfg(test)]
pub(super) mod tests;

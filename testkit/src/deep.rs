//! A dense model larger than a memory limit that computes what the small one does.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::draft::Draft;
use crate::pad::{Widened, plan_embeddings, plan_layer};
use crate::quant::Mix;
use crate::source::{Shape, Source};

/// The size and types of a deepened model.
#[derive(Debug, Clone, Copy)]
pub struct DeepOptions {
    /// The number of columns of the hidden state.
    pub hidden: usize,
    /// The number of query heads; key-value heads follow in the model's proportion.
    pub heads: usize,
    /// The number of feed-forward units.
    pub feed_forward: usize,
    /// The number of layers, at least the model's.
    pub layers: usize,
    /// The tensor types.
    pub mix: Mix,
    /// The seed of all weights that don't matter.
    pub seed: u64,
}

/// Writes a widened and deepened copy of a model.
///
/// The additional layers stand between the real ones, evenly. Each adds exactly zero to the hidden
/// state; at three times the width of the original, two thirds of its value and up matrices and
/// all of its other weights are noise that has to be read like any other weight.
///
/// # Errors
/// If the model isn't a dense `llama`, a size shrinks, or a file can't be read or written.
pub fn deep(input: &Path, output: &Path, options: &DeepOptions) -> Result<()> {
    let source = Source::open(input)?;
    let from = source.llama_shape()?;
    ensure!(
        options.layers >= from.layers,
        "{} layers are fewer than the model's {}",
        options.layers,
        from.layers
    );
    let to = Shape {
        hidden: options.hidden,
        heads: options.heads,
        kv_heads: options.heads * from.kv_heads / from.heads,
        feed_forward: options.feed_forward,
        layers: options.layers,
        ..from
    };
    let model = Widened::new(&source, to, Some(options.seed))?;
    let mix = Mix { tied: !source.has("output.weight"), ..options.mix };
    let name = format!("{} columns, {}+{} layers", to.hidden, from.layers, to.layers - from.layers);
    let mut draft = Draft::new(model.metadata("llama", &name));
    draft.metadata.set("general.file_type", mix.file_type());
    plan_embeddings(&mut draft, &model, &mix)?;
    let mut real = 0;
    for target in 0..to.layers {
        // Layer `target` is real when the count of real layers due by now goes up.
        if (target + 1) * from.layers / to.layers > real {
            plan_layer(&mut draft, &model, &mix, real, target, None)?;
            real += 1;
        } else {
            let seed = options.seed.wrapping_add(target as u64 + 1);
            plan_layer(&mut draft, &model, &mix, real.min(from.layers - 1), target, Some(seed))?;
        }
    }
    draft.write(output)
}

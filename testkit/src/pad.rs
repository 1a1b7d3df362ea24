//! Widening a dense `llama` model without changing what it computes.
//!
//! The hidden state gets more columns, attention more heads and the feed-forward block more units.
//! The new columns of the hidden state are always zero, and so are the outputs of new heads and
//! units. A norm divides by the root of a mean over more columns now, so its weights shrink by
//! `sqrt(old / new)` and its epsilon by `old / new`.
//!
//! Wherever a new weight only ever meets zeros, or its product does, it may be noise instead of
//! zero: then the file is as large and as incompressible as it looks.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, ensure};
use smol_gguf::{Metadata, TensorType};

use crate::draft::Draft;
use crate::quant::Mix;
use crate::rng::Rng;
use crate::source::{Shape, Source};

/// Noise begins at a multiple of this many columns, so that no quantized block mixes it with
/// weights that must stay exact.
const BLOCK: usize = 256;

/// The matrices of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matrix {
    /// `attn_q`
    Query,
    /// `attn_k`
    Key,
    /// `attn_v`
    Value,
    /// `attn_output`
    Output,
    /// `ffn_gate`
    Gate,
    /// `ffn_up`
    Up,
    /// `ffn_down`
    Down,
}

impl Matrix {
    /// The matrices of attention.
    pub const ATTENTION: [Self; 4] = [Self::Query, Self::Key, Self::Value, Self::Output];
    /// The matrices of the feed-forward block.
    pub const FEED_FORWARD: [Self; 3] = [Self::Gate, Self::Up, Self::Down];

    /// Returns the middle part of the tensor's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "attn_q",
            Self::Key => "attn_k",
            Self::Value => "attn_v",
            Self::Output => "attn_output",
            Self::Gate => "ffn_gate",
            Self::Up => "ffn_up",
            Self::Down => "ffn_down",
        }
    }

    /// Returns rows and columns in a model of this shape.
    pub fn size(self, shape: &Shape) -> (usize, usize) {
        let (queries, keys) = (shape.heads * shape.head_len, shape.kv_heads * shape.head_len);
        match self {
            Self::Query => (queries, shape.hidden),
            Self::Key | Self::Value => (keys, shape.hidden),
            Self::Output => (shape.hidden, queries),
            Self::Gate | Self::Up => (shape.feed_forward, shape.hidden),
            Self::Down => (shape.hidden, shape.feed_forward),
        }
    }

    /// Reports whether new outputs may be anything, because a zero is multiplied with them later.
    fn new_outputs_are_masked(self) -> bool {
        matches!(self, Self::Query | Self::Key | Self::Gate)
    }
}

/// A model seen with more columns, heads and units than it has.
pub struct Widened<'a> {
    source: &'a Source,
    from: Shape,
    to: Shape,
    noise: Option<u64>,
}

impl<'a> Widened<'a> {
    /// Widens to `to`; `noise` is the seed for weights that don't matter, which are 0 without.
    ///
    /// # Errors
    /// If a size shrinks, or heads would be grouped differently.
    pub fn new(source: &'a Source, to: Shape, noise: Option<u64>) -> Result<Self> {
        let from = source.llama_shape()?;
        for (what, old, new) in [
            ("columns", from.hidden, to.hidden),
            ("heads", from.heads, to.heads),
            ("key-value heads", from.kv_heads, to.kv_heads),
            ("feed-forward units", from.feed_forward, to.feed_forward),
        ] {
            ensure!(new >= old, "{new} {what} are fewer than the model's {old}");
        }
        ensure!(to.head_len == from.head_len, "the length of heads can't change");
        ensure!(
            from.heads * to.kv_heads == to.heads * from.kv_heads,
            "{} heads on {} key-value heads are grouped differently than {} on {}",
            to.heads,
            to.kv_heads,
            from.heads,
            from.kv_heads
        );
        Ok(Self { source, from, to, noise })
    }

    /// Returns the least widening with columns that are a multiple of 256.
    ///
    /// # Errors
    /// If the model isn't a dense `llama`.
    pub fn to_superblocks(source: &'a Source) -> Result<Self> {
        let from = source.llama_shape()?;
        let mut to = from;
        to.hidden = from.hidden.next_multiple_of(BLOCK);
        to.feed_forward = from.feed_forward.next_multiple_of(BLOCK);
        let group = from.heads / from.kv_heads.max(1);
        while !(to.heads * to.head_len).is_multiple_of(BLOCK) {
            to.kv_heads += 1;
            to.heads = to.kv_heads * group;
        }
        Self::new(source, to, None)
    }

    /// Returns the sizes of the original.
    pub fn original(&self) -> &Shape {
        &self.from
    }

    /// Returns the sizes of the widened model.
    pub fn shape(&self) -> &Shape {
        &self.to
    }

    /// Returns the metadata of the widened model with this architecture and name.
    pub fn metadata(&self, arch: &str, name: &str) -> Metadata {
        let mut metadata: Metadata = self
            .source
            .metadata()
            .iter()
            .map(|(key, value)| {
                let key = match key.strip_prefix("llama.") {
                    Some(rest) => format!("{arch}.{rest}"),
                    None => key.to_owned(),
                };
                (key, value.clone())
            })
            .collect();
        metadata.set("general.architecture", arch);
        metadata.set("general.name", name);
        metadata.set("general.quantization_version", 2u32);
        let to = &self.to;
        for (key, value) in [
            ("embedding_length", to.hidden),
            ("block_count", to.layers),
            ("feed_forward_length", to.feed_forward),
            ("attention.head_count", to.heads),
            ("attention.head_count_kv", to.kv_heads),
            ("attention.key_length", to.head_len),
            ("attention.value_length", to.head_len),
            ("rope.dimension_count", to.head_len),
        ] {
            metadata.set(format!("{arch}.{key}"), value as u32);
        }
        let epsilon = self.source.epsilon() * self.ratio();
        metadata.set(format!("{arch}.attention.layer_norm_rms_epsilon"), epsilon);
        metadata
    }

    fn ratio(&self) -> f32 {
        self.from.hidden as f32 / self.to.hidden as f32
    }

    /// Returns the weights of a norm.
    ///
    /// # Errors
    /// If the model has no such tensor.
    pub fn norm(&self, name: &str) -> Result<Vec<f32>> {
        let scale = self.ratio().sqrt();
        let mut weights: Vec<f32> =
            self.source.values(name)?.into_iter().map(|weight| weight * scale).collect();
        weights.resize(self.to.hidden, 0.0);
        Ok(weights)
    }

    /// Returns rows of a matrix with one row a token: the embedding or the output.
    ///
    /// # Errors
    /// If the model has no such tensor or rows.
    pub fn token_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
        let values = self.source.rows(name, rows)?;
        let mut out = Vec::with_capacity(values.len() / self.from.hidden * self.to.hidden);
        for row in values.chunks_exact(self.from.hidden) {
            out.extend_from_slice(row);
            out.resize(out.len() + self.to.hidden - self.from.hidden, 0.0);
        }
        Ok(out)
    }

    /// Returns rows of a matrix of a layer.
    ///
    /// # Errors
    /// If the model has no such tensor.
    pub fn rows(&self, layer: usize, matrix: Matrix, rows: Range<usize>) -> Result<Vec<f32>> {
        let name = format!("blk.{layer}.{}.weight", matrix.name());
        let (old_rows, old_columns) = matrix.size(&self.from);
        let mut out = self.noise_rows(&name, matrix, rows.clone(), old_rows)?;
        let columns = matrix.size(&self.to).1;
        let kept = rows.start.min(old_rows)..rows.end.min(old_rows);
        if !kept.is_empty() {
            let values = self.source.rows(&name, kept)?;
            for (row, old) in out.chunks_exact_mut(columns).zip(values.chunks_exact(old_columns)) {
                row[..old_columns].copy_from_slice(old);
            }
        }
        Ok(out)
    }

    /// Returns rows of a matrix of an idle layer, one whose output is zero for every input that
    /// this model's hidden state can have, with real weights of `layer`'s size.
    ///
    /// # Errors
    /// If the model has no such tensor, or no noise was asked for.
    pub fn idle_rows(
        &self,
        layer: usize,
        matrix: Matrix,
        rows: Range<usize>,
        seed: u64,
    ) -> Result<Vec<f32>> {
        ensure!(self.noise.is_some(), "idle layers are made of noise");
        let name = format!("blk.{layer}.{}.weight", matrix.name());
        let columns = matrix.size(&self.to).1;
        let deviation = self.deviation(&name)?;
        // Values and units are zero because they only look at columns that are zero; the two
        // output matrices then multiply zeros.
        let start = match matrix {
            Matrix::Value | Matrix::Up => self.from.hidden.next_multiple_of(BLOCK).min(columns),
            _ => 0,
        };
        let mut out = vec![0.0; rows.len() * columns];
        for (row, out) in rows.zip(out.chunks_exact_mut(columns)) {
            Rng::keyed(seed, &name, row as u64).fill(&mut out[start..], 0.0, deviation);
        }
        Ok(out)
    }

    fn noise_rows(
        &self,
        name: &str,
        matrix: Matrix,
        rows: Range<usize>,
        old_rows: usize,
    ) -> Result<Vec<f32>> {
        let columns = matrix.size(&self.to).1;
        let mut out = vec![0.0; rows.len() * columns];
        let Some(seed) = self.noise else { return Ok(out) };
        let deviation = self.deviation(name)?;
        let first_dead = matrix.size(&self.from).1.next_multiple_of(BLOCK).min(columns);
        for (row, out) in rows.zip(out.chunks_exact_mut(columns)) {
            let masked = row >= old_rows && matrix.new_outputs_are_masked();
            let start = if masked { 0 } else { first_dead };
            Rng::keyed(seed, name, row as u64).fill(&mut out[start..], 0.0, deviation);
        }
        Ok(out)
    }

    /// Returns the deviation of a matrix's weights, from its first rows.
    fn deviation(&self, name: &str) -> Result<f32> {
        let rows = (self.source.dims(name)?[1] as usize).min(16);
        let values = self.source.rows(name, 0..rows)?;
        let squares: f32 = values.iter().map(|value| value * value).sum();
        Ok((squares / values.len() as f32).sqrt())
    }
}

/// Plans the matrices with one row a token and the last norm.
///
/// # Errors
/// If the model lacks one.
pub fn plan_embeddings<'a>(draft: &mut Draft<'a>, model: &'a Widened<'a>, mix: &Mix) -> Result<()> {
    let dims = [model.to.hidden as u64, model.to.vocab as u64];
    for name in ["token_embd.weight", "output.weight"] {
        if model.source.has(name) {
            let ty = mix.tensor_type(name, &dims);
            draft.rows(name, &dims, ty, move |rows| model.token_rows(name, rows));
        }
    }
    let norm = model.norm("output_norm.weight")?;
    draft.floats("output_norm.weight", &[dims[0]], norm);
    Ok(())
}

/// Plans layer `target` of the new file from `layer` of the model.
///
/// `idle` makes it an idle layer from that seed.
///
/// # Errors
/// If the model lacks a tensor.
pub fn plan_layer<'a>(
    draft: &mut Draft<'a>,
    model: &'a Widened<'a>,
    mix: &Mix,
    layer: usize,
    target: usize,
    idle: Option<u64>,
) -> Result<()> {
    for (norm, matrices) in
        [("attn_norm", &Matrix::ATTENTION[..]), ("ffn_norm", &Matrix::FEED_FORWARD)]
    {
        let weights = model.norm(&format!("blk.{layer}.{norm}.weight"))?;
        draft.floats(&format!("blk.{target}.{norm}.weight"), &[model.to.hidden as u64], weights);
        for &matrix in matrices {
            let name = format!("blk.{target}.{}.weight", matrix.name());
            let (rows, columns) = matrix.size(&model.to);
            let dims = [columns as u64, rows as u64];
            draft.rows(&name, &dims, mix.tensor_type(&name, &dims), move |rows| match idle {
                None => model.rows(layer, matrix, rows),
                Some(seed) => model.idle_rows(layer, matrix, rows, seed),
            });
        }
    }
    Ok(())
}

/// Writes a widened copy of a model, in `F16`.
///
/// `to` of `None` widens to the next multiple of 256 columns: 576 become 768.
///
/// # Errors
/// If the model isn't a dense `llama`, a size shrinks, or a file can't be read or written.
pub fn pad(input: &Path, output: &Path, to: Option<Shape>, noise: Option<u64>) -> Result<()> {
    let source = Source::open(input)?;
    let model = match to {
        Some(to) => Widened::new(&source, to, noise)?,
        None => Widened { noise, ..Widened::to_superblocks(&source)? },
    };
    let mix = Mix { base: TensorType::F16, embedding: None, tied: !source.has("output.weight") };
    let name = format!("padded to {} columns", model.to.hidden);
    let mut draft = Draft::new(model.metadata("llama", &name));
    draft.metadata.set("general.file_type", mix.file_type());
    plan_embeddings(&mut draft, &model, &mix)?;
    for layer in 0..model.from.layers {
        plan_layer(&mut draft, &model, &mix, layer, layer, None)?;
    }
    draft.write(output)
}

//! The dense `llama` forward pass in `f32`: hidden states to fit routers to, and logits to compare.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use nalgebra::{DMatrix, DVector};

use crate::draft::in_parallel;
use crate::source::{Shape, Source};
use crate::tiny::vocab::{byte_symbol, words};

/// One row a token, one column a feature.
pub type States = DMatrix<f32>;

/// A model whose layers are computed one after another, reading weights as they are needed.
pub struct Forward<'a> {
    source: &'a Source,
    shape: Shape,
    epsilon: f32,
    rope_base: f32,
}

/// The weights of one layer, transposed so that states multiply them from the left.
struct LayerWeights {
    attn_norm: DVector<f32>,
    query: DMatrix<f32>,
    key: DMatrix<f32>,
    value: DMatrix<f32>,
    output: DMatrix<f32>,
    ffn_norm: DVector<f32>,
    gate: DMatrix<f32>,
    up: DMatrix<f32>,
    down: DMatrix<f32>,
}

impl<'a> Forward<'a> {
    /// Prepares a model.
    ///
    /// # Errors
    /// If it isn't a dense `llama`.
    pub fn new(source: &'a Source) -> Result<Self> {
        let (epsilon, rope_base) = (source.epsilon(), source.rope_base());
        Ok(Self { source, shape: source.llama_shape()?, epsilon, rope_base })
    }

    /// Runs several texts of token ids through all layers and returns their last hidden states.
    ///
    /// `observe` gets each layer's index and the normalized inputs of its feed-forward block, one
    /// matrix a text. Each text has a thread of its own.
    ///
    /// # Errors
    /// If a token is out of range, a tensor is missing, or `observe` fails.
    pub fn run(
        &self,
        texts: &[&[u32]],
        mut observe: impl FnMut(usize, Vec<States>) -> Result<()>,
    ) -> Result<Vec<States>> {
        let embed = |text: usize| self.embed(texts[text]);
        let mut states =
            in_parallel(0..texts.len(), embed).into_iter().collect::<Result<Vec<_>>>()?;
        for layer in 0..self.shape.layers {
            let weights = self.layer_weights(layer)?;
            let step = |text: usize| Ok(self.layer(&weights, &states[text]));
            let (next, inputs): (Vec<_>, Vec<_>) = in_parallel(0..states.len(), step)
                .into_iter()
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .unzip();
            states = next;
            observe(layer, inputs)?;
        }
        Ok(states)
    }

    /// Returns the logits of every position of a text, one row a token.
    ///
    /// # Errors
    /// As [`Forward::run`].
    pub fn logits(&self, text: &[u32]) -> Result<States> {
        let states = self.run(&[text], |_, _| Ok(()))?.remove(0);
        let norm = DVector::from_vec(self.source.values("output_norm.weight")?);
        let tied = !self.source.has("output.weight");
        let head = self.matrix(if tied { "token_embd.weight" } else { "output.weight" })?;
        Ok(self.normalized(&states, &norm) * head)
    }

    fn embed(&self, text: &[u32]) -> Result<States> {
        ensure!(!text.is_empty(), "the text is empty");
        let mut states = DMatrix::zeros(text.len(), self.shape.hidden);
        for (position, &token) in text.iter().enumerate() {
            let token = token as usize;
            ensure!(token < self.shape.vocab, "there is no token {token}");
            let row = self.source.rows("token_embd.weight", token..token + 1)?;
            states.row_mut(position).iter_mut().zip(row).for_each(|(to, from)| *to = from);
        }
        Ok(states)
    }

    /// Returns a matrix with one column a row of the file.
    fn matrix(&self, name: &str) -> Result<DMatrix<f32>> {
        let dims = self.source.dims(name)?;
        let values = self.source.values(name)?;
        Ok(DMatrix::from_vec(dims[0] as usize, dims[1] as usize, values))
    }

    fn layer_weights(&self, layer: usize) -> Result<LayerWeights> {
        let matrix = |name: &str| self.matrix(&format!("blk.{layer}.{name}.weight"));
        let vector = |name: &str| -> Result<DVector<f32>> {
            Ok(DVector::from_vec(self.source.values(&format!("blk.{layer}.{name}.weight"))?))
        };
        Ok(LayerWeights {
            attn_norm: vector("attn_norm")?,
            query: matrix("attn_q")?,
            key: matrix("attn_k")?,
            value: matrix("attn_v")?,
            output: matrix("attn_output")?,
            ffn_norm: vector("ffn_norm")?,
            gate: matrix("ffn_gate")?,
            up: matrix("ffn_up")?,
            down: matrix("ffn_down")?,
        })
    }

    /// Returns the states after a layer, and the inputs of its feed-forward block.
    fn layer(&self, weights: &LayerWeights, states: &States) -> (States, States) {
        let normed = self.normalized(states, &weights.attn_norm);
        let mut queries = &normed * &weights.query;
        let mut keys = &normed * &weights.key;
        let values = &normed * &weights.value;
        self.rotate(&mut queries);
        self.rotate(&mut keys);
        let mixed = self.attend(&queries, &keys, &values) * &weights.output;
        let states = states + mixed;
        let inputs = self.normalized(&states, &weights.ffn_norm);
        let mut units = &inputs * &weights.gate;
        units.zip_apply(&(&inputs * &weights.up), |gate, up| *gate = silu(*gate) * up);
        (states + units * &weights.down, inputs)
    }

    /// Scales each row to a mean square of 1, then each column by its weight.
    fn normalized(&self, states: &States, weights: &DVector<f32>) -> States {
        let mut out = states.clone();
        let columns = states.ncols() as f32;
        for mut row in out.row_iter_mut() {
            let scale = 1.0 / (row.norm_squared() / columns + self.epsilon).sqrt();
            row.iter_mut().zip(weights.iter()).for_each(|(value, w)| *value *= scale * w);
        }
        out
    }

    /// Turns each pair of neighbouring features by an angle that grows with the position.
    fn rotate(&self, states: &mut States) {
        let head = self.shape.head_len;
        for column in (0..states.ncols()).step_by(2) {
            let within = (column % head) as f32;
            let frequency = self.rope_base.powf(-within / head as f32);
            for position in 0..states.nrows() {
                let (sin, cos) = (position as f32 * frequency).sin_cos();
                let (a, b) = (states[(position, column)], states[(position, column + 1)]);
                states[(position, column)] = a * cos - b * sin;
                states[(position, column + 1)] = a * sin + b * cos;
            }
        }
    }

    fn attend(&self, queries: &States, keys: &States, values: &States) -> States {
        let head = self.shape.head_len;
        let group = self.shape.heads / self.shape.kv_heads;
        let scale = 1.0 / (head as f32).sqrt();
        let mut out = DMatrix::zeros(queries.nrows(), queries.ncols());
        for index in 0..self.shape.heads {
            let shared = index / group * head;
            let query = queries.columns(index * head, head);
            // One column a query, so that the softmax runs over contiguous memory.
            let mut scores = keys.columns(shared, head) * query.transpose();
            for (position, mut column) in scores.column_iter_mut().enumerate() {
                let mut seen = column.rows_mut(0, position + 1);
                let max = seen.max();
                seen.apply(|score| *score = ((*score - max) * scale).exp());
                let sum = seen.sum();
                seen /= sum;
                column.rows_mut(position + 1, queries.nrows() - position - 1).fill(0.0);
            }
            let mixed = scores.transpose() * values.columns(shared, head);
            out.columns_mut(index * head, head).copy_from(&mixed);
        }
        out
    }
}

fn silu(value: f32) -> f32 {
    value / (1.0 + (-value).exp())
}

/// Returns the mean negative log-likelihood of each token after those before it, in nats.
pub fn mean_loss(logits: &States, text: &[u32]) -> f64 {
    let losses = text.iter().skip(1).enumerate().map(|(position, &token)| {
        let row = logits.row(position);
        let max = row.max();
        let sum: f64 = row.iter().map(|logit| f64::from(logit - max).exp()).sum();
        sum.ln() - f64::from(row[token as usize] - max)
    });
    losses.sum::<f64>() / (text.len() - 1) as f64
}

/// Splits text into the tokens of a model with a byte-pair vocabulary.
///
/// # Errors
/// If the model has no such vocabulary.
pub fn tokenize(source: &Source, text: &str) -> Result<Vec<u32>> {
    let strings = |key: &str| -> Result<Vec<String>> {
        let array = source.metadata().get_array(key).and_then(|array| array.as_strings());
        let array = array.with_context(|| format!("{key} is missing"))?;
        Ok(array.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    };
    let tokens = strings("tokenizer.ggml.tokens")?;
    let merges = strings("tokenizer.ggml.merges")?;
    let ids: HashMap<&str, u32> = tokens.iter().map(String::as_str).zip(0..).collect();
    let ranks: HashMap<(&str, &str), usize> =
        merges.iter().filter_map(|merge| merge.split_once(' ')).zip(0..).collect();
    let mut out = Vec::new();
    for word in words(text) {
        let mut parts: Vec<String> = word.bytes().map(|b| byte_symbol(b).to_string()).collect();
        while let Some((_, at)) = (0..parts.len().saturating_sub(1))
            .filter_map(|at| Some((ranks.get(&(&*parts[at], &*parts[at + 1]))?, at)))
            .min()
        {
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
        for part in &parts {
            out.push(*ids.get(part.as_str()).with_context(|| format!("no token is {part}"))?);
        }
    }
    Ok(out)
}

//! Random tensors, and the blocks that architectures share.

use smol_gguf::Value;

use super::{Arch, TinyOptions};
use crate::draft::Draft;
use crate::quant::Mix;
use crate::rng::Rng;

/// The length of a hidden state: one superblock, so every type applies.
pub const HIDDEN: u64 = 256;
/// The length of the feed-forward activation.
pub const FEED_FORWARD: u64 = 512;
/// The length of one expert's activation.
pub const EXPERT: u64 = 256;
/// The length of an attention head.
pub const HEAD: u64 = 64;
/// The number of query heads.
pub const HEADS: u64 = 4;

/// The deviation of the logits: far enough apart that rounding seldom changes the best token.
const LOGIT_SPREAD: f32 = 3.0;
/// Makes attention choose sharply and count: flat attention averages random values away, and what
/// follows a token would depend on that token alone.
const ATTENTION_GAIN: f32 = 3.0;
/// The scale of control tokens' rows, so that random weights seldom end a text.
const QUIET: f32 = 0.25;

/// Collects the keys and tensors of a tiny model.
pub struct Builder {
    /// The architecture.
    pub arch: Arch,
    /// The options that the model is made from.
    pub options: TinyOptions,
    /// What has been collected.
    pub draft: Draft<'static>,
    /// Whether each token is one that should rarely be generated.
    pub quiet_tokens: Vec<bool>,
    mix: Mix,
}

impl Builder {
    /// Starts a model with the keys that all architectures have.
    pub fn new(arch: Arch, options: &TinyOptions) -> Self {
        // Which real models of an architecture have a separate output matrix varies; here it is
        // those with experts, whose loader demands one, and qwen3.
        let tied = options.tied.unwrap_or(!arch.has_experts() && arch != Arch::Qwen3);
        let embedding = options.pure.then_some(options.weights);
        let mix = Mix { base: options.weights, embedding, tied };
        let mut builder = Self {
            arch,
            options: *options,
            draft: Draft::default(),
            quiet_tokens: Vec::new(),
            mix,
        };
        let metadata = &mut builder.draft.metadata;
        metadata.set("general.architecture", arch.key());
        metadata.set("general.name", format!("tiny random {}", arch.name()));
        metadata.set("general.file_type", mix.file_type());
        if options.weights.is_quantized() {
            metadata.set("general.quantization_version", 2u32);
        }
        builder.set("vocab_size", options.vocab as u32);
        builder.set("context_length", 2048u32);
        builder.set("embedding_length", HIDDEN as u32);
        builder.set("attention.layer_norm_rms_epsilon", 1e-6f32);
        builder.set("rope.freq_base", 10_000.0f32);
        builder
    }

    /// Returns the collected model.
    pub fn finish(self) -> Draft<'static> {
        self.draft
    }

    /// Sets a key of the architecture.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.draft.metadata.set(format!("{}.{key}", self.arch.key()), value);
    }

    /// Adds a matrix whose outputs vary as much as its inputs; `dims` has the row length first.
    pub fn matrix(&mut self, name: &str, dims: &[u64]) {
        self.random(name, dims, 0.0, 1.0 / (dims[0] as f32).sqrt());
    }

    /// Adds a matrix of attention whose outputs vary [`ATTENTION_GAIN`] times as much as its inputs.
    pub fn amplified(&mut self, name: &str, dims: &[u64]) {
        self.random(name, dims, 0.0, ATTENTION_GAIN / (dims[0] as f32).sqrt());
    }

    /// Adds a tensor of random numbers with this mean and deviation.
    ///
    /// Its type follows from its name, see [`Mix::tensor_type`].
    pub fn random(&mut self, name: &str, dims: &[u64], mean: f32, deviation: f32) {
        self.scaled(name, dims, mean, deviation, |_| 1.0);
    }

    fn scaled(
        &mut self,
        name: &str,
        dims: &[u64],
        mean: f32,
        deviation: f32,
        row_scale: impl Fn(usize) -> f32 + Send + Sync + 'static,
    ) {
        let ty = self.mix.tensor_type(name, dims);
        let (seed, row_len, owned) = (self.options.seed, dims[0] as usize, name.to_owned());
        self.draft.rows(name, dims, ty, move |rows| {
            let mut values = vec![0.0; rows.len() * row_len];
            for (row, out) in rows.zip(values.chunks_exact_mut(row_len)) {
                let scale = row_scale(row);
                Rng::keyed(seed, &owned, row as u64).fill(out, mean * scale, deviation * scale);
            }
            Ok(values)
        });
    }

    /// Adds a norm's weights, near 1.
    pub fn norm(&mut self, name: &str, dims: &[u64]) {
        self.random(name, dims, 1.0, 0.1);
    }

    /// Adds the token embedding with this deviation, the last norm under this name, and the output
    /// matrix if the model has one; `logit_divisor` is what the architecture divides logits by.
    ///
    /// A small deviation lets the layers dominate the hidden state, so that logits depend on all.
    pub fn embeddings(&mut self, last_norm: &str, deviation: f32, logit_divisor: f32) {
        let dims = [HIDDEN, self.options.vocab as u64];
        let quiet = self.quiet_tokens.clone();
        let scale = move |row: usize| if quiet[row] { QUIET } else { 1.0 };
        self.scaled("token_embd.weight", &dims, 0.0, deviation, scale.clone());
        let mut head_deviation = deviation;
        if !self.mix.tied {
            head_deviation = 0.15;
            self.scaled("output.weight", &dims, 0.0, head_deviation, scale);
        }
        let mean = LOGIT_SPREAD * logit_divisor / (head_deviation * (HIDDEN as f32).sqrt());
        self.random(last_norm, &[HIDDEN], mean, 0.1 * mean);
    }

    /// Sets the number of layers, the one chosen or this one, and returns it.
    pub fn layers(&mut self, usual: u32) -> u32 {
        let layers = self.options.layers.unwrap_or(usual);
        self.set("block_count", layers);
        layers
    }

    /// Sets the keys of attention with [`HEADS`] heads and this many key-value heads.
    pub fn attention_keys(&mut self, key_value_heads: impl Into<Value>) {
        self.set("attention.head_count", HEADS as u32);
        self.set("attention.head_count_kv", key_value_heads);
        self.set("attention.key_length", HEAD as u32);
        self.set("attention.value_length", HEAD as u32);
        self.set("feed_forward_length", FEED_FORWARD as u32);
    }

    /// Adds attention with separate matrices; `query_width` of 2 adds a gate to each query.
    pub fn attention(&mut self, block: &str, key_value_heads: u64, query_width: u64, norms: bool) {
        let key_value = key_value_heads * HEAD;
        let query = [HIDDEN, HEADS * HEAD * query_width];
        self.amplified(&format!("{block}attn_q.weight"), &query);
        self.matrix(&format!("{block}attn_k.weight"), &[HIDDEN, key_value]);
        self.matrix(&format!("{block}attn_v.weight"), &[HIDDEN, key_value]);
        self.amplified(&format!("{block}attn_output.weight"), &[HEADS * HEAD, HIDDEN]);
        if norms {
            self.query_and_key_norms(block);
        }
    }

    /// Adds the norms of queries and keys of a head's length.
    pub fn query_and_key_norms(&mut self, block: &str) {
        self.random(&format!("{block}attn_q_norm.weight"), &[HEAD], ATTENTION_GAIN, 0.1);
        self.norm(&format!("{block}attn_k_norm.weight"), &[HEAD]);
    }

    /// Adds a dense feed-forward block.
    pub fn feed_forward(&mut self, block: &str) {
        self.matrix(&format!("{block}ffn_gate.weight"), &[HIDDEN, FEED_FORWARD]);
        self.matrix(&format!("{block}ffn_up.weight"), &[HIDDEN, FEED_FORWARD]);
        self.matrix(&format!("{block}ffn_down.weight"), &[FEED_FORWARD, HIDDEN]);
    }

    /// Sets the keys of experts that all mixtures have.
    pub fn expert_keys(&mut self) {
        self.set("expert_count", self.options.experts);
        self.set("expert_used_count", 2u32);
    }

    /// Sets the keys of experts beside a shared one, behind a sigmoid router.
    pub fn sigmoid_expert_keys(&mut self, groups: bool) {
        self.expert_keys();
        self.set("expert_feed_forward_length", EXPERT as u32);
        self.set("expert_shared_count", 1u32);
        self.set("leading_dense_block_count", 1u32);
        self.set("expert_weights_norm", true);
        self.set("expert_weights_scale", 2.5f32);
        self.set("expert_gating_func", 2u32);
        if groups {
            self.set("expert_group_count", 4u32);
            self.set("expert_group_used_count", 2u32);
        }
    }

    /// Adds a router and experts whose activations have this length; with a sigmoid router also
    /// the selection bias and the shared expert.
    pub fn experts(&mut self, block: &str, width: u64, sigmoid: bool) {
        let experts = u64::from(self.options.experts);
        self.matrix(&format!("{block}ffn_gate_inp.weight"), &[HIDDEN, experts]);
        if sigmoid {
            self.random(&format!("{block}exp_probs_b.bias"), &[experts], 0.0, 0.2);
        }
        for (part, columns, rows) in
            [("gate", HIDDEN, width), ("up", HIDDEN, width), ("down", width, HIDDEN)]
        {
            self.matrix(&format!("{block}ffn_{part}_exps.weight"), &[columns, rows, experts]);
            if sigmoid {
                self.matrix(&format!("{block}ffn_{part}_shexp.weight"), &[columns, rows]);
            }
        }
    }
}

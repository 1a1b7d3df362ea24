//! The context that a model is planned for.

use smol_gguf::{Array, Metadata, Value};

use crate::context_builder::{DEFAULT_N_BATCH, DEFAULT_N_CTX};
use crate::kv::KvType;
use crate::memory::{Layers, MemoryEstimate, MemoryRequest};

/// The context that a model is loaded for, so that [`ModelBuilder::ram`](crate::ModelBuilder::ram) leaves room for it.
///
/// What is not said is as a [`ContextBuilder`](crate::ContextBuilder) has it by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlannedContext {
    /// Positions, in tokens.
    pub n_ctx: Option<u32>,
    /// Tokens of a decode.
    pub n_batch: Option<u32>,
    /// Tokens of a decode whose logits are wanted; `None` is one, as when a text is generated.
    pub n_outputs: Option<u32>,
    /// The type of cached keys.
    pub type_k: KvType,
    /// The type of cached values.
    pub type_v: KvType,
}

impl PlannedContext {
    /// Positions of the context, in tokens.
    pub(crate) fn n_ctx(&self, metadata: &Metadata) -> u32 {
        let trained = metadata.arch_get("context_length").and_then(Value::as_u64);
        let by_default = match trained.and_then(|trained| u32::try_from(trained).ok()) {
            Some(trained @ 1..) => trained.min(DEFAULT_N_CTX),
            _ => DEFAULT_N_CTX,
        };
        self.n_ctx.unwrap_or(by_default)
    }

    /// Estimates the context with so many positions of a model that is not loaded yet, with the settings that a
    /// [`ContextBuilder`](crate::ContextBuilder) has by default.
    pub(crate) fn estimate(
        &self,
        metadata: &Metadata,
        n_tensors: u64,
        n_ctx: u32,
        n_ubatch: u32,
    ) -> MemoryEstimate {
        let n_ubatch = n_ubatch.min(self.n_batch.unwrap_or(DEFAULT_N_BATCH)).min(n_ctx);
        let n_vocab = vocab_len(metadata);
        let mut estimate = Layers::new(metadata).estimate(&MemoryRequest {
            n_ctx: n_ctx.into(),
            n_ubatch: n_ubatch.into(),
            n_seq_max: 1,
            n_vocab,
            n_tensors,
            type_k: self.type_k,
            type_v: self.type_v,
            swa_full: false,
            kv_unified: false,
            flash_attention: true,
        });
        // They are computed in one place and kept in another; one row is in the estimate.
        let rows = self.n_outputs.unwrap_or(1);
        let rows = u64::from(rows).saturating_add(rows.min(n_ubatch).into()).saturating_sub(2);
        let logits = rows.saturating_mul(n_vocab.saturating_mul(4));
        estimate.activations = estimate.activations.saturating_add(logits);
        estimate
    }
}

/// Tokens of a file's vocabulary.
pub(crate) fn vocab_len(metadata: &Metadata) -> u64 {
    match metadata.get("tokenizer.ggml.tokens") {
        Some(Value::Array(Array::String(tokens))) => tokens.len() as u64,
        _ => metadata.arch_get("vocab_size").and_then(Value::as_u64).unwrap_or(0),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::context_builder::UBATCH;

    /// A model of 30 layers that caches 768 elements a token in each, as 16-bit floats.
    pub(in crate::plan) fn metadata() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        metadata.set("llama.block_count", 30u32);
        metadata.set("llama.context_length", 8192u32);
        metadata.set("llama.embedding_length", 768u32);
        metadata.set("llama.attention.head_count", 12u32);
        metadata.set("llama.attention.head_count_kv", 6u32);
        metadata.set("llama.vocab_size", 1000u32);
        metadata
    }

    pub(in crate::plan) fn context(n_ctx: u32) -> MemoryEstimate {
        PlannedContext::default().estimate(&metadata(), 300, n_ctx, UBATCH)
    }

    #[test]
    fn contexts_are_estimated_from_the_file() {
        let metadata = metadata();
        let planned = PlannedContext::default();
        assert_eq!(planned.n_ctx(&metadata), 4096);
        assert_eq!(planned.n_ctx(&Metadata::new()), 4096);
        assert_eq!(PlannedContext { n_ctx: Some(77), ..planned }.n_ctx(&metadata), 77);
        assert_eq!(vocab_len(&metadata), 1000);
        let whole = context(2048);
        assert_eq!(whole.kv_cache, 2048 * 30 * 768 * 2);
        let all = PlannedContext { n_outputs: Some(1024), ..planned };
        let all = all.estimate(&metadata, 300, 2048, UBATCH);
        assert_eq!(all.activations - whole.activations, (1024 + 512 - 2) * 4000);
        // What is computed at once is limited by what a decode gets.
        let small = PlannedContext { n_batch: Some(64), ..planned };
        let small = small.estimate(&metadata, 300, 2048, UBATCH);
        assert_eq!(small.kv_cache, whole.kv_cache);
        assert_eq!(small.activations - 4000, (whole.activations - 4000) / 8);
        let mut short = metadata;
        short.set("llama.context_length", 512u32);
        short.set("tokenizer.ggml.tokens", Array::String(["a"; 3].into_iter().collect()));
        assert_eq!((planned.n_ctx(&short), vocab_len(&short)), (512, 3));
    }

    #[test]
    fn smaller_types_make_a_smaller_cache() {
        let small =
            PlannedContext { type_k: KvType::Q8_0, type_v: KvType::Q8_0, ..Default::default() };
        let small = small.estimate(&metadata(), 300, 2048, UBATCH).kv_cache;
        assert_eq!(small, context(2048).kv_cache / 64 * 34);
    }
}

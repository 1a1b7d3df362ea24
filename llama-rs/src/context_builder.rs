//! Settings of a new context.

use std::ops::RangeInclusive;

use smol_engine::machine::{Cpu, Memory};

use crate::cancel::CancelToken;
use crate::context::{Context, Settings};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::context::{RawContext, RawContextParams};
use crate::kv::KvType;
use crate::memory::{Layers, MemoryEstimate, MemoryRequest, human};
use crate::model::Model;

/// The context of models that were trained on more, unless another is asked for.
pub(crate) const DEFAULT_N_CTX: u32 = 4096;
/// Tokens that are computed at once, unless another number is asked for.
pub(crate) const UBATCH: u32 = 512;
/// The same where experts are paged.
pub(crate) const UBATCH_PAGED: u32 = 1024;
/// Tokens that one decode takes, unless another number is asked for.
pub(crate) const DEFAULT_N_BATCH: u32 = 2048;
/// Sequences that llama.cpp counts in fixed arrays (llama-cparams.h, LLAMA_MAX_SEQ).
pub(crate) const MAX_SEQUENCES: u32 = 256;
/// Bounds of settings that only memory limits.
const MAX_BATCH: u32 = 1 << 20;
const MAX_N_CTX: u32 = i32::MAX as u32 - 256;

/// When to use the attention kernel that needs no matrix of all scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// Where the model and device support it.
    #[default]
    Auto,
    /// Always; building the context fails where it is not supported.
    On,
    /// Never. Quantized values cannot be cached then.
    Off,
}

/// How the embeddings of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pooling {
    /// As the model's file says; without a word, no pooling.
    #[default]
    Model,
    /// No pooling: an embedding a token.
    None,
    /// The mean over the tokens.
    Mean,
    /// The first token's.
    Cls,
    /// The last token's.
    Last,
}

impl Pooling {
    /// The number in llama.h.
    fn id(self) -> i32 {
        match self {
            Self::Model => -1,
            Self::None => 0,
            Self::Mean => 1,
            Self::Cls => 2,
            Self::Last => 3,
        }
    }
}

/// Settings of a new [`Context`], from [`Model::context`]. Values are checked by [`build`](Self::build).
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct ContextBuilder {
    model: Model,
    n_ctx: Option<u32>,
    n_batch: u32,
    n_ubatch: Option<u32>,
    n_seq_max: u32,
    threads: Option<(u32, u32)>,
    type_k: KvType,
    type_v: KvType,
    flash_attention: FlashAttention,
    embeddings: Option<Pooling>,
    swa_full: bool,
    kv_unified: bool,
    cancel: Option<CancelToken>,
    check_memory: bool,
}

impl ContextBuilder {
    pub(crate) fn new(model: Model) -> Self {
        Self {
            model,
            n_ctx: None,
            n_batch: DEFAULT_N_BATCH,
            n_ubatch: None,
            n_seq_max: 1,
            threads: None,
            type_k: KvType::F16,
            type_v: KvType::F16,
            flash_attention: FlashAttention::Auto,
            embeddings: None,
            swa_full: false,
            kv_unified: false,
            cancel: None,
            check_memory: true,
        }
    }

    /// Sets the positions in tokens, for all sequences together. By default what the model was trained on, at most 4096.
    /// llama.cpp rounds up to a multiple of 256.
    pub fn n_ctx(mut self, n_ctx: u32) -> Self {
        self.n_ctx = Some(n_ctx);
        self
    }

    /// Sets the most tokens that one decode takes, by default 2048; at most `n_ctx` are used.
    pub fn n_batch(mut self, n_batch: u32) -> Self {
        self.n_batch = n_batch;
        self
    }

    /// Sets the tokens that are computed at once. By default 512; 1024 where experts are paged, as each such batch may read
    /// all of them; 256 or 128 where that leaves needed memory to weights (see
    /// [`MemoryPlan::n_ubatch`](crate::plan::MemoryPlan::n_ubatch)). More need more memory for activations.
    pub fn n_ubatch(mut self, n_ubatch: u32) -> Self {
        self.n_ubatch = Some(n_ubatch);
        self
    }

    /// Sets the number of independent sequences, by default 1.
    pub fn n_seq_max(mut self, n_seq_max: u32) -> Self {
        self.n_seq_max = n_seq_max;
        self
    }

    /// Sets the threads for single tokens and for batches. By default [`Cpu::default_threads`] for both.
    pub fn threads(mut self, generation: u32, batch: u32) -> Self {
        self.threads = Some((generation, batch));
        self
    }

    /// Sets the types of cached keys and values, by default [`KvType::F16`].
    pub fn kv_type(mut self, keys: KvType, values: KvType) -> Self {
        self.type_k = keys;
        self.type_v = values;
        self
    }

    /// Sets when to use flash attention.
    pub fn flash_attention(mut self, when: FlashAttention) -> Self {
        self.flash_attention = when;
        self
    }

    /// Makes a context for embeddings instead of logits.
    pub fn embeddings(mut self, pooling: Pooling) -> Self {
        self.embeddings = Some(pooling);
        self
    }

    /// Sets whether layers with a sliding window cache the whole context, so that a sequence can be cut anywhere.
    pub fn swa_full(mut self, full: bool) -> Self {
        self.swa_full = full;
        self
    }

    /// Sets whether all sequences share one cache, so that each may use the whole context and prefixes can be shared.
    pub fn kv_unified(mut self, unified: bool) -> Self {
        self.kv_unified = unified;
        self
    }

    /// Sets the token that stops the context's work.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    /// Sets whether to refuse a context that the available memory cannot hold, by default true.
    pub fn check_memory(mut self, check: bool) -> Self {
        self.check_memory = check;
        self
    }

    /// Estimates the memory that the context will take.
    pub fn memory_estimate(&self) -> MemoryEstimate {
        self.estimate_for(self.effective_n_ctx())
    }

    /// Makes the context.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] names the allowed range; [`ErrorKind::OutOfMemory`] has the numbers;
    /// [`ErrorKind::Unsupported`] for models that this crate cannot run; [`ErrorKind::Context`] otherwise.
    pub fn build(self) -> Result<Context> {
        let cores = Cpu::probe();
        let default = u32::try_from(cores.default_threads()).unwrap_or(1);
        let (n_threads, n_threads_batch) = self.threads.unwrap_or((default, default));
        let params = self.checked_params(n_threads, n_threads_batch, cores.logical.len())?;
        let estimate = self.estimate_for(params.n_ctx);
        if self.check_memory {
            let memory = Memory::probe();
            self.check_available(memory.usable_ram(), MemoryEstimate::resident, "are available")?;
            let addresses = memory.usable_address_space();
            let limit = "are left by the limit of this process's address space";
            self.check_available(addresses, MemoryEstimate::total, limit)?;
        }
        let settings = Settings {
            n_seq_max: params.n_seq_max,
            n_threads,
            n_threads_batch,
            type_k: self.type_k,
            type_v: self.type_v,
            kv_unified: self.kv_unified,
            embeddings: self.embeddings.is_some(),
            estimate,
            state_limit: self.state_limit(params.n_ctx),
        };
        let raw = RawContext::new(&self.model, &params, self.cancel)?;
        Ok(Context::new(raw, settings))
    }

    fn effective_n_ctx(&self) -> u32 {
        let trained = self.model.raw().n_ctx_train();
        self.n_ctx.unwrap_or(if trained == 0 { DEFAULT_N_CTX } else { trained.min(DEFAULT_N_CTX) })
    }

    fn checked_params(
        &self,
        n_threads: u32,
        n_threads_batch: u32,
        logical_cores: usize,
    ) -> Result<RawContextParams> {
        let raw = self.model.raw();
        if raw.has_encoder() && raw.has_decoder() {
            let message = "encoder-decoder models are not supported";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let n_ctx = in_range("n_ctx", self.effective_n_ctx(), 1..=MAX_N_CTX)?;
        let n_batch = in_range("n_batch", self.n_batch, 1..=MAX_BATCH)?.min(n_ctx);
        // Layers that look at all tokens at once, and pooling, need the whole text in one piece.
        let whole = self.embeddings.is_some() || self.model.attends_both_ways();
        let n_ubatch = match self.n_ubatch {
            Some(n_ubatch) => in_range("n_ubatch", n_ubatch, 1..=MAX_BATCH)?.min(n_batch),
            None if whole => n_batch,
            None => n_batch.min(self.model.default_n_ubatch() as u32),
        };
        let n_seq_max = in_range("n_seq_max", self.n_seq_max, 1..=MAX_SEQUENCES)?;
        if n_seq_max > n_batch {
            return Err(Error::invalid(format!(
                "n_seq_max is {n_seq_max} but must not exceed n_batch and n_ctx, of which the less is {n_batch}"
            )));
        }
        // ggml keeps an entry a thread in arrays of 512 (ggml.h, GGML_MAX_N_THREADS).
        let most = u32::try_from(logical_cores).unwrap_or(512).clamp(1, 512);
        let cores = |name: &str, threads: u32| {
            in_range(name, threads, 1..=most).map_err(|error| {
                Error::invalid(format!(
                    "{}: this machine has {most} logical cores",
                    error.message()
                ))
            })
        };
        cores("the number of threads", n_threads)?;
        cores("the number of batch threads", n_threads_batch)?;
        if self.flash_attention == FlashAttention::Off && self.type_v.block().0 > 1 {
            return Err(Error::invalid(format!(
                "cached values of type {} need flash attention; turn it on or use f16",
                self.type_v
            )));
        }
        Ok(RawContextParams {
            n_ctx,
            n_batch,
            n_ubatch,
            n_seq_max,
            n_threads,
            n_threads_batch,
            type_k: self.type_k.id(),
            type_v: self.type_v.id(),
            flash_attn: match self.flash_attention {
                FlashAttention::Auto => -1,
                FlashAttention::Off => 0,
                FlashAttention::On => 1,
            },
            pooling: self.embeddings.map(Pooling::id),
            swa_full: self.swa_full,
            kv_unified: self.kv_unified,
        })
    }

    fn estimate_for(&self, n_ctx: u32) -> MemoryEstimate {
        let n_batch = self.n_batch.min(n_ctx);
        let n_ubatch = self.n_ubatch.map_or(self.model.default_n_ubatch() as u64, u64::from);
        Layers::new(self.model.metadata()).estimate(&MemoryRequest {
            n_ctx: n_ctx.into(),
            n_ubatch: u64::from(n_batch).min(n_ubatch),
            n_seq_max: self.n_seq_max.into(),
            n_vocab: self.model.raw().vocab_len().into(),
            n_tensors: self.model.n_tensors() as u64,
            type_k: self.type_k,
            type_v: self.type_v,
            swa_full: self.swa_full,
            kv_unified: self.kv_unified,
            flash_attention: self.flash_attention != FlashAttention::Off,
        })
    }

    /// A generous bound for the bytes of a saved sequence: caches as if no layer had a window, and their positions.
    fn state_limit(&self, n_ctx: u32) -> u64 {
        let full = Self { swa_full: true, ..self.clone() }.estimate_for(n_ctx);
        let cached = full.kv_cache.saturating_add(full.recurrent).saturating_mul(2);
        cached.saturating_add(u64::from(n_ctx) * 64).saturating_add(16 << 20)
    }

    /// Refuses a context of which some measure exceeds what is available.
    fn check_available(
        &self,
        available: Option<u64>,
        measure: fn(&MemoryEstimate) -> u64,
        limit: &str,
    ) -> Result<()> {
        let Some(available) = available else { return Ok(()) };
        let needed = measure(&self.memory_estimate());
        if needed <= available {
            return Ok(());
        }
        let advice = match self.largest_fitting(available, measure) {
            Some(n_ctx) => format!("; a context of {n_ctx} tokens would fit"),
            None => String::new(),
        };
        Err(Error::new(
            ErrorKind::OutOfMemory { needed: Some(needed), available: Some(available) },
            format!(
                "a context of {} tokens needs about {} of memory but {} {limit}{advice}",
                self.effective_n_ctx(),
                human(needed),
                human(available),
            ),
        ))
    }

    /// The largest context, a multiple of 256, whose estimate fits.
    fn largest_fitting(&self, available: u64, measure: fn(&MemoryEstimate) -> u64) -> Option<u32> {
        let fits = |blocks: u32| measure(&self.estimate_for(blocks * 256)) <= available;
        let (mut fitting, mut too_large) = (0, self.effective_n_ctx() / 256 + 1);
        while fitting + 1 < too_large {
            let middle = fitting + (too_large - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_large = middle }
        }
        (fitting > 0).then_some(fitting * 256)
    }
}

fn in_range(name: &str, value: u32, range: RangeInclusive<u32>) -> Result<u32> {
    if range.contains(&value) {
        return Ok(value);
    }
    let (first, last) = (range.start(), range.end());
    Err(Error::invalid(format!("{name} is {value} but must be {first} to {last}")))
}

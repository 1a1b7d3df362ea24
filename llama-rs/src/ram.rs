//! How an amount of RAM is shared out between weights, context and the pool of experts.

use smol_engine::machine::{Memory, rss};
use smol_gguf::{Array, Metadata, Value};

use crate::context_builder::{DEFAULT_N_BATCH, DEFAULT_N_CTX, UBATCH};
use crate::error::{Error, ErrorKind, Result};
use crate::kv::KvType;
use crate::memory::{Layers, MemoryEstimate, MemoryRequest, human};

/// Bytes that a process has in memory with a model, beside weights, context and vocabulary: code, threads, tables.
/// Measured with models of 49,152 and 262,144 tokens, as [`TOKEN_BYTES`].
const PROGRAM_BYTES: u64 = 36 << 20;
/// Bytes of a token in a loaded vocabulary: its text, twice, merges and lookup tables.
const TOKEN_BYTES: u64 = 200;
/// Where nothing says how much RAM to use, this part of what is available stays for the rest of the machine.
const LEFT_ALONE: u64 = 10;

/// What has to fit into the RAM. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RamNeeds {
    /// RAM that the process may fill.
    pub ram: u64,
    /// Weights that every token uses: all but the routed experts, in the form in which kernels read them.
    pub weights: u64,
    /// All routed experts, in the same form; 0 for a model without experts.
    pub experts: u64,
    /// The least pool with which experts can be paged, with its buffers.
    pub pool_floor: u64,
    /// Positions of the context, in tokens.
    pub n_ctx: u32,
    /// Everything else; see [`process_reserve`].
    pub process: u64,
}

/// How a model runs in an amount of RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RamPlan {
    /// Everything fits.
    Resident,
    /// Experts are read when they are needed.
    Paged {
        /// Bytes for the pool of experts and its buffers.
        pool: u64,
    },
}

impl RamNeeds {
    /// Shares out the RAM; `context` estimates the memory of a context of so many tokens.
    ///
    /// The pool gets what weights, context and process leave.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] with every number if that is less than the floor of the pool, or if a model without
    /// experts does not fit. If a smaller context would fit, the message names it.
    ///
    /// # Examples
    /// ```no_run
    /// # fn main() -> llama_rs::Result<()> {
    /// use llama_rs::ram::{RamNeeds, RamPlan};
    ///
    /// let model = llama_rs::Model::load("model.gguf")?;
    /// let needs = RamNeeds {
    ///     ram: 900 << 20,
    ///     weights: 300 << 20,
    ///     experts: 2500 << 20,
    ///     pool_floor: 40 << 20,
    ///     n_ctx: 2048,
    ///     process: 60 << 20,
    /// };
    /// let plan = needs.plan(|n_ctx| model.context().n_ctx(n_ctx).memory_estimate())?;
    /// if let RamPlan::Paged { pool } = plan {
    ///     println!("{pool} bytes for experts");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn plan(&self, context: impl Fn(u32) -> MemoryEstimate) -> Result<RamPlan> {
        let fixed = |n_ctx| self.fixed(&context(n_ctx));
        let used = fixed(self.n_ctx);
        let left = self.ram.checked_sub(used);
        match left {
            Some(left) if left >= self.experts => Ok(RamPlan::Resident),
            Some(left) if self.experts > 0 && left >= self.pool_floor => {
                Ok(RamPlan::Paged { pool: left })
            }
            _ => Err(self.refusal(&context(self.n_ctx), &fixed)),
        }
    }

    /// Bytes beside experts.
    fn fixed(&self, context: &MemoryEstimate) -> u64 {
        self.weights.saturating_add(self.process).saturating_add(context.in_use())
    }

    /// The least that experts take.
    fn least_experts(&self) -> u64 {
        self.pool_floor.min(self.experts)
    }

    fn refusal(&self, context: &MemoryEstimate, fixed: &dyn Fn(u32) -> u64) -> Error {
        let needed = self.fixed(context).saturating_add(self.least_experts());
        let mut message = format!(
            "{} of RAM are too little: at least {} are needed, of which weights that every token uses take {}, a context \
             of {} tokens {}, the program {}",
            human(self.ram),
            human(needed),
            human(self.weights),
            self.n_ctx,
            human(context.in_use()),
            human(self.process),
        );
        if self.experts > 0 {
            message += &format!(
                ", and the pool of experts at least {} (all experts {})",
                human(self.least_experts()),
                human(self.experts)
            );
        }
        message += &match self.largest_context(fixed) {
            Some(n_ctx) => format!("; a context of {n_ctx} tokens would fit"),
            None => "; no smaller context would help: use a model with smaller weights".to_owned(),
        };
        let kind = ErrorKind::OutOfMemory { needed: Some(needed), available: Some(self.ram) };
        Error::new(kind, message)
    }

    /// The largest context, a multiple of 256, with which the model would run.
    fn largest_context(&self, fixed: &dyn Fn(u32) -> u64) -> Option<u32> {
        let fits =
            |blocks: u32| fixed(blocks * 256).saturating_add(self.least_experts()) <= self.ram;
        let (mut fitting, mut too_large) = (0, self.n_ctx.div_ceil(256));
        while fitting + 1 < too_large {
            let middle = fitting + (too_large - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_large = middle }
        }
        (fitting > 0).then_some(fitting * 256)
    }
}

/// Returns the bytes that this process will take with a model, beside weights and context: what it has now, but no less
/// than a program needs, and a vocabulary of so many tokens.
pub fn process_reserve(vocab_len: u64) -> u64 {
    reserve(rss().unwrap_or(0), vocab_len)
}

/// `used`: what the process has now.
fn reserve(used: u64, vocab_len: u64) -> u64 {
    used.max(PROGRAM_BYTES).saturating_add(vocab_len.saturating_mul(TOKEN_BYTES))
}

/// Returns the RAM that this process may fill: what was asked for, but no more than there is; without a wish nine tenths
/// of what is available. `None` if nothing was asked for and nothing is known.
pub fn usable_ram(asked: Option<u64>) -> Option<u64> {
    within(asked, Memory::probe().usable_ram(), rss().unwrap_or(0))
}

/// `available` is what can be had beside the `used` bytes that the process has.
fn within(asked: Option<u64>, available: Option<u64>, used: u64) -> Option<u64> {
    let Some(asked) = asked else {
        return available.map(|available| used.saturating_add(available - available / LEFT_ALONE));
    };
    let most = available.map_or(u64::MAX, |available| used.saturating_add(available));
    Some(asked.min(most))
}

/// Refuses a model without experts that does not fit into the RAM that was asked for.
pub(crate) fn check_resident(
    ram: u64,
    weights: u64,
    metadata: &Metadata,
    n_tensors: u64,
    planned: PlannedContext,
) -> Result<()> {
    let needs = RamNeeds {
        ram: usable_ram(Some(ram)).unwrap_or(ram),
        weights,
        experts: 0,
        pool_floor: 0,
        n_ctx: planned.n_ctx(metadata),
        process: process_reserve(vocab_len(metadata)),
    };
    needs.plan(|n_ctx| planned.estimate(metadata, n_tensors, n_ctx, UBATCH)).map(drop)
}

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
            type_k: KvType::F16,
            type_v: KvType::F16,
            swa_full: false,
            kv_unified: false,
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
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A model of 30 layers that caches 768 elements a token in each, as 16-bit floats.
    fn metadata() -> Metadata {
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

    fn context(n_ctx: u32) -> MemoryEstimate {
        PlannedContext::default().estimate(&metadata(), 300, n_ctx, UBATCH)
    }

    fn needs() -> RamNeeds {
        RamNeeds {
            ram: 900 * MIB,
            weights: 300 * MIB,
            experts: 2500 * MIB,
            pool_floor: 40 * MIB,
            n_ctx: 4096,
            process: 50 * MIB,
        }
    }

    fn refusal(needs: &RamNeeds) -> (u64, String) {
        let error = needs.plan(context).unwrap_err();
        let ErrorKind::OutOfMemory { needed: Some(needed), available } = *error.kind() else {
            panic!("{error}");
        };
        assert_eq!(available, Some(needs.ram));
        (needed, error.message().to_owned())
    }

    #[test]
    fn the_pool_gets_what_is_left() {
        let rest = 550 * MIB - context(4096).in_use();
        assert_eq!(needs().plan(context).unwrap(), RamPlan::Paged { pool: rest });
        // A smaller context leaves more.
        let small = RamNeeds { n_ctx: 1024, ..needs() };
        let RamPlan::Paged { pool } = small.plan(context).unwrap() else { panic!() };
        assert_eq!(pool - rest, context(4096).in_use() - context(1024).in_use());
        assert!(pool - rest > 3072 * 30 * 768 * 2);
    }

    #[test]
    fn a_model_that_fits_is_resident() {
        let exact = 2850 * MIB + context(4096).in_use();
        let plan = |ram| RamNeeds { ram, ..needs() }.plan(context).unwrap();
        assert_eq!(plan(exact), RamPlan::Resident);
        assert_eq!(plan(u64::MAX), RamPlan::Resident);
        assert_eq!(plan(exact - 1), RamPlan::Paged { pool: 2500 * MIB - 1 });
        let dense = RamNeeds { experts: 0, pool_floor: 0, ..needs() };
        assert_eq!(dense.plan(context).unwrap(), RamPlan::Resident);
        // Few experts: the floor with its buffers may be more than all of them.
        let few =
            RamNeeds { experts: 10 * MIB, ram: 360 * MIB + context(4096).in_use(), ..needs() };
        assert_eq!(few.plan(context).unwrap(), RamPlan::Resident);
    }

    #[test]
    fn the_floor_is_the_least() {
        let exact = 390 * MIB + context(4096).in_use();
        let at_floor = RamNeeds { ram: exact, ..needs() };
        assert_eq!(at_floor.plan(context).unwrap(), RamPlan::Paged { pool: 40 * MIB });
        let (needed, message) = refusal(&RamNeeds { ram: exact - 1, ..needs() });
        assert_eq!(needed, exact);
        let context_size = human(context(4096).in_use());
        for words in [
            "of RAM are too little: at least",
            "weights that every token uses take 300.0 MiB",
            &format!("a context of 4096 tokens {context_size}"),
            "the program 50.0 MiB",
            "the pool of experts at least 40.0 MiB (all experts 2.4 GiB)",
            "; a context of 3840 tokens would fit",
        ] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }

    #[test]
    fn the_context_that_would_fit_does_fit() {
        for ram in (420..900).step_by(16) {
            let large = RamNeeds { ram: ram * MIB, n_ctx: 16_384, ..needs() };
            let Err(error) = large.plan(context) else { continue };
            let message = error.message();
            let Some((_, rest)) = message.split_once("; a context of ") else {
                assert!(message.contains("no smaller context"), "{message}");
                let smallest = RamNeeds { n_ctx: 256, ..large };
                assert!(smallest.plan(context).is_err(), "{ram}");
                continue;
            };
            let n_ctx: u32 = rest.split_once(' ').unwrap().0.parse().unwrap();
            assert!(RamNeeds { n_ctx, ..large }.plan(context).is_ok(), "{ram}: {n_ctx}");
            assert!(RamNeeds { n_ctx: n_ctx + 256, ..large }.plan(context).is_err(), "{ram}");
        }
    }

    #[test]
    fn what_never_fits_says_so() {
        for ram in [0, 1, 300 * MIB] {
            let (needed, message) = refusal(&RamNeeds { ram, ..needs() });
            assert!(needed > 390 * MIB);
            assert!(message.ends_with("use a model with smaller weights"), "{message}");
        }
        let dense = RamNeeds { experts: 0, pool_floor: 0, ram: 200 * MIB, ..needs() };
        let (_, message) = refusal(&dense);
        assert!(!message.contains("expert"), "{message}");
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let huge = RamNeeds {
            ram: u64::MAX - 1,
            weights: u64::MAX,
            experts: u64::MAX,
            pool_floor: u64::MAX,
            n_ctx: u32::MAX,
            process: u64::MAX,
        };
        assert_eq!(refusal(&huge).0, u64::MAX);
    }

    #[test]
    fn the_machine_limits_what_is_asked_for() {
        assert_eq!(within(Some(900), None, 10), Some(900));
        assert_eq!(within(Some(900), Some(2000), 10), Some(900));
        assert_eq!(within(Some(900), Some(500), 10), Some(510));
        assert_eq!(within(None, Some(500), 10), Some(460));
        assert_eq!(within(None, None, 10), None);
        assert_eq!(within(Some(u64::MAX), Some(u64::MAX), 10), Some(u64::MAX));
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
    fn a_process_counts_its_vocabulary() {
        assert_eq!(reserve(0, 1_000_000), PROGRAM_BYTES + 200_000_000);
        assert_eq!(reserve(PROGRAM_BYTES + 7, 0), PROGRAM_BYTES + 7);
        assert!(process_reserve(0) >= PROGRAM_BYTES);
    }
}

//! How an amount of RAM is shared out between weights, context, and the pool of experts or the zone of streamed weights.

use super::streamed::{self, StreamWishes, Streamed};
use super::weights::Weights;
use crate::context_builder::{UBATCH, UBATCH_PAGED};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{MemoryEstimate, human};

/// What has to fit into the RAM. Sizes are in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Needs {
    /// RAM that the process may fill.
    pub(crate) ram: u64,
    pub(crate) weights: Weights,
    /// The least pool with which experts can be paged, with its buffers; `None`: they stay in memory.
    pub(crate) pool_floor: Option<u64>,
    /// How matrices may be streamed; `None`: they stay in memory.
    pub(crate) stream: Option<StreamWishes>,
    /// Positions of the context, in tokens.
    pub(crate) n_ctx: u32,
    /// Everything else; see [`program_bytes`](super::program::program_bytes).
    pub(crate) program: u64,
}

/// How a model runs in an amount of RAM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Split {
    /// Everything fits.
    Resident,
    /// Experts are read when they are needed; bytes for the pool and its buffers.
    Paged(u64),
    /// Matrices are read when they are needed.
    Streamed(Streamed),
}

impl Needs {
    /// Shares out the RAM; `context` estimates the memory of a context of so many tokens, of which so many are computed
    /// at once.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] with every number if the model does not fit in any way that is allowed. If a smaller
    /// context would fit, the message names it.
    pub(crate) fn split(&self, context: &dyn Fn(u32, u32) -> MemoryEstimate) -> Result<Split> {
        let all = self.weights.dense.saturating_add(self.weights.experts);
        if self.left(UBATCH, context).is_some_and(|left| left >= all) {
            return Ok(Split::Resident);
        }
        let left = self.left(UBATCH_PAGED, context);
        if let (Some(floor), Some(left)) = (self.pool_floor(), left)
            && let Some(pool) = left.checked_sub(self.weights.dense)
            && pool >= floor
        {
            return Ok(Split::Paged(pool));
        }
        if let (Some(wishes), Some(left)) = (self.may_stream(), left)
            && let Some(streamed) = streamed::choose(&self.weights, left, wishes)
        {
            return Ok(Split::Streamed(streamed));
        }
        Err(self.refusal(context))
    }

    /// The least pool, if there are experts that may be paged.
    fn pool_floor(&self) -> Option<u64> {
        self.pool_floor.filter(|_| self.weights.experts > 0)
    }

    /// How matrices are streamed, if they may be and would help.
    fn may_stream(&self) -> Option<StreamWishes> {
        self.stream.filter(|_| self.weights.experts == 0 && !self.weights.matrices.is_empty())
    }

    /// Shares out the RAM so that matrices are streamed, whether that is needed or not; experts stay in memory.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub(crate) fn stream(
        &self,
        wishes: StreamWishes,
        context: &dyn Fn(u32, u32) -> MemoryEstimate,
    ) -> Result<Streamed> {
        let left = match self.ram {
            u64::MAX => Some(u64::MAX),
            _ => self.left(UBATCH_PAGED, context),
        };
        let left = left.and_then(|left| left.checked_sub(self.weights.experts));
        let streamed = left.and_then(|left| streamed::choose(&self.weights, left, wishes));
        streamed.ok_or_else(|| self.refusal(context))
    }

    /// Bytes that context and program leave.
    fn left(&self, n_ubatch: u32, context: &dyn Fn(u32, u32) -> MemoryEstimate) -> Option<u64> {
        self.ram.checked_sub(self.beside(self.n_ctx, n_ubatch, context))
    }

    /// Bytes beside weights.
    fn beside(
        &self,
        n_ctx: u32,
        n_ubatch: u32,
        context: &dyn Fn(u32, u32) -> MemoryEstimate,
    ) -> u64 {
        self.program.saturating_add(context(n_ctx, n_ubatch).in_use())
    }

    /// The least that weights take, and the tokens that are computed at once then.
    fn least_weights(&self) -> (u64, u32) {
        let all = self.weights.dense.saturating_add(self.weights.experts);
        let least = match (self.pool_floor(), self.may_stream()) {
            (Some(floor), _) => self.weights.dense.saturating_add(floor),
            (None, Some(_)) => streamed::least(&self.weights),
            (None, None) => all,
        };
        if least < all { (least, UBATCH_PAGED) } else { (all, UBATCH) }
    }

    fn refusal(&self, context: &dyn Fn(u32, u32) -> MemoryEstimate) -> Error {
        let (weights, n_ubatch) = self.least_weights();
        let needed = weights.saturating_add(self.beside(self.n_ctx, n_ubatch, context));
        let what = match (self.pool_floor(), self.may_stream()) {
            (None, Some(_)) => "weights that stay in memory, with a zone for the others,",
            _ => "weights that every token uses",
        };
        let shown = if self.pool_floor().is_some() { self.weights.dense } else { weights };
        let mut message = format!(
            "{} of RAM are too little: at least {} are needed, of which {what} take {}, a context of {} tokens {}, the \
             program {}",
            human(self.ram),
            human(needed),
            human(shown),
            self.n_ctx,
            human(context(self.n_ctx, n_ubatch).in_use()),
            human(self.program),
        );
        if self.pool_floor().is_some() {
            message += &format!(
                ", and the pool of experts at least {} (all experts {})",
                human(weights.saturating_sub(self.weights.dense)),
                human(self.weights.experts)
            );
        }
        message += &match self.largest_context(context) {
            Some(n_ctx) => format!("; a context of {n_ctx} tokens would fit"),
            None => "; no smaller context would help: use a model with smaller weights".to_owned(),
        };
        let kind = ErrorKind::OutOfMemory { needed: Some(needed), available: Some(self.ram) };
        Error::new(kind, message)
    }

    /// The largest context, a multiple of 256, with which the model would run.
    fn largest_context(&self, context: &dyn Fn(u32, u32) -> MemoryEstimate) -> Option<u32> {
        let (weights, n_ubatch) = self.least_weights();
        let fits = |blocks: u32| {
            weights.saturating_add(self.beside(blocks * 256, n_ubatch, context)) <= self.ram
        };
        let (mut fitting, mut too_large) = (0, self.n_ctx.div_ceil(256));
        while fitting + 1 < too_large {
            let middle = fitting + (too_large - fitting) / 2;
            if fits(middle) { fitting = middle } else { too_large = middle }
        }
        (fitting > 0).then_some(fitting * 256)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PlannedContext;
    use super::super::context::tests::metadata;
    use super::super::weights::{Matrix, Rows};
    use super::*;

    const MIB: u64 = 1 << 20;

    fn context(n_ctx: u32, n_ubatch: u32) -> MemoryEstimate {
        PlannedContext::default().estimate(&metadata(), 300, n_ctx, n_ubatch)
    }

    fn in_use(n_ctx: u32, n_ubatch: u32) -> u64 {
        context(n_ctx, n_ubatch).in_use()
    }

    /// A mixture of 2.8 GB.
    fn needs() -> Needs {
        Needs {
            ram: 900 * MIB,
            weights: Weights { dense: 300 * MIB, experts: 2500 * MIB, ..Weights::default() },
            pool_floor: Some(40 * MIB),
            stream: None,
            n_ctx: 4096,
            program: 50 * MIB,
        }
    }

    /// A dense model of 1000 MiB.
    fn dense() -> Needs {
        let matrix = |n| Matrix {
            name: format!("{n}"),
            bytes: 10 * MIB,
            place: 10 * MIB,
            file_bytes: 10 * MIB,
            head: false,
        };
        let weights = Weights {
            dense: 1000 * MIB,
            matrices: (0..90).map(matrix).collect(),
            rows: Some(Rows { name: "table".to_owned(), bytes: 80 * MIB, row_bytes: 1 }),
            ..Weights::default()
        };
        Needs { weights, pool_floor: None, stream: Some(StreamWishes::default()), ..needs() }
    }

    fn split(needs: &Needs) -> Split {
        needs.split(&context).unwrap()
    }

    fn refusal(needs: &Needs) -> (u64, String) {
        let error = needs.split(&context).unwrap_err();
        let ErrorKind::OutOfMemory { needed: Some(needed), available } = *error.kind() else {
            panic!("{error}");
        };
        assert_eq!(available, Some(needs.ram));
        (needed, error.message().to_owned())
    }

    #[test]
    fn the_pool_gets_what_is_left() {
        let rest = 550 * MIB - in_use(4096, UBATCH_PAGED);
        assert_eq!(split(&needs()), Split::Paged(rest));
        // A smaller context leaves more.
        let small = Needs { n_ctx: 1024, ..needs() };
        let Split::Paged(pool) = split(&small) else { panic!() };
        assert_eq!(pool - rest, in_use(4096, UBATCH_PAGED) - in_use(1024, UBATCH_PAGED));
        assert!(pool - rest > 3072 * 30 * 768 * 2);
    }

    #[test]
    fn a_model_that_fits_is_resident() {
        let exact = 2850 * MIB + in_use(4096, UBATCH);
        let with = |ram| split(&Needs { ram, ..needs() });
        assert_eq!(with(exact), Split::Resident);
        assert_eq!(with(u64::MAX), Split::Resident);
        let more = in_use(4096, UBATCH_PAGED) - in_use(4096, UBATCH);
        assert_eq!(with(exact - 1), Split::Paged(2500 * MIB - 1 - more));
        let exact = 1050 * MIB + in_use(4096, UBATCH);
        assert_eq!(split(&Needs { ram: exact, ..dense() }), Split::Resident);
        let one_less = Needs { ram: exact - 1, ..dense() };
        assert!(matches!(split(&one_less), Split::Streamed(_)));
    }

    #[test]
    fn the_floor_is_the_least() {
        let exact = 390 * MIB + in_use(4096, UBATCH_PAGED);
        let at_floor = Needs { ram: exact, ..needs() };
        assert_eq!(split(&at_floor), Split::Paged(40 * MIB));
        let (needed, message) = refusal(&Needs { ram: exact - 1, ..needs() });
        assert_eq!(needed, exact);
        let context_size = human(in_use(4096, UBATCH_PAGED));
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
    fn dense_models_are_streamed_or_refused() {
        let Split::Streamed(streamed) = split(&dense()) else { panic!() };
        let left = 850 * MIB - in_use(4096, UBATCH_PAGED);
        assert!(streamed.resident + streamed.zone <= left);
        assert!(streamed.resident + streamed.zone > left - 10 * MIB);
        // Just enough for one matrix, and one byte less.
        let beside = 50 * MIB + in_use(4096, UBATCH_PAGED);
        let exact = beside + streamed::least(&dense().weights);
        let Split::Streamed(streamed) = split(&Needs { ram: exact, ..dense() }) else { panic!() };
        assert_eq!(streamed.names.len(), 91);
        let (needed, message) = refusal(&Needs { ram: exact - 1, ..dense() });
        assert_eq!(needed, exact);
        assert!(message.contains("weights that stay in memory, with a zone"), "{message}");
        let (needed, message) = refusal(&Needs { stream: None, ..dense() });
        assert_eq!(needed, 1050 * MIB + in_use(4096, UBATCH));
        assert!(!message.contains("expert") && !message.contains("zone"), "{message}");
    }

    #[test]
    fn the_context_that_would_fit_does_fit() {
        for needs in [needs(), dense()] {
            for ram in (200..900).step_by(16) {
                let large = Needs { ram: ram * MIB, n_ctx: 16_384, ..needs.clone() };
                let Err(error) = large.split(&context) else { continue };
                let message = error.message();
                let Some((_, rest)) = message.split_once("; a context of ") else {
                    assert!(message.contains("no smaller context"), "{message}");
                    let smallest = Needs { n_ctx: 256, ..large };
                    assert!(smallest.split(&context).is_err(), "{ram}");
                    continue;
                };
                let n_ctx: u32 = rest.split_once(' ').unwrap().0.parse().unwrap();
                let with = |n_ctx| Needs { n_ctx, ..large.clone() }.split(&context);
                assert!(with(n_ctx).is_ok(), "{ram}: {n_ctx}");
                assert!(with(n_ctx + 256).is_err(), "{ram}");
            }
        }
    }

    #[test]
    fn what_never_fits_says_so() {
        for ram in [0, 1, 300 * MIB] {
            let (needed, message) = refusal(&Needs { ram, ..needs() });
            assert!(needed > 390 * MIB);
            assert!(message.ends_with("use a model with smaller weights"), "{message}");
        }
    }

    #[test]
    fn absurd_sizes_do_not_overflow() {
        let weights = Weights { dense: u64::MAX, experts: u64::MAX, ..Weights::default() };
        let huge = Needs {
            ram: u64::MAX - 1,
            weights,
            pool_floor: Some(u64::MAX),
            n_ctx: u32::MAX,
            program: u64::MAX,
            ..needs()
        };
        assert_eq!(refusal(&huge).0, u64::MAX);
    }
}

//! How an amount of RAM is shared out between weights, context, and the pool of experts or the zone of streamed weights.

use super::streamed::{self, StreamWishes, Streamed};
use super::weights::Weights;
use crate::context_builder::{UBATCH, UBATCH_PAGED};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{MemoryEstimate, human};

/// Tokens that may be computed at once where RAM is shared out: activations take the place of weights. For a model of which
/// each token uses all weights some 128 tokens take a small CPU as long as flash takes to read the weights for them.
const UBATCHES: [u32; 3] = [UBATCH, 256, LEAST_UBATCH];
const LEAST_UBATCH: u32 = 128;
/// The part of the RAM that activations may take, if fewer tokens can be computed at once.
const ACTIVATIONS_PART: u64 = 32;

/// What has to fit into the RAM. Sizes are in bytes.
#[derive(Debug, Clone)]
pub(crate) struct Needs {
    /// RAM that the process may fill.
    pub(crate) ram: u64,
    /// Whether it was asked for, so that fewer tokens are computed at once than by default if that saves some.
    pub(crate) asked: bool,
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

/// A way to run a model, and what has to fit into the RAM for it.
struct Way {
    /// The least that weights take, in bytes.
    weights: u64,
    /// Tokens that are computed at once.
    n_ubatch: u32,
}

impl Needs {
    /// Shares out the RAM; `context` estimates the memory of a context of so many tokens, of which so many are computed
    /// at once. Returns also how many those are.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] with every number if the model does not fit in any way that is allowed. If a smaller
    /// context would fit, the message names it.
    pub(crate) fn split(
        &self,
        context: &dyn Fn(u32, u32) -> MemoryEstimate,
    ) -> Result<(Split, u32)> {
        for n_ubatch in self.resident_ubatches() {
            if self.left(n_ubatch, context).is_some_and(|left| left >= self.all_weights()) {
                return Ok((Split::Resident, n_ubatch));
            }
        }
        if let (Some(floor), Some(left)) = (self.pool_floor(), self.left(UBATCH_PAGED, context))
            && let Some(pool) = left.checked_sub(self.weights.dense)
            && pool >= floor
        {
            return Ok((Split::Paged(pool), UBATCH_PAGED));
        }
        if let Some(wishes) = self.may_stream()
            && let Some((streamed, n_ubatch)) = self.share(wishes, 0, context)
        {
            return Ok((Split::Streamed(streamed), n_ubatch));
        }
        Err(self.refusal(context))
    }

    /// Shares out the RAM so that matrices are streamed, whether that is needed or not; experts stay in memory. Returns
    /// also the tokens that are computed at once.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub(crate) fn stream(
        &self,
        wishes: StreamWishes,
        context: &dyn Fn(u32, u32) -> MemoryEstimate,
    ) -> Result<(Streamed, u32)> {
        let shared = self.share(wishes, self.weights.experts, context);
        shared.ok_or_else(|| self.refusal(context))
    }

    /// Chooses what is streamed, beside so many bytes that stay, and how many tokens are computed at once: as many as leave
    /// room for all matrices; if there is none, as many as the RAM has a little part for, or fewer if otherwise nothing fits.
    fn share(
        &self,
        wishes: StreamWishes,
        stay: u64,
        context: &dyn Fn(u32, u32) -> MemoryEstimate,
    ) -> Option<(Streamed, u32)> {
        let cheap = |n_ubatch: &u32| {
            let activations = context(self.n_ctx, *n_ubatch).activations;
            *n_ubatch == LEAST_UBATCH || activations <= self.ram / ACTIVATIONS_PART
        };
        let choose = |n_ubatch| {
            let left = self.left(n_ubatch, context)?.checked_sub(stay)?;
            Some((streamed::choose(&self.weights, left, wishes)?, n_ubatch))
        };
        let mut whole = UBATCHES.into_iter().filter_map(choose);
        let whole = whole.find(|(streamed, _)| streamed.only_rows());
        whole.or_else(|| UBATCHES.into_iter().filter(cheap).find_map(choose))
    }

    /// Tokens that may be computed at once if all weights stay in memory, the most first.
    fn resident_ubatches(&self) -> impl Iterator<Item = u32> {
        UBATCHES.into_iter().take(if self.asked { UBATCHES.len() } else { 1 })
    }

    fn all_weights(&self) -> u64 {
        self.weights.dense.saturating_add(self.weights.experts)
    }

    /// The least pool, if there are experts that may be paged.
    fn pool_floor(&self) -> Option<u64> {
        self.pool_floor.filter(|_| self.weights.experts > 0)
    }

    /// How matrices are streamed, if they may be and would help.
    fn may_stream(&self) -> Option<StreamWishes> {
        self.stream.filter(|_| self.weights.experts == 0 && !self.weights.matrices.is_empty())
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

    /// Bytes that a way to run the model needs with a context of so many tokens.
    fn needed(&self, way: &Way, n_ctx: u32, context: &dyn Fn(u32, u32) -> MemoryEstimate) -> u64 {
        way.weights.saturating_add(self.beside(n_ctx, way.n_ubatch, context))
    }

    /// The way that needs the least with a context of so many tokens.
    fn least_way(&self, n_ctx: u32, context: &dyn Fn(u32, u32) -> MemoryEstimate) -> Way {
        let n_ubatch = self.resident_ubatches().last().unwrap_or(UBATCH);
        let whole = Way { weights: self.all_weights(), n_ubatch };
        let paged = self.pool_floor().map(|floor| Way {
            weights: self.weights.dense.saturating_add(floor),
            n_ubatch: UBATCH_PAGED,
        });
        let streamed = self
            .may_stream()
            .map(|_| Way { weights: streamed::least(&self.weights), n_ubatch: LEAST_UBATCH });
        // Of equal ones the first.
        let others = paged.into_iter().chain(streamed);
        others.fold(whole, |least, way| {
            let less = self.needed(&way, n_ctx, context) < self.needed(&least, n_ctx, context);
            if less { way } else { least }
        })
    }

    fn refusal(&self, context: &dyn Fn(u32, u32) -> MemoryEstimate) -> Error {
        let way = self.least_way(self.n_ctx, context);
        let needed = self.needed(&way, self.n_ctx, context);
        let what = match (self.pool_floor(), self.may_stream()) {
            (None, Some(_)) => "weights that stay in memory, with a zone for the others,",
            _ => "weights that every token uses",
        };
        let shown = if self.pool_floor().is_some() { self.weights.dense } else { way.weights };
        let mut message = format!(
            "{} of RAM are too little: at least {} are needed, of which {what} take {}, a context of {} tokens {}, the \
             program {}",
            human(self.ram),
            human(needed),
            human(shown),
            self.n_ctx,
            human(context(self.n_ctx, way.n_ubatch).in_use()),
            human(self.program),
        );
        if self.pool_floor().is_some() {
            message += &format!(
                ", and the pool of experts at least {} (all experts {})",
                human(way.weights.saturating_sub(self.weights.dense)),
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
        let fits = |blocks: u32| {
            let n_ctx = blocks * 256;
            self.needed(&self.least_way(n_ctx, context), n_ctx, context) <= self.ram
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
            asked: true,
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
        needs.split(&context).unwrap().0
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
        let with = |needs: Needs, ram| Needs { ram, ..needs }.split(&context).unwrap();
        let exact = |n_ubatch| 2850 * MIB + in_use(4096, n_ubatch);
        assert_eq!(with(needs(), u64::MAX), (Split::Resident, UBATCH));
        assert_eq!(with(needs(), exact(UBATCH)), (Split::Resident, UBATCH));
        // Fewer tokens at once are better than reading.
        assert_eq!(with(needs(), exact(UBATCH) - 1), (Split::Resident, 256));
        assert_eq!(with(needs(), exact(LEAST_UBATCH)), (Split::Resident, LEAST_UBATCH));
        let more = in_use(4096, UBATCH_PAGED) - in_use(4096, LEAST_UBATCH);
        let pool = 2500 * MIB - 1 - more;
        let paged = with(needs(), exact(LEAST_UBATCH) - 1);
        assert_eq!(paged, (Split::Paged(pool), UBATCH_PAGED));
        // Where nobody has said how much there is, the same is computed at any time.
        let unasked = Needs { asked: false, ..needs() };
        let (split, n_ubatch) = with(unasked, exact(UBATCH) - 1);
        assert!(matches!(split, Split::Paged(_)), "{split:?}");
        assert_eq!(n_ubatch, UBATCH_PAGED);
        let exact = 1050 * MIB + in_use(4096, LEAST_UBATCH);
        assert_eq!(with(dense(), exact), (Split::Resident, LEAST_UBATCH));
        assert!(matches!(with(dense(), exact - 1).0, Split::Streamed(_)));
    }

    #[test]
    fn activations_take_a_little_part_of_the_ram() {
        // Eight times as many.
        let wide = |n_ctx, n_ubatch| {
            let estimate = context(n_ctx, n_ubatch);
            MemoryEstimate { activations: estimate.activations * 8, ..estimate }
        };
        let activations = |n_ubatch| wide(4096, n_ubatch).activations;
        for (ram, expected) in [
            (activations(512) * ACTIVATIONS_PART, 512),
            (activations(512) * ACTIVATIONS_PART - 1, 256),
            (activations(256) * ACTIVATIONS_PART - 1, 128),
            (activations(128) * ACTIVATIONS_PART - 1, 128),
        ] {
            let matrix = |matrix| Matrix { bytes: 110 * MIB, ..matrix };
            let matrices = dense().weights.matrices.into_iter().map(matrix).collect();
            let weights = Weights { dense: 10_000 * MIB, matrices, ..dense().weights };
            let needs = Needs { ram, weights, ..dense() };
            let (split, n_ubatch) = needs.split(&wide).unwrap();
            assert!(matches!(split, Split::Streamed(_)), "{split:?}");
            assert_eq!(n_ubatch, expected);
            let (_, n_ubatch) = needs.stream(StreamWishes::default(), &wide).unwrap();
            assert_eq!(n_ubatch, expected);
        }
        // Without a limit nothing is saved.
        let free = Needs { ram: u64::MAX, asked: false, ..dense() };
        assert_eq!(free.stream(StreamWishes::default(), &wide).unwrap().1, UBATCH);
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
        let left = 850 * MIB - in_use(4096, UBATCH);
        assert!(streamed.resident + streamed.zone <= left);
        assert!(streamed.resident + streamed.zone > left - 10 * MIB);
        // Just enough for one matrix, and one byte less.
        let beside = 50 * MIB + in_use(4096, LEAST_UBATCH);
        let exact = beside + streamed::least(&dense().weights);
        let Split::Streamed(streamed) = split(&Needs { ram: exact, ..dense() }) else { panic!() };
        assert_eq!(streamed.names.len(), 91);
        let (needed, message) = refusal(&Needs { ram: exact - 1, ..dense() });
        assert_eq!(needed, exact);
        assert!(message.contains("weights that stay in memory, with a zone"), "{message}");
        let (needed, message) = refusal(&Needs { stream: None, ..dense() });
        assert_eq!(needed, 1050 * MIB + in_use(4096, LEAST_UBATCH));
        assert!(!message.contains("expert") && !message.contains("zone"), "{message}");
    }

    #[test]
    fn activations_take_nothing_from_matrices_that_all_stay() {
        let all_but_table = 50 * MIB + 920 * MIB + (1 << 19);
        for n_ubatch in UBATCHES {
            let ram = all_but_table + in_use(4096, n_ubatch);
            let (split, chosen) = Needs { ram, ..dense() }.split(&context).unwrap();
            let Split::Streamed(streamed) = split else { panic!() };
            assert!(streamed.only_rows());
            assert_eq!(chosen, n_ubatch);
        }
        let ram = all_but_table + in_use(4096, LEAST_UBATCH) - 1;
        let (split, _) = Needs { ram, ..dense() }.split(&context).unwrap();
        assert!(matches!(split, Split::Streamed(streamed) if !streamed.only_rows()));
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

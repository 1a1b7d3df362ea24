//! Decides where a model's weights are: all in memory or mapped, paged, or streamed.

use smol_engine::expert::PoolSize;
use smol_gguf::{Metadata, Value};

use crate::context_builder::{UBATCH, UBATCH_PAGED};
use crate::error::Result;
use crate::expert_pager::ExpertPager;
use crate::experts::RoutedExperts;
use crate::files::ModelFiles;
use crate::memory::MemoryEstimate;
use crate::paging::Paging;
use crate::plan::{
    MemoryParts, MemoryPlan, Needs, PlanMode, PlannedContext, Split, StreamWishes, Streamed,
    Weights, program_bytes, usable_ram,
};
use crate::weight_stream::WeightStream;

/// Bytes of a pager's threads and tables.
const PAGER_BYTES: u64 = 6 << 20;

/// What was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Wishes<'a> {
    /// RAM for the process.
    pub(crate) ram: Option<u64>,
    /// The context that it has to hold as well.
    pub(crate) planned: PlannedContext,
    /// A pager for experts.
    pub(crate) pager: Option<&'a ExpertPager>,
    /// A stream of weights.
    pub(crate) stream: Option<&'a WeightStream>,
    /// Threads that read experts if no pager was asked for.
    pub(crate) readers: Option<usize>,
    /// Whether a dense model that does not fit into `ram` may be streamed.
    pub(crate) may_stream: bool,
    /// Whether packed weights are read from a cache.
    pub(crate) cached: bool,
}

/// Where the weights are.
pub(crate) enum Placement {
    /// As the load mode says.
    Whole,
    /// Experts are read when they are needed, into a pool of so many bytes.
    Paged(u64),
    /// Matrices are read when they are needed.
    Streamed(Streamed),
}

/// Where the weights are, and what that was decided by.
pub(crate) struct Decision {
    pub(crate) placement: Placement,
    /// Tokens that are computed at once, unless a context is asked for another number.
    pub(crate) n_ubatch: u32,
    /// What the pool of paged experts will hold.
    pool: PoolSize,
    /// The RAM in `needs` is without limit if nothing is known about it.
    pub(crate) needs: Needs,
    pub(crate) ram: Option<u64>,
}

/// The context that is planned, of a model that is not loaded yet.
pub(crate) fn context_estimate(
    files: &ModelFiles,
    metadata: &Metadata,
    planned: PlannedContext,
) -> impl Fn(u32, u32) -> MemoryEstimate {
    let n_tensors = files.shards().tensors().count() as u64;
    move |n_ctx, n_ubatch| planned.estimate(metadata, n_tensors, n_ctx, n_ubatch)
}

/// Bytes of what a pager has beside its pool: the routers once more, to guess what they will choose, and its tables.
fn router_bytes(routed: &RoutedExperts, metadata: &Metadata) -> u64 {
    let width = metadata.arch_get("embedding_length").and_then(Value::as_u64).unwrap_or(0);
    let experts: u64 = routed.layers.iter().map(|layer| u64::from(layer.experts)).sum();
    experts.saturating_mul(width).saturating_mul(4).saturating_add(PAGER_BYTES)
}

/// Decides for a model, whose weights this thread has [chosen](crate::ffi::layouts::choose) layouts for. `routed` are the
/// experts that may be paged.
pub(crate) fn decide(
    files: &ModelFiles,
    metadata: &Metadata,
    routed: Option<&RoutedExperts>,
    wishes: Wishes<'_>,
) -> Result<Decision> {
    let pager = wishes.pager.cloned().unwrap_or_else(|| ExpertPager::read_by(wishes.readers));
    let paging = routed.map(|routed| Paging::new(files, metadata, routed, pager.io)).transpose()?;
    let (pool, floor) = match &paging {
        Some(paging) => (paging.asked_pool(&pager)?, Some(paging.least_pool(&pager)?)),
        None => (None, None),
    };
    let ram = match (wishes.stream, wishes.ram) {
        // Nothing but the stream's own options limits it.
        (Some(_), None) => None,
        _ => usable_ram(wishes.ram),
    };
    let needs = Needs {
        ram: ram.unwrap_or(u64::MAX),
        asked: wishes.ram.is_some(),
        weights: Weights { packed: wishes.cached, ..Weights::find(files.shards(), metadata) },
        pool_floor: pool.or(floor),
        stream: wishes.may_stream.then(StreamWishes::default),
        n_ctx: wishes.planned.n_ctx(metadata),
        program: program_bytes(metadata, files.shards().tensors().count() as u64)
            .saturating_add(routed.map_or(0, |routed| router_bytes(routed, metadata))),
    };
    let context = context_estimate(files, metadata, wishes.planned);
    if let Some(stream) = wishes.stream {
        // Without a word about memory only that stays which has to.
        let nothing = if wishes.ram.is_none() { Some(0) } else { None };
        let resident = stream.resident.asked().or(nothing);
        let stream = StreamWishes { zone: stream.zone.asked(), resident };
        let (streamed, n_ubatch) = needs.stream(stream, &context)?;
        let placement = match streamed.names.is_empty() {
            true => Placement::Whole,
            false => Placement::Streamed(streamed),
        };
        return Ok(Decision { placement, n_ubatch, pool: PoolSize::default(), needs, ram });
    }
    let asked = wishes.ram.is_some() || wishes.pager.is_some();
    let (split, n_ubatch) = match needs.split(&context) {
        Ok(split) => split,
        // A pool is as large as it was asked to be, whatever there is.
        Err(_) if pool.is_some() && wishes.ram.is_none() => (Split::Resident, UBATCH),
        // Nobody has asked for anything: what does not fit is mapped.
        Err(_) if !asked => (Split::Resident, UBATCH),
        Err(error) => return Err(error),
    };
    let placement = match (pool, split) {
        (_, Split::Streamed(streamed)) => Placement::Streamed(streamed),
        (Some(pool), _) | (None, Split::Paged(pool)) => Placement::Paged(pool),
        (None, Split::Resident) if paging.is_some() && wishes.pager.is_some() => {
            Placement::Paged(u64::MAX)
        }
        (None, Split::Resident) => Placement::Whole,
    };
    let (pool, n_ubatch) = match (&paging, &placement) {
        (Some(paging), Placement::Paged(budget)) => {
            (paging.pool_size(&pager, *budget)?, UBATCH_PAGED)
        }
        _ => (PoolSize::default(), n_ubatch),
    };
    Ok(Decision { placement, n_ubatch, pool, needs, ram })
}

impl Decision {
    /// The plan without advice. `mapped`: whether weights that stay are mapped; `context` estimates one of so many tokens,
    /// of which so many are computed at once.
    pub(crate) fn plan(
        &self,
        mapped: bool,
        context: &dyn Fn(u32, u32) -> MemoryEstimate,
    ) -> MemoryPlan {
        let needs = &self.needs;
        let (mode, read, resident) = self.outline(mapped);
        let context = context(needs.n_ctx, self.n_ubatch);
        let mut parts = MemoryParts {
            weights: resident,
            kv_cache: context.resident(),
            compute: context.activations,
            program: needs.program,
            ..MemoryParts::default()
        };
        match mode {
            PlanMode::Paged { pool, .. } => parts.experts = pool,
            PlanMode::Streamed { zone, .. } => parts.zones = zone,
            PlanMode::Resident | PlanMode::Mapped => {}
        }
        MemoryPlan {
            ram: self.ram,
            mode,
            parts,
            n_ctx: needs.n_ctx,
            n_ubatch: self.n_ubatch.min(needs.n_ctx),
            flash_mb_per_token: read as f64 / 1e6,
            ram_mb_per_token: needs.weights.used() as f64 / 1e6,
            advice: Vec::new(),
        }
    }

    /// What a plan says of it: where weights are, bytes that a token reads from the file, bytes that stay.
    pub(crate) fn outline(&self, mapped: bool) -> (PlanMode, u64, u64) {
        let weights = &self.needs.weights;
        let all = weights.dense.saturating_add(weights.experts);
        match &self.placement {
            Placement::Whole if mapped => {
                // What does not fit is read again for each token.
                let read = if all > self.needs.ram { weights.used() } else { 0 };
                (PlanMode::Mapped, read, all.min(self.needs.ram))
            }
            Placement::Whole => (PlanMode::Resident, 0, all),
            Placement::Paged(_) => {
                let PoolSize { bytes: pool, slots, experts, .. } = self.pool;
                let missing = experts.saturating_sub(slots) as f64 / experts.max(1) as f64;
                let read = weights.experts_used.1 as f64 * missing;
                (PlanMode::Paged { pool, slots, experts }, read as u64, weights.dense)
            }
            Placement::Streamed(streamed) => {
                let mode = PlanMode::Streamed {
                    tensors: streamed.names.clone(),
                    table: streamed.table,
                    zone: streamed.zone,
                };
                // Experts stay in memory.
                let resident = streamed.resident.saturating_add(weights.experts);
                (mode, streamed.read, resident)
            }
        }
    }
}

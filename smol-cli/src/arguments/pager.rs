//! Memory: how much there is, and the weights that are read when they are needed.

use super::pack_cache::PackCacheArgs;
use super::sampling::number;
use super::stream::StreamArgs;
use crate::failure::Failure;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use smolmaxxing::{
    ByteSize, Error, ErrorKind, ExpertPager, ModelBuilder, PagerStatistics, Policy, PoolBudget,
    Prefetch, Scope,
};
use std::path::PathBuf;
use std::str::FromStr;

/// Settings of memory, of the expert pager and of the weight stream.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Memory")]
pub struct PagerArgs {
    /// RAM for everything together, as 900MiB or 1.5GB; experts (of a mixture) or matrices (of other
    /// models) that do not fit are read from the file when they are needed
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    ram: Option<ByteSize>,
    /// Experts of each layer that are kept in memory [default: as many as fit]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    expert_pool: Option<u32>,
    /// Which expert leaves memory for another one [default: decayed]
    #[arg(long, value_name = "POLICY",
        value_parser = names::<Policy, 4>(Policy::ALL.map(Policy::name)))]
    expert_policy: Option<Policy>,
    /// Which experts compete for the same memory: those of a layer, or all [default: layer]
    #[arg(long, value_name = "SCOPE",
        value_parser = names::<Scope, 2>(Scope::ALL.map(Scope::name)))]
    expert_scope: Option<Scope>,
    /// Prefer experts in memory by so much, 0 to 16 (0.03 is little, 0.3 is much); changes what
    /// the model says [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, 0.0..=16.0))]
    expert_bias: Option<f32>,
    /// Best experts that are used whatever --expert-bias is [default: 1]
    #[arg(long, value_name = "J", allow_negative_numbers = true, requires = "expert_bias",
        value_parser = clap::value_parser!(u32).range(..=1024))]
    expert_keep_top: Option<u32>,
    /// Experts that each token uses, at most as many as the file says; fewer are faster and worse
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    experts: Option<u32>,
    /// Guess the experts of the next layers and read them ahead; `auto` while that pays
    /// [default: auto]
    #[arg(long, value_name = "WHEN",
        value_parser = names::<Prefetch, 3>(Prefetch::ALL.map(Prefetch::name)))]
    prefetch: Option<Prefetch>,
    /// Read the experts that a trace (`smol trace record`) uses most when the model is loaded
    #[arg(long, value_name = "FILE")]
    warm: Option<PathBuf>,
    /// Threads that read weights which do not fit into memory [default: up to 4]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    readers: Option<u32>,
    /// Read each expert twice and compare; a difference ends the run with an error
    #[arg(long)]
    pager_verify: bool,
    #[command(flatten)]
    stream: StreamArgs,
    #[command(flatten)]
    cache: PackCacheArgs,
}

/// Takes one of these names, which help texts and completions list.
fn names<T, const N: usize>(names: [&'static str; N]) -> impl TypedValueParser<Value = T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

impl PagerArgs {
    /// Sets up loading of a model.
    pub fn apply(&self, mut model: ModelBuilder) -> ModelBuilder {
        if let Some(ByteSize(ram)) = self.ram {
            model = model.ram(ram);
        }
        if let Some(experts) = self.experts {
            model = model.experts_used(experts);
        }
        if let Some(readers) = self.readers {
            model = model.readers(readers as usize);
        }
        if let Some(stream) = self.stream.stream(self.readers) {
            model = model.weight_stream(stream);
        }
        if let Some(cache) = self.cache.cache() {
            model = model.pack_cache(cache);
        }
        match self.pager() {
            Some(pager) => model.expert_pager(pager),
            None => model,
        }
    }

    /// The pager, if anything about it was said. With nothing but --ram the library decides whether one is needed.
    fn pager(&self) -> Option<ExpertPager> {
        let mut pager = ExpertPager::default();
        let default = pager.clone();
        if let Some(slots) = self.expert_pool {
            pager.budget = PoolBudget::Slots(slots);
        }
        pager.policy = self.expert_policy.unwrap_or(default.policy);
        pager.scope = self.expert_scope.unwrap_or(default.scope);
        pager.bias = self.expert_bias.unwrap_or(default.bias);
        pager.keep_top = self.expert_keep_top.map_or(default.keep_top, |top| top as usize);
        pager.prefetch = self.prefetch.unwrap_or(default.prefetch);
        pager.warm.clone_from(&self.warm);
        pager.readers = self.readers.map(|readers| readers as usize);
        pager.verify = self.pager_verify;
        let said = self.expert_pool.is_some()
            || self.expert_policy.is_some()
            || self.expert_scope.is_some()
            || self.expert_bias.is_some()
            || self.prefetch.is_some()
            || self.warm.is_some()
            || self.pager_verify;
        said.then_some(pager)
    }

    /// RAM for everything together, if it is limited.
    pub fn ram(&self) -> Option<u64> {
        self.ram.map(|ram| ram.0)
    }

    /// Whether memory is limited.
    pub fn has_ram(&self) -> bool {
        self.ram.is_some()
    }

    /// Whether which experts are used depends on what is in memory.
    pub fn is_biased(&self) -> bool {
        self.expert_bias.is_some_and(|bias| bias > 0.0)
    }

    /// The options that change what the model says, as they were given; empty if there are none.
    pub fn lossy(&self) -> String {
        let bias = self.expert_bias.filter(|_| self.is_biased());
        let parts = [
            bias.map(|bias| format!("--expert-bias {bias}")),
            self.experts.map(|experts| format!("--experts {experts}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// The same without the options that change what the model says.
    pub fn lossless(&self) -> Self {
        let bias = self.expert_bias.map(|_| 0.0);
        Self { expert_bias: bias, experts: None, ..self.clone() }
    }

    /// Says what to do about a model that does not fit into --ram.
    pub fn explain(&self, error: Error) -> anyhow::Error {
        let (Some(ram), &ErrorKind::OutOfMemory { needed, available }) = (self.ram, error.kind())
        else {
            return error.into();
        };
        // Other limits are not raised by more --ram.
        if available != Some(ram.0) {
            return error.into();
        }
        // Rounded up, and the program is not always of the same size.
        let enough = needed.map(|needed| (needed >> 20) + 2).filter(|mib| *mib > ram.0 >> 20);
        let less = "a smaller context (-c) and --kv-type q8_0 take less";
        let advice = match enough {
            Some(mib) => format!("--ram {mib}MiB would do; {less}"),
            None => less.to_owned(),
        };
        let failure =
            Failure::new(format!("the model does not fit into --ram {ram}")).advice(advice);
        anyhow::Error::new(error).context(failure)
    }
}

/// What the pager has done, on one line.
pub fn pager_line(statistics: &PagerStatistics) -> String {
    let mut line = format!(
        "experts: {:.1} % missed; {:.2} MB read and {:.1} ms waited a token; {:.0} MB of memory, {} reads",
        statistics.miss_rate * 100.0,
        statistics.mb_per_token,
        statistics.wait_ms_per_token,
        statistics.pool_mb,
        statistics.io_mode,
    );
    let ahead = statistics.useful + statistics.late + statistics.wasted;
    if ahead > 0 {
        line += &format!("; of {ahead} read ahead {} came in time", statistics.useful);
    }
    line
}

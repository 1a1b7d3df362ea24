//! Experts that are read when they are needed.

use super::sampling::number;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use smolmaxxing::{
    ExpertPager, ModelBuilder, PagerStatistics, Policy, PoolBudget, Prefetch, Scope,
};
use std::path::PathBuf;
use std::str::FromStr;

/// Settings of the expert pager.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PagerArgs {
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
    /// Read each expert twice and compare; a difference ends the run with an error
    #[arg(long)]
    pager_verify: bool,
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
    /// Sets up loading of a model, whose experts so many threads read.
    pub fn apply(&self, mut model: ModelBuilder, readers: Option<u32>) -> ModelBuilder {
        if let Some(experts) = self.experts {
            model = model.experts_used(experts);
        }
        match self.pager(readers) {
            Some(pager) => model.expert_pager(pager),
            None => model,
        }
    }

    /// The pager, if anything about it was said. With nothing but --ram the library decides whether one is needed.
    fn pager(&self, readers: Option<u32>) -> Option<ExpertPager> {
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
        pager.readers = readers.map(|readers| readers as usize);
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

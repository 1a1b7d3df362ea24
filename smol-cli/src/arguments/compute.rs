//! Context, batches and threads.

use crate::failure::notice;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use smol_engine::machine::Cpu;
use smolmaxxing::plan::PlannedContext;
use smolmaxxing::{CancelToken, Context, KvType, Model, Result};

/// Settings of the context.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Computing")]
pub struct ComputeArgs {
    /// Context in tokens: prompt and answer together [default: the model's, at most 4096]
    #[arg(short, long, value_name = "TOKENS", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
    /// Most tokens of a prompt that are computed at once; fewer take less memory [default: what suits
    /// the memory, at most 512, or 1024 where experts are paged]
    #[arg(short, long, value_name = "TOKENS", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Type of the KV cache, which the context fills; q8_0 takes about half the memory of f16
    /// [default: f16]
    #[arg(long, value_name = "TYPE", value_parser = PossibleValuesParser::new(
        KvType::ALL.map(KvType::as_str)).map(|name| KvType::from_name(&name).unwrap_or_default()))]
    kv_type: Option<KvType>,
    /// Threads [default: as many as there are big cores]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
}

impl ComputeArgs {
    /// Returns what is known of the context before the model is loaded.
    pub fn planned(&self) -> PlannedContext {
        let kv = self.kv_type.unwrap_or_default();
        PlannedContext {
            n_ctx: self.ctx,
            n_batch: self.batch,
            type_k: kv,
            type_v: kv,
            ..PlannedContext::default()
        }
    }

    /// Makes a context for the model with these settings; `cancel` stops its work.
    pub fn build(&self, model: &Model, cancel: &CancelToken) -> Result<Context> {
        let mut context = model.context().cancel(cancel);
        if let Some(n_ctx) = self.ctx {
            context = context.n_ctx(n_ctx);
        }
        if let Some(n_batch) = self.batch {
            context = context.n_batch(n_batch);
        }
        if let Some(kv) = self.kv_type {
            context = context.kv_type(kv, kv);
        }
        let threads = clamped_threads(self.threads);
        context = context.threads(threads, threads);
        context.build()
    }
}

/// Returns the number of threads to use: the default, or what was asked for if the machine
/// has so many CPUs. If it has less, that is told.
pub fn clamped_threads(asked: Option<u32>) -> u32 {
    let cpu = Cpu::probe();
    let Some(asked) = asked else { return count(cpu.default_threads()) };
    let most = count(cpu.logical.len());
    if asked > most {
        // More threads than CPUs wait for each other at each barrier.
        notice(format_args!("-t {asked}: this machine has {most} CPUs; using {most} threads"));
    }
    asked.min(most)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX).max(1)
}

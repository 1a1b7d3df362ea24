//! `smol plan`: how a model would run in an amount of memory, and how fast at best.

use crate::arguments::{ComputeArgs, LayoutArgs, MemoryArgs};
use crate::cli::Global;
use crate::model::ModelArg;
use crate::report::print;
use crate::speeds::{DiskSpeed, RamSpeed, SpeedFile};
use crate::units::bytes;
use anyhow::Result;
use serde::Serialize;
use smolmaxxing::Model;
use smolmaxxing::plan::{Bounds, MemoryPlan, PlanMode};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Tell how a model would run in an amount of memory, and how fast it can be at best
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    // Before what brings headings of its own.
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    layouts: LayoutArgs,
}

#[derive(Serialize)]
struct Report {
    model: PathBuf,
    #[serde(flatten)]
    plan: MemoryPlan,
    /// Sum of the parts, in bytes.
    total: u64,
    flash: Option<DiskSpeed>,
    memory: RamSpeed,
    /// None where flash is needed and could not be measured.
    bounds: Option<Bounds>,
}

/// Prints the plan; a model that does not fit in any way is an error with the reason.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let path = args.model.path(global)?;
    let model = Model::builder(&path).layouts(args.layouts.options(global));
    let model = args.memory.apply(model).planned_context(args.compute.planned());
    let plan = model.plan().map_err(|error| args.memory.explain(error))?;
    let mut speeds = SpeedFile::open(global);
    let flash = (plan.flash_mb_per_token > 0.0).then(|| speeds.disk(&path).ok()).flatten();
    let memory = speeds.ram();
    let flash_mb_s = flash.as_ref().map(|flash| flash.parallel_mb_s);
    let known = flash_mb_s.is_some() || plan.flash_mb_per_token == 0.0;
    let bounds = known.then(|| plan.bounds(flash_mb_s.unwrap_or(f64::INFINITY), memory.mb_s));
    let total = plan.parts.total();
    let report = Report { model: path, plan, total, flash, memory, bounds };
    print(args.json, &report, |out| write!(out, "{}", text(&report)))?;
    Ok(ExitCode::SUCCESS)
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:16} {value}");
    };
    let plan = &report.plan;
    line("model", &report.model.display().to_string());
    line("runs", &mode(&plan.mode));
    let limit = plan.ram.map_or_else(|| "unknown".to_owned(), bytes);
    line("memory", &format!("{} of {limit} at most", bytes(report.total)));
    for (name, size) in [
        ("  weights", plan.parts.weights),
        ("  experts", plan.parts.experts),
        ("  zone", plan.parts.zones),
        ("  KV cache", plan.parts.kv_cache),
        ("  activations", plan.parts.compute),
        ("  program", plan.parts.program),
    ] {
        if size > 0 {
            line(name, &bytes(size));
        }
    }
    line("context", &format!("{} tokens, {} computed at once", plan.n_ctx, plan.n_ubatch));
    let size = |mb: f64| bytes((mb * 1e6).round() as u64);
    let (ram, flash) = (size(plan.ram_mb_per_token), size(plan.flash_mb_per_token));
    line("per token", &format!("{ram} from memory, {flash} from flash"));
    let memory_speed = format!("memory {:.1} GB/s", report.memory.mb_s / 1e3);
    match &report.flash {
        Some(flash) => {
            line("speeds", &format!("flash {:.0} MB/s, {memory_speed}", flash.parallel_mb_s));
        }
        None => line("speeds", &memory_speed),
    }
    let bound = match &report.bounds {
        Some(Bounds { is_limit: false, .. }) => "about",
        _ => "at most",
    };
    match &report.bounds {
        // The time for single rows of a table does not matter.
        Some(Bounds { by_flash: Some(flash), by_ram, tokens_per_s, .. })
            if *flash < 1000.0 * by_ram =>
        {
            let bounds = format!("flash {flash:.1}, memory {by_ram:.1}");
            line(bound, &format!("{tokens_per_s:.1} tokens/s ({bounds})"));
        }
        Some(bounds) => line(bound, &format!("{:.1} tokens/s", bounds.tokens_per_s)),
        None => line(bound, "unknown: the speed of flash could not be measured"),
    }
    if bound == "about" {
        line("", "if all experts are used alike; more where a text uses some of them most");
    }
    for (number, advice) in plan.advice.iter().enumerate() {
        line(if number == 0 { "faster with" } else { "" }, advice);
    }
    text
}

fn mode(mode: &PlanMode) -> String {
    match mode {
        PlanMode::Resident => "with all weights in memory".to_owned(),
        PlanMode::Mapped => "from the mapped file: the system keeps what fits".to_owned(),
        PlanMode::Paged { slots, experts, .. } => {
            format!(
                "with {slots} of {experts} experts in memory, others are read when they are needed"
            )
        }
        PlanMode::Streamed { tensors, table, .. } => {
            match (tensors.len() - usize::from(*table), table) {
                (0, true) => {
                    "with all weights in memory but embeddings, which are read by row".to_owned()
                }
                (matrices, true) => {
                    format!("with {matrices} matrices and rows of embeddings read for each token")
                }
                (matrices, false) => format!("with {matrices} matrices read for each token"),
            }
        }
        _ => "in another way".to_owned(),
    }
}

//! `smol kernels`: whether the packed layouts of weights are right on this machine, and how fast.

mod report;
mod shape;

use crate::arguments::clamped_threads;
use crate::failure::{Failure, notice};
use crate::interrupt;
use crate::progress;
use crate::report::print;
use crate::units::bytes;
use anyhow::Result;
use indicatif::ProgressBar;
use report::{LayoutReport, Report, Skipped, Speed};
use smol_engine::machine::{Cpu, Memory, clock_hz, read_bandwidth};
use smolmaxxing::kernels::{
    self, CheckOptions, Layout, MatrixShape, MeasureOptions, Operation, Pair,
};
use smolmaxxing::{CancelToken, cpu};
use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

/// Check and measure the packed layouts of weights
///
/// Each layout is compared with what stock llama.cpp does with the same random weights: first whether the results are
/// the same, then the speed, both by turns in one run. Exit code 1 if a result is wrong.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only layouts for weights of this type, such as q1_0
    #[arg(long = "type", value_name = "TYPE")]
    weight_type: Option<String>,
    /// Only this layout
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,
    /// CPU level to run, of those that `smol doctor` lists [default: the best]
    #[arg(long, value_name = "LEVEL")]
    isa: Option<String>,
    /// Matrices to measure: ROWSxCOLUMNS, or EXPERTSxROWSxCOLUMNS
    #[arg(long, value_name = "SHAPE", value_delimiter = ',', value_parser = shape::parse,
        default_value = "2048x2048,4096x4096,14336x4096,151669x1024,32x512x1536")]
    shape: Vec<MatrixShape>,
    /// Tokens of the prompt to measure with; fewer where they take too long
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(2..=1 << 16))]
    columns: u32,
    /// Threads
    #[arg(short, long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..))]
    threads: u32,
    /// Most seconds for one measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    time: f64,
    /// Only check the results
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Experts that a token uses, and tokens of a prompt for them.
const EXPERTS_USED: usize = 8;
const EXPERT_TOKENS: usize = 64;
/// Time for measuring how fast a block of memory is read.
const BANDWIDTH_TIME: Duration = Duration::from_millis(60);

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be 0.01 to 600 seconds".to_owned()),
    }
}

/// Checks and measures, and prints the report.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some(level) = &args.isa {
        let advice = "`smol doctor --json` lists the levels; a build with the feature multi-level has several";
        cpu::select(level).map_err(|error| Failure::usage(error.to_string()).advice(advice))?;
    }
    let layouts = chosen(args, kernels::layouts()?)?;
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let threads = clamped_threads(Some(args.threads));
    let measurements = if args.quick { 0 } else { 2 * args.shape.len() };
    let bar = progress::steps("kernels", (layouts.len() * (1 + measurements)) as u64);
    let mut bench = Bench { args, threads, cancel, bar, bandwidths: HashMap::new() };
    let mut report = Report::new(Cpu::probe().name, cpu::selected().name, threads);
    if !args.quick {
        report.clock_ghz = Some(clock_hz() / 1e9);
    }
    for layout in layouts {
        let found = bench.layout(layout)?;
        report.layouts.push(found);
    }
    bench.bar.finish_and_clear();
    print(args.json, &report, |out| write!(out, "{}", report.text()))?;
    Ok(if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The layouts that were asked for.
fn chosen(args: &Args, all: Vec<Layout>) -> Result<Vec<Layout>> {
    let known = |names: Vec<&str>| {
        let mut names = names;
        names.dedup();
        names.join(", ")
    };
    let types: Vec<_> = all.iter().map(|layout| layout.weight_type().name()).collect();
    if let Some(wanted) = &args.weight_type
        && !types.iter().any(|name| name.eq_ignore_ascii_case(wanted))
    {
        let message = format!("no layout packs weights of type `{wanted}` on this CPU level");
        return Err(Failure::usage(message).advice(format!("types: {}", known(types))).into());
    }
    let names: Vec<_> = all.iter().map(Layout::name).collect();
    if let Some(wanted) = &args.layout
        && !names.contains(&wanted.as_str())
    {
        let message = format!("there is no layout `{wanted}` on this CPU level");
        return Err(Failure::usage(message).advice(format!("layouts: {}", known(names))).into());
    }
    let wanted = |layout: &Layout| {
        args.layout.as_ref().is_none_or(|name| name == layout.name())
            && args
                .weight_type
                .as_ref()
                .is_none_or(|name| name.eq_ignore_ascii_case(layout.weight_type().name()))
    };
    let chosen: Vec<_> = all.iter().copied().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(Failure::usage("that layout is for weights of another type").into());
    }
    Ok(chosen)
}

struct Bench<'a> {
    args: &'a Args,
    threads: u32,
    cancel: CancelToken,
    bar: ProgressBar,
    /// Bytes a second, by the size of the block.
    bandwidths: HashMap<usize, f64>,
}

impl Bench<'_> {
    fn layout(&mut self, layout: Layout) -> Result<LayoutReport> {
        self.bar.set_message(format!("{}: results", layout.name()));
        let options = CheckOptions {
            threads: self.threads,
            cancel: self.cancel.clone(),
            ..CheckOptions::default()
        };
        let mut report = LayoutReport::new(layout, kernels::check(layout, &options)?);
        self.bar.inc(1);
        if self.args.quick {
            return Ok(report);
        }
        if !report.is_right() {
            // How fast a wrong result is there does not matter.
            self.bar.inc(2 * self.args.shape.len() as u64);
            return Ok(report);
        }
        for &shape in &self.args.shape {
            self.bar.set_message(format!("{}: {shape}", layout.name()));
            if let Some(reason) = unfit(layout, shape) {
                notice(format_args!("{} {shape}: {reason}", layout.name()));
                report.skipped.push(Skipped { shape: shape.to_string(), reason });
                self.bar.inc(2);
                continue;
            }
            let pair = Pair::new(layout, shape)?;
            for prompt in [false, true] {
                let speed = self.measure(&pair, prompt)?;
                report.add(speed);
                self.bar.inc(1);
            }
        }
        Ok(report)
    }

    fn measure(&mut self, pair: &Pair, prompt: bool) -> Result<Speed> {
        let experts = pair.ours().shape().experts;
        let used = experts.map(|experts| experts.min(EXPERTS_USED));
        let operation = |tokens| match used {
            Some(used) => Operation::experts(tokens, used, 1),
            None => Operation::product(tokens),
        };
        let options = MeasureOptions {
            threads: self.threads,
            time: Duration::from_secs_f64(self.args.time),
            cancel: self.cancel.clone(),
        };
        let mut tokens = 1;
        if prompt {
            let most = if used.is_some() { EXPERT_TOKENS } else { self.args.columns as usize };
            // Both ways at least three times, and once to warm up.
            tokens = pair.affordable(operation, most, options.time / 4, self.threads)?;
        }
        let measured = pair.measure(&operation(tokens), &options)?;
        let bytes = pair.ours().bytes() / experts.unwrap_or(1) * used.unwrap_or(1);
        // Of several tokens the weights are read less often than they are used.
        let bandwidth = (!prompt).then(|| self.bandwidth(pair.ours().bytes()));
        Ok(Speed::new(pair, &operation(tokens), tokens, &measured, bytes, bandwidth))
    }

    fn bandwidth(&mut self, bytes: usize) -> f64 {
        let threads = self.threads as usize;
        *self
            .bandwidths
            .entry(bytes)
            .or_insert_with(|| read_bandwidth(bytes, threads, BANDWIDTH_TIME))
    }
}

/// Why a matrix is not measured.
fn unfit(layout: Layout, shape: MatrixShape) -> Option<String> {
    let multiple = layout.column_multiple();
    let Some(packed) = layout.packed_bytes(shape.columns, shape.rows) else {
        return Some(format!("rows of this layout have a multiple of {multiple} weights"));
    };
    // Packed, as stock keeps them, and the bytes that both are made of.
    let needed = packed.saturating_mul(shape.experts.unwrap_or(1)).saturating_mul(4) as u64;
    let usable = Memory::probe().usable()?;
    (needed > usable)
        .then(|| format!("needs {}, and {} of memory are left", bytes(needed), bytes(usable)))
}

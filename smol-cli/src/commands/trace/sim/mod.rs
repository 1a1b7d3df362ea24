//! `smol trace sim`: what other pools and policies would have missed.

mod report;
mod sizes;

use crate::arguments::check_output;
use crate::failure::{Failure, notice};
use crate::progress;
use crate::report::print;
use anyhow::{Context as _, Result};
use report::{Report, Row};
use sizes::Sizes;
use smol_engine::expert::Scope;
use smol_engine::expert::simulate::{Simulation, Strategy, recorded_compute, recorded_flash};
use smol_engine::expert::trace::{Error, Trace};
use smol_engine::threads::at_once;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Simulate other pools and policies on a trace
///
/// Plays a trace back with the pager's own policies, and with the best that could be done: belady
/// knows the future and sends away what is not needed for longest. The speeds follow from the
/// bytes: `tokens/s` if reads and computing take turns, `at most` if they overlap all the time.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Trace that `smol trace record` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Experts of each layer in memory: N, FROM..TO or FROM..TO:STEP, several with commas
    /// [default: an eighth to all]
    #[arg(long, value_name = "SIZES", allow_hyphen_values = true)]
    pool: Option<Sizes>,
    /// Policies: lru, lfu, decayed, slru, belady, several with commas, or all
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "all",
        value_parser = policies)]
    policy: Vec<Policies>,
    /// Which experts compete for the same memory: those of a layer, or all
    #[arg(long, value_name = "SCOPE", default_value_t, value_parser = scope)]
    scope: Scope,
    /// Speed of the flash in MB (10^6 bytes) a second [default: that of the trace's reads]
    #[arg(long, value_name = "MB/s", allow_negative_numbers = true, value_parser = flash)]
    flash: Option<f64>,
    /// Milliseconds that a token takes without reads [default: the median of the trace's]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = compute)]
    compute: Option<f64>,
    /// Tokens at the start that fill the pool and do not count
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: u64,
    /// Draw miss rate and speed into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One or all of the strategies.
#[derive(Debug, Clone)]
struct Policies(Vec<Strategy>);

fn policies(name: &str) -> Result<Policies, String> {
    match name {
        "all" => Ok(Policies(Strategy::all().collect())),
        name => match name.parse() {
            Ok(strategy) => Ok(Policies(vec![strategy])),
            Err(error) => Err(format!("{error}, or all")),
        },
    }
}

fn scope(name: &str) -> Result<Scope, String> {
    name.parse().map_err(|error: smol_engine::expert::scope::UnknownScope| error.to_string())
}

fn flash(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(speed) if (0.001..=1e6).contains(&speed) => Ok(speed),
        _ => Err("it must be 0.001 to 1000000 MB/s".to_owned()),
    }
}

fn compute(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(time) if (0.0..=1e7).contains(&time) => Ok(time),
        _ => Err("it must be 0 to 10000000 ms".to_owned()),
    }
}

/// Simulates, and prints the report.
pub fn run(args: &Args) -> Result<ExitCode> {
    let trace = read(args)?;
    let layers = &trace.header.layers;
    let most = layers.iter().map(|layer| layer.experts).max().unwrap_or(1);
    let least = layers.iter().map(|layer| layer.used).min().unwrap_or(1).min(most);
    let asked = args.pool.clone().unwrap_or_else(|| Sizes::eighths(most));
    let (sizes, changed) = asked.clamped(least, most);
    if changed && args.pool.is_some() {
        notice(format_args!("a pool holds {least} to {most} experts of each layer of this model"));
    }
    let mut strategies: Vec<Strategy> = Vec::new();
    for strategy in args.policy.iter().flat_map(|policies| &policies.0) {
        if !strategies.contains(strategy) {
            strategies.push(*strategy);
        }
    }
    let flash = args.flash.map(|speed| speed * 1e6).or_else(|| recorded_flash(&trace));
    let compute = args.compute.map(|time| time / 1e3).or_else(|| recorded_compute(&trace));
    let simulation = Simulation::new(&trace, args.scope).skip(args.skip);
    let pairs: Vec<_> = { sizes.iter() }
        .flat_map(|size| strategies.iter().map(|strategy| (*size, *strategy)))
        .collect();
    let mut report = Report::new(&args.file, &trace, args.scope, flash, compute);
    // The simulation has what it needs of it.
    drop(trace);
    report.rows = simulate(&simulation, &pairs, &report);
    if let Some(path) = &args.svg {
        check_output(path, [&*args.file])?;
        let svg = report.plot(&strategies).svg();
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(args.json, &report, |out| write!(out, "{}", report.text()))?;
    if !args.json && flash.is_none() {
        notice(
            "the trace has no reads to tell the flash's speed from: --flash MB/s gives tokens/s",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the trace, up to where it is damaged.
fn read(args: &Args) -> Result<Trace> {
    let trace = Trace::read(&args.file).map_err(|error| {
        let failure = Failure::new(error.to_string());
        match &error {
            Error::NotATrace { .. } => {
                anyhow::Error::new(failure.advice("`smol trace record` writes one"))
            }
            Error::Damaged { .. } | Error::Version { .. } => anyhow::Error::new(failure),
            _ => anyhow::Error::new(error),
        }
    })?;
    let tokens: usize = trace.graphs.iter().map(|graph| graph.tokens()).sum();
    if let Some(damage) = &trace.damage {
        notice(format_args!("{damage}; the {tokens} tokens before it are used"));
    }
    if tokens == 0 {
        let file = args.file.display();
        return Err(Failure::new(format!("{file}: there is no token in the trace")).into());
    }
    if args.skip >= tokens as u64 {
        let message = format!("--skip {}: the trace has {tokens} tokens", args.skip);
        return Err(Failure::usage(message).into());
    }
    Ok(trace)
}

/// Runs all pairs, on all processors, and returns their results in the same order.
fn simulate(simulation: &Simulation, pairs: &[(u32, Strategy)], report: &Report) -> Vec<Row> {
    let bar = progress::steps("simulating", pairs.len() as u64);
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(vec![None; pairs.len()]);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(size, strategy)) = pairs.get(at) else { return };
            let outcome = simulation.run(strategy, size as usize);
            let row = report.row(size, strategy, simulation.memory_bytes(size as usize), &outcome);
            rows.lock().expect("no thread panics with the lock")[at] = Some(row);
            bar.inc(1);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(pairs.len());
    at_once(0..threads, |_| work());
    bar.finish_and_clear();
    rows.into_inner().expect("no thread panics with the lock").into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_the_command_line() {
        assert_eq!(policies("all").unwrap().0.len(), 5);
        assert_eq!(policies("belady").unwrap().0, [Strategy::Optimum]);
        assert!(policies("mru").unwrap_err().ends_with("belady, or all"));
        assert_eq!(scope("global"), Ok(Scope::Global));
        assert_eq!(flash("278"), Ok(278.0));
        assert_eq!(compute("0"), Ok(0.0));
        for wrong in ["nan", "inf", "-1", "", "x", "1e99"] {
            assert!(flash(wrong).is_err() && compute(wrong).is_err(), "{wrong}");
        }
        assert!(flash("0").is_err());
    }
}

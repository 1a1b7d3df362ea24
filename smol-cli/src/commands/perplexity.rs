//! `smol perplexity`: how well a model predicts a text.

use crate::arguments::{
    EngineStatistics, LayoutArgs, LayoutReport, MemoryArgs, clamped_threads, load_model, read_text,
};
use crate::cli::Global;
use crate::failure::{Failure, notice};
use crate::interrupt;
use crate::model::ModelArg;
use crate::progress;
use crate::running::Running;
use anyhow::Result;
use serde::Serialize;
use smolmaxxing::CancelToken;
use smolmaxxing::perplexity::{Perplexity, PerplexityOptions, perplexity};
use std::io::{self, IsTerminal as _, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measure how well a model predicts a text
///
/// Perplexity is computed the way llama-perplexity does: the text is cut into chunks of CTX
/// tokens, and the second half of each is scored. With --expert-bias or --experts, which change
/// what a model says, it is computed again without them, and their cost is told. With
/// --expert-bias tokens are computed one at a time, as when text is generated.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    layouts: LayoutArgs,
    /// Text to predict
    #[arg(short, long, value_name = "TEXT")]
    file: PathBuf,
    /// Tokens of a chunk
    #[arg(short, long, value_name = "TOKENS", default_value_t = 512,
        value_parser = clap::value_parser!(u32).range(4..))]
    ctx: u32,
    /// Most chunks [default: all of the text]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Threads [default: as many as there are big cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryArgs,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    score: Score,
    tokens: usize,
    scored_tokens: usize,
    scored_bytes: usize,
    /// What a pruned vocabulary head lacks; the other figures leave it out.
    outside_tokens: usize,
    outside_bytes: usize,
    chunks: usize,
    layouts: LayoutReport,
    /// The same without the options that change what the model says, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<Score>,
    /// Perplexity as a multiple of the baseline's.
    #[serde(skip_serializing_if = "Option::is_none")]
    perplexity_ratio: Option<f64>,
}

#[derive(Serialize)]
struct Score {
    perplexity: f64,
    stderr: f64,
    bits_per_byte: f64,
    #[serde(flatten)]
    engines: EngineStatistics,
}

/// What one pass over the text has found.
struct Pass {
    result: Perplexity,
    layouts: LayoutReport,
    engines: EngineStatistics,
}

impl Pass {
    fn score(&self) -> Score {
        Score {
            perplexity: self.result.perplexity,
            stderr: self.result.stderr,
            bits_per_byte: self.result.bits_per_byte,
            engines: self.engines.clone(),
        }
    }
}

/// Measures and prints the perplexity.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let text = read_text(&args.file)?;
    if text.is_empty() {
        return Err(Failure::usage(format!("{} is empty", args.file.display())).into());
    }
    let path = args.model.path(global)?;
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let _running = Running::start(global, "perplexity", &path, args.memory.ram());
    let lossy = args.memory.pager.lossy();
    if !lossy.is_empty() && io::stderr().is_terminal() {
        notice(format_args!("two passes over the text: with {lossy}, and without"));
    }
    let measure = |memory: &MemoryArgs| measure(args, global, memory, &path, &text, &cancel);
    let pass = measure(&args.memory)?;
    let baseline = (!lossy.is_empty()).then(|| measure(&args.memory.lossless())).transpose()?;
    print(args, pass, baseline)?;
    Ok(ExitCode::SUCCESS)
}

/// Loads the model and goes over the text once.
fn measure(
    args: &Args,
    global: &Global,
    memory: &MemoryArgs,
    path: &Path,
    text: &str,
    cancel: &CancelToken,
) -> Result<Pass> {
    let threads = clamped_threads(args.threads);
    let options = PerplexityOptions {
        chunk: args.ctx as usize,
        max_chunks: args.chunks.map(|chunks| chunks as usize),
        threads: Some(threads as usize),
        // Both passes alike: what differs between them is the options' cost and nothing else.
        one_by_one: args.memory.pager.is_biased(),
        // Several chunks at once are faster, but each needs memory for its logits.
        chunks_at_once: args.memory.has_ram().then_some(1),
    };
    let model = load_model(path, cancel, |model| {
        let model = memory.apply(model.layouts(args.layouts.options(global)));
        model.planned_context(options.planned())
    });
    let model = model.map_err(|error| memory.explain(error))?;
    let context = options.context(&model)?.threads(threads, threads).cancel(cancel);
    let mut context = context.build().map_err(|error| memory.explain(error))?;
    let bar = progress::steps("perplexity", 0);
    let result = perplexity(&mut context, text, &options, |progress| {
        bar.set_length(progress.chunks as u64);
        bar.set_position(progress.chunk as u64);
        bar.set_message(format!("perplexity {:.4}", progress.perplexity));
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    Ok(Pass {
        result: result?,
        layouts: LayoutReport::from(&model.layout_summary()),
        engines: EngineStatistics::of(&model),
    })
}

fn print(args: &Args, pass: Pass, baseline: Option<Pass>) -> Result<()> {
    let ratio =
        baseline.as_ref().map(|baseline| pass.result.perplexity / baseline.result.perplexity);
    let mut out = io::stdout().lock();
    if !args.json {
        print_pass(&mut out, &pass, "")?;
        if let Some((baseline, ratio)) = baseline.as_ref().zip(ratio) {
            let lossy = args.memory.pager.lossy();
            print_pass(&mut out, baseline, &format!(", without {lossy}"))?;
            writeln!(out, "cost of {lossy}: perplexity times {ratio:.4}")?;
        }
        return Ok(());
    }
    let report = Report {
        score: pass.score(),
        tokens: pass.result.tokens,
        scored_tokens: pass.result.scored_tokens,
        scored_bytes: pass.result.scored_bytes,
        outside_tokens: pass.result.outside_tokens,
        outside_bytes: pass.result.outside_bytes,
        chunks: pass.result.chunks,
        layouts: pass.layouts,
        baseline: baseline.as_ref().map(Pass::score),
        perplexity_ratio: ratio,
    };
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    Ok(())
}

/// Prints the result on a line, and tells a person what the engines did.
fn print_pass(out: &mut impl io::Write, pass: &Pass, what: &str) -> Result<()> {
    writeln!(
        out,
        "perplexity {:.4} +/- {:.5}, {:.4} bits per byte, {} of {} tokens scored{what}",
        pass.result.perplexity,
        pass.result.stderr,
        pass.result.bits_per_byte,
        pass.result.scored_tokens,
        pass.result.tokens
    )?;
    if pass.result.outside_tokens > 0 {
        writeln!(
            out,
            "left out: {} tokens of {} bytes, which the model's pruned head lacks",
            pass.result.outside_tokens, pass.result.outside_bytes
        )?;
    }
    if io::stderr().is_terminal() {
        pass.engines.lines().for_each(notice);
    }
    Ok(())
}

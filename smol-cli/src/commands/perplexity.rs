//! `smol perplexity`: how well a model predicts a text.

use crate::arguments::{LayoutArgs, LayoutReport, clamped_threads, load_model, read_text};
use crate::cli::Global;
use crate::failure::Failure;
use crate::interrupt;
use crate::model::ModelArg;
use crate::progress;
use anyhow::Result;
use serde::Serialize;
use smolmaxxing::CancelToken;
use smolmaxxing::perplexity::{Perplexity, PerplexityOptions, perplexity};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure how well a model predicts a text
///
/// Perplexity is computed the way llama-perplexity does: the text is cut into chunks of CTX
/// tokens, and the second half of each is scored.
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
    /// Threads [default: as many as there are big cores]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    perplexity: f64,
    stderr: f64,
    bits_per_byte: f64,
    tokens: usize,
    scored_tokens: usize,
    scored_bytes: usize,
    chunks: usize,
    layouts: LayoutReport,
}

/// Measures and prints the perplexity.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let text = read_text(&args.file)?;
    if text.is_empty() {
        return Err(Failure::usage(format!("{} is empty", args.file.display())).into());
    }
    let threads = clamped_threads(args.threads);
    let path = args.model.path(global)?;
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let model = load_model(&path, &args.layouts.options(global), &cancel)?;
    let options = PerplexityOptions {
        chunk: args.ctx as usize,
        threads: Some(threads as usize),
        ..PerplexityOptions::default()
    };
    let context = options.context(&model)?.threads(threads, threads).cancel(&cancel);
    let mut context = context.build()?;
    let bar = progress::steps("perplexity", 0);
    let result = perplexity(&mut context, &text, &options, |progress| {
        bar.set_length(progress.chunks as u64);
        bar.set_position(progress.chunk as u64);
        bar.set_message(format!("perplexity {:.4}", progress.perplexity));
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    print(args, &result?, LayoutReport::from(&model.layout_summary()))?;
    Ok(ExitCode::SUCCESS)
}

fn print(args: &Args, result: &Perplexity, layouts: LayoutReport) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if !args.json {
        writeln!(
            out,
            "perplexity {:.4} +/- {:.5}, {:.4} bits per byte, {} of {} tokens scored",
            result.perplexity,
            result.stderr,
            result.bits_per_byte,
            result.scored_tokens,
            result.tokens
        )?;
        return Ok(());
    }
    let report = Report {
        perplexity: result.perplexity,
        stderr: result.stderr,
        bits_per_byte: result.bits_per_byte,
        tokens: result.tokens,
        scored_tokens: result.scored_tokens,
        scored_bytes: result.scored_bytes,
        chunks: result.chunks,
        layouts,
    };
    serde_json::to_writer(&mut out, &report)?;
    writeln!(out)?;
    Ok(())
}

//! `smol trace record`: writes down which experts a model uses.

use crate::arguments::{AnswerArgs, check_output, pager_line, read_text};
use crate::cli::Global;
use crate::commands::run::stream;
use crate::failure::{Failure, notice};
use crate::interrupt;
use crate::progress;
use crate::units::bytes;
use anyhow::{Context as _, Result};
use serde::Serialize;
use smolmaxxing::generation::{Finish, GenerateOptions};
use smolmaxxing::session::Session;
use smolmaxxing::{Batch, CancelToken, Context, Model, PagerStatistics, SeqId};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Record which experts a model uses
///
/// The model answers a prompt, or goes through a text token by token as if it had written it. The
/// trace can be simulated with other pools (`smol trace sim`) and warms up later runs (`--warm`).
#[derive(Debug, clap::Args)]
#[command(mut_arg("tokens", |arg| arg.help(TOKENS)))]
pub struct Args {
    /// File to write the trace to; it is created or replaced
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Go through this text instead of answering a prompt
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "file"])]
    text: Option<PathBuf>,
    // Before what brings headings of its own.
    /// Print one JSON object
    #[arg(long, display_order = 100)]
    json: bool,
    #[command(flatten)]
    answer: AnswerArgs,
}

const TOKENS: &str =
    "Most tokens of the answer or the text [default: 512 for an answer, the whole text]";

/// Tokens of an answer if nothing else is said.
const DEFAULT_TOKENS: usize = 512;

#[derive(Serialize)]
struct Report {
    file: String,
    bytes: u64,
    /// Tokens that were computed, with those of the prompt.
    tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pager: Option<PagerStatistics>,
}

/// How far a recording went.
struct Recorded {
    tokens: usize,
    cancelled: bool,
}

/// Runs the model and prints how much was recorded.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let text = args.text.as_deref().map(read_text).transpose()?;
    if let (Some(""), Some(path)) = (text.as_deref(), &args.text) {
        return Err(Failure::usage(format!("{} is empty", path.display())).into());
    }
    let prompt = if text.is_none() { args.answer.prompt.read()? } else { String::new() };
    if args.answer.tokens == Some(0) {
        return Err(Failure::usage("-n 0: there would be nothing to record").into());
    }
    let path = args.answer.model.path(global)?;
    check_output(&args.output, args.text.as_deref().into_iter().chain([&*path]))?;
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let explain = |error| args.answer.memory.explain(error);
    let model =
        args.answer.load(&path, global, &cancel, |model| model.record_experts(&args.output));
    let model = model.map_err(explain)?;
    let context = args.answer.compute.build(&model, &cancel).map_err(explain)?;
    let recorded = match text {
        Some(text) => go_through(args, &model, context, &text, &cancel)?,
        None => answer(args, &model, context, prompt, &cancel)?,
    };
    let pager = model.pager_statistics();
    // The trace is complete when nothing of the model is left.
    drop(model);
    print(args, &recorded, pager)?;
    Ok(match recorded.cancelled {
        true => ExitCode::from(interrupt::exit_code()),
        false => ExitCode::SUCCESS,
    })
}

/// Answers the prompt.
fn answer(
    args: &Args,
    model: &Model,
    context: Context,
    prompt: String,
    cancel: &CancelToken,
) -> Result<Recorded> {
    let sampler = args.answer.sampler(model).build(model)?;
    let mut session = Session::new(context, sampler)?;
    let max_tokens = args.answer.tokens.unwrap_or(DEFAULT_TOKENS);
    let generate = GenerateOptions {
        max_tokens: Some(max_tokens),
        cancel: Some(cancel.clone()),
        ..GenerateOptions::default()
    };
    let bar = progress::steps("recording", max_tokens as u64);
    let generation = args.answer.answer(&mut session, prompt, generate)?;
    let streamed = stream(generation, |_| {
        bar.inc(1);
        Ok(())
    });
    bar.finish_and_clear();
    let (finish, stats) = streamed?;
    Ok(Recorded {
        tokens: stats.prompt_tokens + stats.evaluated_tokens,
        cancelled: finish == Finish::Cancelled,
    })
}

/// Computes the tokens of a text one by one; where the context is full it starts over.
fn go_through(
    args: &Args,
    model: &Model,
    mut context: Context,
    text: &str,
    cancel: &CancelToken,
) -> Result<Recorded> {
    let mut tokens = model.vocab().tokenize(text, true)?;
    tokens.truncate(args.answer.tokens.unwrap_or(usize::MAX));
    let bar = progress::steps("recording", tokens.len() as u64);
    let n_ctx = context.n_ctx();
    let mut batch = Batch::new();
    let mut done = 0;
    for (index, &token) in tokens.iter().enumerate() {
        let position = index % n_ctx;
        if position == 0 {
            context.kv().clear()?;
        }
        batch.clear();
        // Without an output the last layer would not compute the token.
        batch.push(token, position as i32, SeqId::FIRST, true);
        match context.decode(&batch) {
            Ok(_) => done += 1,
            Err(error) if error.is_cancelled() => break,
            Err(error) => return Err(error.into()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Recorded { tokens: done, cancelled: cancel.is_cancelled() })
}

fn print(args: &Args, recorded: &Recorded, pager: Option<PagerStatistics>) -> Result<()> {
    let file = args.output.display().to_string();
    let written = std::fs::metadata(&args.output).with_context(|| format!("cannot read {file}"))?;
    let mut out = io::stdout().lock();
    if args.json {
        let report = Report { file, bytes: written.len(), tokens: recorded.tokens, pager };
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    writeln!(out, "{} tokens in {file} ({})", recorded.tokens, bytes(written.len()))?;
    if let Some(statistics) = &pager
        && io::stderr().is_terminal()
    {
        notice(pager_line(statistics));
    }
    Ok(())
}

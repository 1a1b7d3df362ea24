//! `smol run`: answers one prompt.

use crate::arguments::{AnswerArgs, EngineStatistics, GrammarArgs, LayoutReport};
use crate::cli::Global;
use crate::failure::notice;
use crate::interrupt;
use crate::running::Running;
use anyhow::Result;
use serde::Serialize;
use smol_engine::machine::peak_rss;
use smolmaxxing::CancelToken;
use smolmaxxing::generation::{Finish, GenerateOptions, Generation, Stats};
use smolmaxxing::loops::LoopOptions;
use smolmaxxing::session::Session;
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Answer one prompt
#[derive(Debug, clap::Args)]
pub struct Args {
    // Before what brings headings of its own.
    /// Print one JSON object at the end instead of the text
    #[arg(long, display_order = 100)]
    json: bool,
    #[command(flatten)]
    answer: AnswerArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
}

#[derive(Serialize)]
struct Report {
    text: String,
    stop: &'static str,
    prompt_tokens: usize,
    reused_tokens: usize,
    generated_tokens: usize,
    prompt_tps: f64,
    generation_tps: f64,
    load_s: f64,
    peak_rss_mb: Option<f64>,
    layouts: Option<LayoutReport>,
    #[serde(flatten)]
    engines: EngineStatistics,
}

struct Outcome {
    text: String,
    finish: Finish,
    stats: Stats,
    load: Duration,
    layouts: Option<LayoutReport>,
    engines: EngineStatistics,
}

/// Answers the prompt on standard output.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let prompt = args.answer.prompt.read()?;
    let grammar = args.grammar.read()?;
    let path = args.answer.model.path(global)?;
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let _running = Running::start(global, "run", &path, args.answer.memory.ram());

    let start = Instant::now();
    let mut layouts = None;
    let model = args.answer.load(&path, global, &cancel, |model| model);
    let session = model.and_then(|model| {
        layouts = Some(LayoutReport::from(&model.layout_summary()));
        let mut sampler = args.answer.sampler(&model);
        if let Some(grammar) = grammar {
            sampler = sampler.grammar(grammar);
        }
        let sampler = sampler.build(&model)?;
        Session::new(args.answer.compute.build(&model, &cancel)?, sampler)
    });
    let load = start.elapsed();
    let outcome = match session {
        Ok(session) => Outcome { load, layouts, ..answer(args, session, prompt, &cancel)? },
        Err(error) if error.is_cancelled() => Outcome {
            text: String::new(),
            finish: Finish::Cancelled,
            stats: Stats::default(),
            load,
            layouts,
            engines: EngineStatistics::default(),
        },
        Err(error) => return Err(args.answer.memory.explain(error)),
    };
    finish(args, outcome)
}

fn answer(
    args: &Args,
    mut session: Session,
    prompt: String,
    cancel: &CancelToken,
) -> Result<Outcome> {
    let generate = GenerateOptions {
        max_tokens: args.answer.tokens,
        // Where nothing else ends an answer that goes round in circles.
        loop_detector: args.answer.tokens.is_none().then(LoopOptions::default),
        cancel: Some(cancel.clone()),
        ..GenerateOptions::default()
    };
    let generation = args.answer.answer(&mut session, prompt, generate)?;
    let mut text = String::new();
    let (finish, stats) = stream(generation, |piece| {
        text.push_str(piece);
        if args.json {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        out.write_all(piece.as_bytes())?;
        out.flush()
    })?;
    let engines = EngineStatistics::of(session.context().model());
    Ok(Outcome { text, finish, stats, load: Duration::ZERO, layouts: None, engines })
}

/// Gives each piece of text to `write` as it comes.
pub fn stream(
    mut generation: Generation<'_>,
    mut write: impl FnMut(&str) -> io::Result<()>,
) -> Result<(Finish, Stats)> {
    for piece in generation.by_ref() {
        let piece = piece?;
        if !piece.text.is_empty() {
            write(&piece.text)?;
        }
    }
    Ok((generation.finish_reason().unwrap_or(Finish::Cancelled), generation.stats()))
}

/// Prints what comes after the text.
fn finish(args: &Args, outcome: Outcome) -> Result<ExitCode> {
    let Outcome { text, finish, stats, load, layouts, engines } = outcome;
    let mut out = io::stdout().lock();
    if args.json {
        let report = Report {
            text,
            stop: finish.as_str(),
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            generated_tokens: stats.generated_tokens,
            prompt_tps: rounded(stats.prompt_tps()),
            generation_tps: rounded(stats.generation_tps()),
            load_s: rounded(load.as_secs_f64()),
            peak_rss_mb: peak_rss().map(|bytes| rounded(bytes as f64 / 1e6)),
            layouts,
            engines,
        };
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        writeln!(out)?;
        if io::stderr().is_terminal() {
            notice(summary(finish, &stats));
            engines.lines().for_each(notice);
        }
    }
    out.flush()?;
    Ok(match finish {
        Finish::Cancelled => ExitCode::from(interrupt::exit_code()),
        _ => ExitCode::SUCCESS,
    })
}

/// Counts and speeds of an answer on one line.
pub fn summary(finish: Finish, stats: &Stats) -> String {
    format!(
        "{} tokens at {:.1}/s after a prompt of {} ({} reused) at {:.1}/s; stop: {finish}",
        stats.generated_tokens,
        stats.generation_tps(),
        stats.prompt_tokens,
        stats.reused_tokens,
        stats.prompt_tps(),
    )
}

/// Three decimals: more are noise.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

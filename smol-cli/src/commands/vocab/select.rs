//! `smol vocab select`: the tokens that some text needs most.

use super::ids::write_ids;
use super::texts::{Selected, select};
use crate::arguments::check_output;
use crate::cli::Global;
use crate::failure::notice;
use crate::interrupt;
use crate::model::ModelArg;
use crate::units::grouped;
use anyhow::{Context as _, Result};
use serde::Serialize;
use smolmaxxing::vocab_selection::Outside;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Choose the tokens that some text needs most, for `smol recut --head-ids`
///
/// Tokens that control the model, single bytes and numbers are always kept, so that any text can
/// still be written, if with more tokens. Prints one id a line.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    /// Text to count tokens in: a file, or a folder with all that is in it; each weighs the same,
    /// such as one for each language
    #[arg(long, required = true, value_name = "PATH")]
    corpus: Vec<PathBuf>,
    /// Tokens to keep
    #[arg(short, long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Text that doesn't count, to tell how much of it is left out
    #[arg(long, value_name = "PATH")]
    held_out: Vec<PathBuf>,
    /// Write the ids to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    vocab: usize,
    kept: usize,
    required: usize,
    texts: Vec<TextReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<i32>>,
}

#[derive(Serialize)]
struct TextReport {
    path: String,
    held_out: bool,
    tokens: u64,
    outside_tokens: u64,
    outside_share: f64,
    bytes: u64,
    outside_bytes: u64,
}

/// Chooses and writes the ids.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let path = args.model.path(global)?;
    if let Some(output) = &args.output {
        let texts = args.corpus.iter().chain(&args.held_out).map(PathBuf::as_path);
        check_output(output, texts.chain([&*path]))?;
    }
    let stop = interrupt::stop_on_ctrl_c()?;
    let selected = select(&path, &args.corpus, &args.held_out, args.keep as usize, &stop)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let title = format!("{} of the {} tokens of {name}", selected.ids.len(), selected.vocab);
    if let Some(output) = &args.output {
        let shown = output.display();
        let file = File::create(output).with_context(|| format!("cannot write {shown}"))?;
        write_ids(&mut BufWriter::new(file), &title, &selected.ids)
            .with_context(|| format!("cannot write {shown}"))?;
    }
    let texts = texts(args, &selected);
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let ids = args.output.is_none().then(|| selected.ids.iter().map(|id| id.0).collect());
        let (vocab, kept, required) = (selected.vocab, selected.ids.len(), selected.required);
        serde_json::to_writer(&mut out, &Report { vocab, kept, required, texts, ids })?;
        writeln!(out)?;
    } else {
        if args.output.is_none() {
            write_ids(&mut out, &title, &selected.ids)?;
        }
        notice(format_args!("{title}, {} of them required", selected.required));
        for text in texts {
            let what = if text.held_out { "held out" } else { "counted" };
            notice(format_args!(
                "{} ({what}): {:.3} % of {} tokens are left out",
                text.path,
                text.outside_share * 100.0,
                grouped(text.tokens)
            ));
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn texts(args: &Args, selected: &Selected) -> Vec<TextReport> {
    let report = |held_out| {
        move |(path, outside): (&PathBuf, &Outside)| TextReport {
            path: path.to_string_lossy().into_owned(),
            held_out,
            tokens: outside.of_tokens,
            outside_tokens: outside.tokens,
            outside_share: outside.share(),
            bytes: outside.of_bytes,
            outside_bytes: outside.bytes,
        }
    };
    let counted = args.corpus.iter().zip(&selected.outside).map(report(false));
    counted.chain(args.held_out.iter().zip(&selected.held_out).map(report(true))).collect()
}

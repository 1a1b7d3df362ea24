//! `smol tokenize`: the tokens of a text.

use crate::arguments::{PromptArgs, load_vocabulary};
use crate::cli::Global;
use crate::interrupt;
use crate::model::ModelArg;
use crate::report::print;
use anyhow::Result;
use serde::Serialize;
use smolmaxxing::CancelToken;
use std::process::ExitCode;

/// Show the tokens of a text
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    text: PromptArgs,
    /// Leave out the tokens that the model wants around a text
    #[arg(long)]
    no_special: bool,
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    id: i32,
    /// Parts of characters are shown as replacement characters.
    text: String,
    /// In hexadecimal.
    bytes: String,
}

/// Prints the tokens.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let text = args.text.read()?;
    let path = args.model.path(global)?;
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let model = load_vocabulary(&path, &cancel)?;
    let vocab = model.vocab();
    let rows = vocab
        .tokenize(&text, !args.no_special)?
        .into_iter()
        .map(|token| {
            let bytes = vocab.token_bytes(token, true)?;
            Ok(Row {
                id: token.0,
                text: String::from_utf8_lossy(&bytes).into_owned(),
                bytes: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            })
        })
        .collect::<smolmaxxing::Result<Vec<_>>>()?;
    print(args.json, &rows, |out| {
        rows.iter().try_for_each(|row| match row.text.contains('\u{fffd}') {
            true => writeln!(out, "{:6} bytes {}", row.id, row.bytes),
            false => writeln!(out, "{:6} {:?}", row.id, row.text),
        })
    })?;
    Ok(ExitCode::SUCCESS)
}

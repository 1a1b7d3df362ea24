//! `smol cache`: the folder of packed weights.

use crate::failure::Failure;
use crate::report::print;
use crate::table::table;
use crate::units::bytes;
use anyhow::Result;
use clap::Subcommand;
use serde::Serialize;
use smolmaxxing::{CacheFile, CacheState, PackCache};
use std::path::PathBuf;
use std::process::ExitCode;

/// List or remove packed weights that --pack-cache keeps
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the files, with their sizes, and whether they are of use
    List(List),
    /// Remove all files; models that use them keep running
    Clear(Clear),
}

#[derive(Debug, clap::Args)]
struct List {
    #[command(flatten)]
    folder: Folder,
    /// Compare all bytes with their hashes
    #[arg(long)]
    verify: bool,
}

#[derive(Debug, clap::Args)]
struct Clear {
    #[command(flatten)]
    folder: Folder,
}

#[derive(Debug, clap::Args)]
struct Folder {
    /// The folder that was given to `smol run`
    #[arg(long, value_name = "DIR")]
    pack_cache: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Folder {
    fn cache(&self) -> Result<PackCache> {
        if self.pack_cache.is_dir() {
            return Ok(PackCache::new(&self.pack_cache));
        }
        let shown = self.pack_cache.display();
        let failure = Failure::new(format!("there is no folder {shown}"));
        Err(failure.advice("`smol run --pack-cache DIR` makes one when it loads a model whose weights are packed").into())
    }
}

#[derive(Serialize)]
struct Listed {
    files: Vec<Row>,
    bytes: u64,
}

#[derive(Serialize)]
struct Row {
    file: String,
    bytes: u64,
    weights: usize,
    /// The model's files.
    models: Vec<String>,
    /// `current`, `stale` or `damaged`.
    state: &'static str,
    /// Why it is of no use.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct Cleared {
    files: usize,
    bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::List(args) => list(args)?,
        Command::Clear(args) => clear(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &List) -> Result<()> {
    let mut cache = args.folder.cache()?;
    cache.verify = args.verify;
    let files: Vec<_> = cache.list()?.into_iter().map(Row::from).collect();
    let total = files.iter().map(|row| row.bytes).sum();
    let cells = |row: &Row| {
        let name = row.file.rsplit('/').next().unwrap_or_default().to_owned();
        let state = match &row.reason {
            Some(reason) => format!("{}: {reason}", row.state),
            None => row.state.to_owned(),
        };
        vec![name, state, row.weights.to_string(), bytes(row.bytes)]
    };
    let rows: Vec<_> = files.iter().map(cells).collect();
    print(args.folder.json, &Listed { files, bytes: total }, |out| {
        if !rows.is_empty() {
            write!(out, "{}", table(&["file", "state", "weights", "size"], 2, rows))?;
        }
        writeln!(out, "{} in {}", bytes(total), args.folder.pack_cache.display())
    })
}

fn clear(args: &Clear) -> Result<()> {
    let (files, freed) = args.folder.cache()?.clear()?;
    print(args.folder.json, &Cleared { files, bytes: freed }, |out| {
        writeln!(out, "removed {files} files, {}", bytes(freed))
    })
}

impl From<CacheFile> for Row {
    fn from(file: CacheFile) -> Self {
        let (state, reason) = match file.state {
            CacheState::Current => ("current", None),
            CacheState::Stale(reason) => ("stale", Some(reason)),
            CacheState::Damaged(reason) => ("damaged", Some(reason)),
            _ => ("unknown", None),
        };
        Self {
            file: file.path.to_string_lossy().into_owned(),
            bytes: file.bytes,
            weights: file.weights,
            models: file.sources.iter().map(|path| path.to_string_lossy().into_owned()).collect(),
            state,
            reason,
        }
    }
}

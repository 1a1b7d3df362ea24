//! `smol models`: lists the models that are known by name.

use crate::cli::Global;
use crate::report::print;
use crate::units::bytes;
use anyhow::Result;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// List the models that are known by name
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print a JSON list
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    default: bool,
    description: String,
    licence: String,
    size: u64,
    sha256: String,
    /// Where it is, if it has been fetched.
    path: Option<PathBuf>,
}

/// Prints the list.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let catalogue = global.catalogue()?;
    let cache = global.cache()?;
    let rows: Vec<_> = catalogue
        .models
        .iter()
        .map(|entry| Row {
            name: entry.name.clone(),
            default: entry.name == catalogue.default,
            description: entry.description.clone(),
            licence: entry.licence.clone(),
            size: entry.size,
            sha256: entry.sha256.clone(),
            path: cache.find(entry),
        })
        .collect();
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let line = |row: &Row| {
        let state = match (&row.path, row.default) {
            (Some(_), true) => "fetched, default",
            (Some(_), false) => "fetched",
            (None, true) => "default",
            (None, false) => "",
        };
        let size = bytes(row.size);
        let line = format!("{:width$}  {size:>8}  {state:16}  {}", row.name, row.description);
        format!("{line} ({})", row.licence)
    };
    print(args.json, &rows, |out| rows.iter().try_for_each(|row| writeln!(out, "{}", line(row))))?;
    Ok(ExitCode::SUCCESS)
}

//! `smol pull`: fetches models ahead of their use.

use crate::cli::Global;
use crate::failure::notice;
use crate::fetch;
use crate::units::bytes;
use anyhow::{Context as _, Result};
use std::io::Write as _;
use std::process::ExitCode;

/// Fetch models by name, and print where they are
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Names of models (see `smol models`)
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Fetches the models that are not there or damaged, and prints all paths.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let catalogue = global.catalogue()?;
    let cache = global.cache()?;
    let entries = args.names.iter().map(|name| catalogue.get(name)).collect::<Result<Vec<_>>>()?;
    for entry in entries {
        if let Some(path) = cache.find(entry)
            && !fetch::is_intact(entry, &path)?
        {
            notice(format_args!("{} is damaged, its hash is wrong", path.display()));
            std::fs::remove_file(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        if cache.find(entry).is_none() {
            let size = bytes(entry.size);
            notice(format_args!("fetching `{}` ({size}, licence: {})", entry.name, entry.licence));
        }
        let path = fetch::pull(entry, &cache)?;
        writeln!(std::io::stdout().lock(), "{}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

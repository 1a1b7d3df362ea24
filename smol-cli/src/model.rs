//! The `-m` argument: the path of a GGUF file, or the name of a model in the catalogue.

use crate::cli::Global;
use crate::failure::{Failure, notice};
use crate::fetch;
use crate::units::bytes;
use anyhow::{Context as _, Result};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Which model to use.
#[derive(Debug, clap::Args)]
pub struct ModelArg {
    /// Path of a .gguf file, or name of a model (see `smol models`); fetched if need be
    #[arg(short, long, value_name = "MODEL")]
    model: Option<OsString>,
}

impl ModelArg {
    /// Returns the path of the model's file, after fetching it if it is not there. Without an
    /// argument it is the catalogue's default model.
    pub fn path(&self, global: &Global) -> Result<PathBuf> {
        match self.model.as_deref() {
            Some(model) => resolve(model, global),
            None => by_name(&global.catalogue()?.default, global),
        }
    }
}

/// Returns the path of `model`, after fetching it if it is a name and not there.
pub fn resolve(model: &OsStr, global: &Global) -> Result<PathBuf> {
    let path = Path::new(model);
    if model.is_empty() {
        let failure = Failure::usage("the name of the model is empty");
        return Err(failure.advice("`smol models` lists the models known by name").into());
    }
    if looks_like_path(path) {
        check_file(path)?;
        return Ok(path.to_owned());
    }
    by_name(&model.to_string_lossy(), global)
}

fn by_name(name: &str, global: &Global) -> Result<PathBuf> {
    let catalogue = global.catalogue()?;
    let entry = catalogue.get(name)?;
    let cache = global.cache()?;
    if cache.find(entry).is_none() {
        let size = bytes(entry.size);
        notice(format_args!("fetching `{name}` ({size}, licence: {})", entry.licence));
    }
    fetch::pull(entry, &cache)
}

/// A name has no separator and no extension, and names win only over what is not there.
fn looks_like_path(path: &Path) -> bool {
    path.components().count() != 1
        || path.is_absolute()
        || path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
        || path.exists()
}

/// Refuses what cannot be a model's file, with the reason.
pub fn check_file(path: &Path) -> Result<()> {
    let shown = path.display();
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let failure = Failure::new(format!("there is no file {shown}"));
            return Err(failure.advice("`smol models` lists the models known by name").into());
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
    };
    if metadata.is_dir() {
        let mut failure = Failure::new(format!("{shown} is a directory, not a .gguf file"));
        if let Some(inside) = first_gguf(path) {
            failure = failure.advice(format!("did you mean {}?", inside.display()));
        }
        return Err(failure.into());
    }
    if !metadata.is_file() {
        return Err(Failure::new(format!("{shown} is not a regular file")).into());
    }
    File::open(path).with_context(|| format!("cannot read {shown}"))?;
    Ok(())
}

fn first_gguf(folder: &Path) -> Option<PathBuf> {
    std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
        .min()
}

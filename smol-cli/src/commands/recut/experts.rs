//! The room of experts that two files hold: freed, and taken again.

use super::{Work, explained, print_json};
use crate::failure::{Failure, notice};
use crate::units::bytes;
use crate::{model, progress, space};
use anyhow::{Context as _, Result};
use serde_json::json;
use smol_engine::io::{HolePunch, is_used_elsewhere};
use smol_gguf::{Gguf, Punch, Shards, is_same_file};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The unit of file systems that don't matter, as nothing is freed.
const SMALLEST_BLOCK: u64 = 4096;

/// Frees the room of the experts in the files of a model.
pub(super) fn punch(file: &Path, copy: &Path, json: bool) -> Result<()> {
    let start = Instant::now();
    let (paths, copy) = open(file, copy)?;
    let folder = space::folder_of(file);
    let holes = HolePunch::probe(folder).map_err(|error| {
        let failure = Failure::new(format!("no room can be freed inside {}", file.display()));
        let advice = "ext4, XFS, Btrfs, F2FS, tmpfs and APFS can do that; or delete the file";
        anyhow::Error::new(error).context(failure.advice(advice))
    })?;
    for path in &paths {
        refuse_if_used(path)?;
    }
    let mut files = with_experts(&paths, &copy, holes.block())?;
    let total = files.iter().map(Punch::expert_bytes).sum();
    let work = Work::new(progress::bytes("comparing", total))?;
    let mut done = 0;
    let mut compared = Vec::new();
    // All before the first is touched.
    for punch in &files {
        let result = punch.compare(|position| work.reached(done + position));
        compared.push(explained(result, "stopped; nothing was freed")?);
        done += punch.expert_bytes();
    }
    work.bar.finish_and_clear();
    let mut freed = 0;
    for (punch, compared) in files.iter_mut().zip(&compared) {
        explained(
            punch.punch(compared, |file, range| holes.free(file, range).map(drop)),
            "stopped",
        )?;
        freed += punch.freed_bytes();
    }
    let done = Done { action: "punch", verb: "freed", file, files: files.len(), bytes: freed };
    done.tell(&copy, total, start, json)?;
    if json {
        return Ok(());
    }
    notice(format_args!(
        "{} can't be run now; `smol recut --fill` puts its experts back",
        file.display()
    ));
    Ok(())
}

/// Puts the experts back into the files of a model.
pub(super) fn fill(file: &Path, copy: &Path, json: bool) -> Result<()> {
    let start = Instant::now();
    let (paths, copy) = open(file, copy)?;
    let mut files = with_experts(&paths, &copy, SMALLEST_BLOCK)?;
    files.retain(|punch| punch.gguf().is_punched());
    if files.is_empty() {
        let failure = Failure::new(format!("{} has all its experts", file.display()));
        return Err(failure.advice("there is nothing to put back").into());
    }
    let total: u64 = files.iter().map(Punch::expert_bytes).sum();
    // A part of it may be there, if filling was interrupted: that needs no room again.
    let missing = paths.iter().map(|path| missing_bytes(path)).sum::<u64>().min(total);
    space::check(space::folder_of(file), "filling", missing, "free some space first")?;

    let work = Work::new(progress::bytes("filling", 2 * total))?;
    let mut done = 0;
    for punch in &mut files {
        let result = punch.fill(|position| work.reached(done + position));
        explained(result, "stopped; the file can't be run yet, fill it again")?;
        done += 2 * punch.expert_bytes();
    }
    work.bar.finish_and_clear();
    let done = Done { action: "fill", verb: "put back", file, files: files.len(), bytes: missing };
    done.tell(&copy, total, start, json)
}

/// What was done to the experts.
struct Done<'a> {
    action: &'static str,
    verb: &'static str,
    file: &'a Path,
    files: usize,
    /// The room that was given back or taken again.
    bytes: u64,
}

impl Done<'_> {
    fn tell(&self, copy: &Shards, experts: u64, start: Instant, as_json: bool) -> Result<()> {
        let seconds = start.elapsed().as_secs_f64();
        if as_json {
            return print_json(&json!({
                "action": self.action,
                "file": self.file.to_string_lossy(),
                "copy": copy.first().path().map(Path::to_string_lossy),
                "files": self.files,
                "expert_bytes": experts,
                "bytes": self.bytes,
                "seconds": seconds,
            }));
        }
        let (file, verb) = (self.file.display(), self.verb);
        let (room, experts) = (bytes(self.bytes), bytes(experts));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{file}: {room} {verb}, of {experts} of experts, in {seconds:.1} s")?;
        Ok(())
    }
}

/// Returns the files of the model, and its copy.
fn open(file: &Path, copy: &Path) -> Result<(Vec<PathBuf>, Shards)> {
    model::check_file(file)?;
    model::check_file(copy)?;
    let paths = Punch::files_of(file)?;
    for path in &paths {
        model::check_file(path)?;
    }
    let copies = Shards::open(copy)?;
    for path in copies.iter().filter_map(Gguf::path) {
        if paths.iter().any(|file| is_same_file(file, path)) {
            let message = format!("{} is a part of the model itself", path.display());
            return Err(Failure::usage(message).advice("--copy names another file").into());
        }
    }
    Ok((paths, copies))
}

/// Opens the files that have experts: of a split model perhaps not all.
fn with_experts<'a>(paths: &[PathBuf], copy: &'a Shards, block: u64) -> Result<Vec<Punch<'a>>> {
    let mut files = Vec::new();
    let mut last = None;
    for path in paths {
        match Punch::open(path, copy, block) {
            Ok(punch) => files.push(punch),
            Err(error) if is_without(&error) => last = Some(error),
            Err(error) => return explained(Err(error), "stopped"),
        }
    }
    match last {
        Some(error) if files.is_empty() => explained(Err(error), "stopped"),
        _ => Ok(files),
    }
}

fn is_without(error: &smol_gguf::Error) -> bool {
    use smol_gguf::ErrorKind::{NoExperts, NothingToFree};
    matches!(error.kind(), NoExperts | NothingToFree { .. })
}

/// Refuses a file that a program has open: it would compute with zeros.
fn refuse_if_used(path: &Path) -> Result<()> {
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| format!("cannot write to {}", path.display()))?;
    if is_used_elsewhere(&file) == Some(true) {
        let failure = Failure::new(format!("{} is in use by a program", path.display()));
        return Err(failure.advice("end what runs this model first; `fuser` tells which").into());
    }
    Ok(())
}

/// Returns how many bytes of a file take no room, as far as the system tells.
fn missing_bytes(path: &Path) -> u64 {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(path) {
        use std::os::unix::fs::MetadataExt as _;
        return metadata.len().saturating_sub(metadata.blocks() * 512);
    }
    0
}

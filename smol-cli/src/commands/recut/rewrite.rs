//! A changed copy of a model, in one sequential pass.

use super::input::Source;
use super::report::Report;
use super::{Args, Work, explained};
use crate::cli::Global;
use crate::failure::{Failure, notice};
use crate::{interrupt, progress, space};
use anyhow::{Context as _, Result};
use smol_gguf::{Depth, ErrorKind, Gguf, Rewriter, Severity, Shards, SplitBy, check_shards};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What Ctrl-C leaves.
const STOPPED: &str = "stopped; nothing was written";

/// Writes the model as `args` say.
pub(super) fn run(input: &OsStr, output: &Path, args: &Args, global: &Global) -> Result<()> {
    // Before Ctrl-C is taken: fetching a model ends by itself.
    let source = Source::find(input, global)?;
    let stop = interrupt::stop_on_ctrl_c()?;
    let start = Instant::now();
    let input = source.open(&stop).map_err(|error| match is_stopped(&error) {
        true => Failure::stopped(STOPPED).into(),
        false => error,
    })?;
    // Before anything is written: a part may be missing at the very end.
    for (file, tensor) in input.shards.tensors() {
        file.file_offset(tensor)?;
    }
    let added = args.edits.open_added()?;
    let mut plan = Rewriter::from_shards(&input.shards);
    args.edits.apply(&mut plan, &added)?;
    // Before experts are put behind it.
    let head = args.head.apply(&mut plan, &input.shards, input.path(), &stop)?;
    let requantized = args.edits.requantize(&mut plan)?;
    if args.experts_last && !plan.experts_last() {
        let message = format!("{} has no routed experts", input.name.display());
        return Err(Failure::new(message)
            .advice(
                "--experts-last is for mixtures of experts; `smol inspect` shows a model's tensors",
            )
            .into());
    }
    let files = layout(&plan, output, args)?;
    let sources = || input.shards.iter().chain(added.iter().flat_map(Shards::iter));
    for (path, _) in &files {
        check_output(sources(), path, args.force)?;
    }
    let len = files.iter().map(|(_, len)| len).sum();
    let folder = space::folder_of(output);
    let what = if files.len() == 1 { "the new file" } else { "the new model" };
    space::check(folder, what, len, "free some space, or write to another disk")?;

    let name = output.file_name().unwrap_or(output.as_os_str()).to_string_lossy();
    let work = Work { bar: progress::bytes(name, len), stop };
    let told = |position| work.reached(position);
    let written = match args.split {
        Some(size) => plan.write_split(prefix(output), SplitBy::Bytes(size.0), told).map(drop),
        None => plan.write_file_with(output, told),
    };
    work.bar.finish_and_clear();
    explained(written, STOPPED)?;

    let seconds = start.elapsed().as_secs_f64();
    let new = Shards::read_headers(&files[0].0)?;
    warn_about(&new);
    let report = Report { input: &input, output, new: &new, head, requantized, seconds };
    report.show(args.json)
}

/// Whether Ctrl-C has broken off reading.
fn is_stopped(error: &anyhow::Error) -> bool {
    let gguf = |cause: &(dyn std::error::Error + 'static)| {
        cause
            .downcast_ref::<smol_gguf::Error>()
            .is_some_and(|e| matches!(e.kind(), ErrorKind::Stopped))
    };
    error.chain().any(gguf)
}

/// Returns the files to write and their sizes.
fn layout(plan: &Rewriter<'_>, output: &Path, args: &Args) -> Result<Vec<(PathBuf, u64)>> {
    match args.split {
        Some(size) => Ok(plan.split_layout(prefix(output), SplitBy::Bytes(size.0))?),
        None => Ok(vec![(output.to_owned(), plan.writer()?.layout()?.1)]),
    }
}

/// Returns what the names of a split model's files start with.
fn prefix(output: &Path) -> PathBuf {
    let is_gguf = output.extension().is_some_and(|extension| extension == "gguf");
    if is_gguf { output.with_extension("") } else { output.to_owned() }
}

/// Tells what would keep the new model from being loaded: it was asked for, but perhaps not meant.
fn warn_about(new: &Shards) {
    let report = check_shards(new, Depth::Header);
    let faults = report.findings().iter().filter(|found| found.severity() == Severity::Error);
    for fault in faults.take(3) {
        notice(format_args!("the new model can't be run: {fault}"));
    }
}

/// Refuses a place where no new file can or should be.
fn check_output<'a>(
    mut sources: impl Iterator<Item = &'a Gguf>,
    output: &Path,
    force: bool,
) -> Result<()> {
    let shown = output.display();
    let metadata = match std::fs::metadata(output) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let folder = space::folder_of(output);
            if !folder.is_dir() {
                let message = format!("there is no folder {}", folder.display());
                return Err(Failure::new(message).advice("create it first").into());
            }
            return Ok(());
        }
        Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
    };
    if metadata.is_dir() {
        let failure = Failure::usage(format!("{shown} is a directory"));
        return Err(failure.advice("OUT is the name of the file to write").into());
    }
    if !metadata.is_file() {
        return Err(Failure::usage(format!("{shown} is not a regular file")).into());
    }
    let is_input =
        |file: &Gguf| file.path().is_some_and(|path| smol_gguf::is_same_file(path, output));
    if sources.any(is_input) {
        let failure = Failure::usage(format!("{shown} is the input itself"));
        return Err(failure.advice("write to another name, and rename it afterwards").into());
    }
    if !force {
        let failure = Failure::new(format!("{shown} is there already"));
        return Err(failure.advice("--force replaces it when the new file is complete").into());
    }
    Ok(())
}

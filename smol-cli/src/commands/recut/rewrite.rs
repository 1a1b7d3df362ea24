//! A changed copy of a model, in one sequential pass.

use super::{Args, Work, explained, print_json};
use crate::cli::Global;
use crate::failure::Failure;
use crate::units::bytes;
use crate::{model, progress, space};
use anyhow::{Context as _, Result};
use serde_json::json;
use smol_gguf::{EXPERT_ALIGNMENT, Gguf, Rewriter, Shards};
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

/// Writes the model as `args` say.
pub(super) fn run(input: &OsStr, output: &Path, args: &Args, global: &Global) -> Result<()> {
    let input = model::resolve(input, global)?;
    let shards = Shards::open(&input)?;
    // Before anything is written: a part may be missing at the very end.
    for (file, tensor) in shards.tensors() {
        file.file_offset(tensor)?;
    }
    let mut plan = Rewriter::from_shards(&shards);
    if args.experts_last && !plan.experts_last() {
        let message = format!("{} has no routed experts", input.display());
        return Err(Failure::new(message)
            .advice(
                "--experts-last is for mixtures of experts; `smol inspect` shows a model's tensors",
            )
            .into());
    }
    check_output(&shards, output, args.force)?;
    let (tensors, len) = plan.writer()?.layout()?;
    let folder = space::folder_of(output);
    space::check(folder, "the new file", len, "free some space, or write to another disk")?;

    let start = Instant::now();
    let name = output.file_name().unwrap_or(output.as_os_str()).to_string_lossy();
    let work = Work::new(progress::bytes(name, len))?;
    let result = plan.write_file_with(output, |position| work.reached(position));
    work.bar.finish_and_clear();
    explained(result, "stopped; nothing was written")?;

    let new = Gguf::read_header(output)?;
    let seconds = start.elapsed().as_secs_f64();
    let report = Report {
        input: &input,
        output,
        size: len,
        old_size: shards.file_len(),
        front: new.experts_offset(),
        tensors: tensors.len(),
        experts: new.experts().count(),
        aligned: aligned_experts(&new)?,
        seconds,
    };
    if args.json { report.print_json() } else { report.print() }
}

struct Report<'a> {
    input: &'a Path,
    output: &'a Path,
    size: u64,
    old_size: u64,
    /// Bytes before the experts.
    front: Option<u64>,
    tensors: usize,
    /// Tensors of experts, and those of them that start at whole blocks of the disk.
    experts: usize,
    aligned: usize,
    seconds: f64,
}

impl Report<'_> {
    fn mb_per_s(&self) -> f64 {
        self.size as f64 / 1e6 / self.seconds.max(1e-6)
    }

    fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let speed = self.mb_per_s();
        let (size, seconds) = (bytes(self.size), self.seconds);
        writeln!(out, "{}: {size} in {seconds:.1} s ({speed:.0} MB/s)", self.output.display())?;
        if let Some(front) = self.front {
            let (size, front) = (bytes(self.size - front), bytes(front));
            let (aligned, all) = (self.aligned, self.experts);
            writeln!(
                out,
                "experts: {size} behind the first {front}, {aligned} of {all} tensors at whole blocks"
            )?;
        }
        Ok(())
    }

    fn print_json(&self) -> Result<()> {
        print_json(&json!({
            "in": self.input.to_string_lossy(),
            "out": self.output.to_string_lossy(),
            "in_bytes": self.old_size,
            "out_bytes": self.size,
            "tensors": self.tensors,
            "experts_offset": self.front,
            "expert_tensors": self.experts,
            "aligned_expert_tensors": self.aligned,
            "seconds": self.seconds,
            "mb_per_s": self.mb_per_s(),
        }))
    }
}

/// Counts the tensors of experts that start where direct reads can.
fn aligned_experts(file: &Gguf) -> Result<usize> {
    let mut aligned = 0;
    for (_, tensor) in file.experts() {
        aligned += usize::from(file.file_offset(tensor)?.is_multiple_of(EXPERT_ALIGNMENT));
    }
    Ok(aligned)
}

/// Refuses a place where no new file can or should be.
fn check_output(shards: &Shards, output: &Path, force: bool) -> Result<()> {
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
    if shards.iter().any(is_input) {
        let failure = Failure::usage(format!("{shown} is the input itself"));
        return Err(failure.advice("write to another name, and rename it afterwards").into());
    }
    if !force {
        let failure = Failure::new(format!("{shown} is there already"));
        return Err(failure.advice("--force replaces it when the new file is complete").into());
    }
    Ok(())
}

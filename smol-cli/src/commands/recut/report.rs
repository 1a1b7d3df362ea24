//! What was written.

use super::edits::Requantized;
use super::input::Input;
use super::{head, print_json};
use crate::units::bytes;
use anyhow::Result;
use serde_json::json;
use smol_gguf::{EXPERT_ALIGNMENT, Gguf, PrunedHead, Shards};
use std::io::Write as _;
use std::path::Path;

/// A new model, and what it was made of.
pub(super) struct Report<'a> {
    pub(super) input: &'a Input,
    pub(super) output: &'a Path,
    pub(super) new: &'a Shards,
    pub(super) head: Option<PrunedHead>,
    pub(super) requantized: Option<Requantized>,
    pub(super) seconds: f64,
}

impl Report<'_> {
    pub(super) fn show(&self, as_json: bool) -> Result<()> {
        if as_json { self.print_json() } else { self.print() }
    }

    fn mb_per_s(&self) -> f64 {
        self.new.file_len() as f64 / 1e6 / self.seconds.max(1e-6)
    }

    /// Bytes before the experts, if they are at the end of the only file.
    fn front(&self) -> Option<u64> {
        if self.new.len() == 1 { self.new.first().experts_offset() } else { None }
    }

    /// The number of tensors of experts, and of those of them that start where direct reads can.
    fn experts(&self) -> Result<(usize, usize)> {
        let (mut all, mut aligned) = (0, 0);
        for file in self.new.iter() {
            for (_, tensor) in file.experts() {
                all += 1;
                aligned += usize::from(file.file_offset(tensor)?.is_multiple_of(EXPERT_ALIGNMENT));
            }
        }
        Ok((all, aligned))
    }

    fn print(&self) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let (speed, seconds) = (self.mb_per_s(), self.seconds);
        let len = self.new.file_len();
        let files = match self.new.len() {
            1 => String::new(),
            count => format!(" in {count} files"),
        };
        let (size, output) = (bytes(len), self.output.display());
        writeln!(out, "{output}: {size}{files} in {seconds:.1} s ({speed:.0} MB/s)")?;
        if let Some(front) = self.front() {
            let (size, front) = (bytes(len - front), bytes(front));
            let (all, aligned) = self.experts()?;
            writeln!(
                out,
                "experts: {size} behind the first {front}, {aligned} of {all} tensors at whole blocks"
            )?;
        }
        if let Some(head) = &self.head {
            head::print(&mut out, head)?;
        }
        if let Some(Requantized { tensors, old_bytes, bytes: new }) = &self.requantized {
            let (old, new) = (bytes(*old_bytes), bytes(*new));
            writeln!(out, "requantized: {tensors} tensors, {old} before, {new} now")?;
        }
        Ok(())
    }

    fn print_json(&self) -> Result<()> {
        let (experts, aligned) = self.experts()?;
        let files = self.new.iter().filter_map(Gguf::path);
        print_json(&json!({
            "in": self.input.name.to_string_lossy(),
            "out": self.output.to_string_lossy(),
            "files": files.map(Path::to_string_lossy).collect::<Vec<_>>(),
            "in_bytes": self.input.shards.file_len(),
            "out_bytes": self.new.file_len(),
            "tensors": self.new.tensors().count(),
            "experts_offset": self.front(),
            "expert_tensors": experts,
            "aligned_expert_tensors": aligned,
            "head": self.head.as_ref().map(head::json),
            "requantized": self.requantized.as_ref().map(Requantized::json),
            "seconds": self.seconds,
            "mb_per_s": self.mb_per_s(),
        }))
    }
}

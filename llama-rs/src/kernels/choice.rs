//! Which layouts this CPU computes slower than llama.cpp's own code: measured once, kept in a file.
//!
//! Kernels are written for the cores that most devices have; on another one the plain way can win.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use ggml_sys::build_info;
use serde::{Deserialize, Serialize};
use smol_engine::machine::Cpu;
use smol_gguf::TensorType;

use super::{Layout, MatrixShape, MeasureOptions, Operation, Pair, layouts};
use crate::error::Result;

/// A layout stays in use unless it is clearly slower: measurements of milliseconds differ by some percent.
const LEAST_RATIO: f64 = 0.9;
/// Rows and columns of what is measured: more than a first cache, less than a second one.
const SHAPE: (usize, usize) = (512, 2048);
const TIME: Duration = Duration::from_millis(10);

/// The file's content.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Measured {
    /// What the ratios hold for.
    machine: String,
    /// How many times as fast as stock each layout generates.
    ratios: BTreeMap<String, f64>,
}

/// Returns the names of the layouts for these types that are slower here than what stock llama.cpp does; `file` keeps
/// what was measured. A file that can't be read or written is no error: then it is measured again.
pub(crate) fn slower_than_stock(file: &Path, types: &BTreeSet<TensorType>) -> Result<Vec<String>> {
    let mut measured = Measured::read(file, &machine());
    let mut slower = Vec::new();
    let mut new = false;
    for layout in layouts()? {
        if layout.is_optional() || !types.contains(&layout.weight_type()) {
            continue;
        }
        let key = format!("{} {}", layout.name(), layout.version());
        let ratio = match measured.ratios.get(&key) {
            Some(ratio) => *ratio,
            None => {
                new = true;
                let ratio = measure(layout)?;
                measured.ratios.insert(key, ratio);
                ratio
            }
        };
        if ratio < LEAST_RATIO {
            slower.push(layout.name().to_owned());
        }
    }
    if new && let Err(error) = measured.write(file) {
        tracing::debug!("{}: {error}", file.display());
    }
    Ok(slower)
}

fn measure(layout: Layout) -> Result<f64> {
    let pair = Pair::new(layout, MatrixShape::new(SHAPE.0, SHAPE.1))?;
    let options = MeasureOptions { threads: 1, time: TIME, ..MeasureOptions::default() };
    Ok(pair.measure(&Operation::product(1), &options)?.ratio)
}

fn machine() -> String {
    let cpu = Cpu::probe().name.unwrap_or_default();
    let level = ggml_sys::cpu::selected().name;
    format!("{cpu}; {level}; {}; {}", env!("CARGO_PKG_VERSION"), build_info().llama_commit)
}

impl Measured {
    /// What the file has for this machine; nothing if it is another one's, or no such file.
    fn read(file: &Path, machine: &str) -> Self {
        let read = std::fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let same = read.filter(|measured: &Self| measured.machine == machine);
        same.unwrap_or_else(|| Self { machine: machine.to_owned(), ratios: BTreeMap::new() })
    }

    /// Replaces the file as a whole, so that no other process reads a half.
    fn write(&self, file: &Path) -> std::io::Result<()> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let draft = file.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&draft, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(&draft, file).inspect_err(|_| {
            let _ = std::fs::remove_file(&draft);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_kept_for_this_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/layouts.json");
        let mut measured = Measured::read(&file, "a");
        assert!(measured.ratios.is_empty());
        measured.ratios.insert("x 1".to_owned(), 0.5);
        measured.write(&file).unwrap();
        assert_eq!(Measured::read(&file, "a"), measured);
        assert!(Measured::read(&file, "b").ratios.is_empty());
        std::fs::write(&file, "{").unwrap();
        assert!(Measured::read(&file, "a").ratios.is_empty());
    }

    #[test]
    fn a_slow_layout_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("layouts.json");
        let types = BTreeSet::from([TensorType::TQ2_0]);
        let all = layouts().unwrap();
        let layout = all.iter().find(|layout| layout.weight_type() == TensorType::TQ2_0).unwrap();
        slower_than_stock(&file, &types).unwrap();
        let mut measured = Measured::read(&file, &machine());
        let ratio = measured.ratios.values_mut().next().unwrap();
        assert!(*ratio > 0.0);
        *ratio = 0.5;
        measured.write(&file).unwrap();
        assert_eq!(slower_than_stock(&file, &types).unwrap(), [layout.name()]);
    }
}

//! The `--layouts` argument, and what is told about layouts after a load.

use crate::cli::Global;
use crate::units::bytes;
use serde::Serialize;
use smolmaxxing::{LayoutOptions, LayoutSummary};
use std::path::PathBuf;

/// How weights are packed.
#[derive(Debug, clap::Args)]
pub struct LayoutArgs {
    /// Packed layouts of weights: `auto`, `off`, or names of layouts to prefer, or to avoid with a `-` in front
    /// (see `smol kernels`)
    #[arg(long, value_name = "LAYOUTS", default_value = "auto", allow_hyphen_values = true,
        value_parser = parse, hide_default_value = false, help_heading = "Computing")]
    layouts: LayoutOptions,
}

impl LayoutArgs {
    /// Returns the choice, with the file that keeps what was measured on this machine.
    pub fn options(&self, global: &Global) -> LayoutOptions {
        let mut options = self.layouts.clone();
        options.measured = measured(global);
        options
    }
}

/// Returns the file that keeps how fast this machine is with each layout; `None` without a cache folder.
pub fn measured(global: &Global) -> Option<PathBuf> {
    Some(global.cache().ok()?.folder().join("layouts.json"))
}

fn parse(text: &str) -> Result<LayoutOptions, String> {
    let mut options = LayoutOptions::default();
    match text {
        "auto" => return Ok(options),
        "off" => {
            options.enabled = false;
            return Ok(options);
        }
        _ => {}
    }
    for name in text.split(',') {
        let (list, name) = match name.strip_prefix('-') {
            Some(name) => (&mut options.avoid, name),
            None => (&mut options.prefer, name),
        };
        if name.is_empty() || matches!(name, "auto" | "off") {
            return Err(
                "expected `auto`, `off`, or names of layouts, separated by commas".to_owned()
            );
        }
        list.push(name.to_owned());
    }
    Ok(options)
}

/// The summary as it stands in every `--json`.
#[derive(Debug, Serialize)]
pub struct LayoutReport {
    matrices: Vec<LayoutRow>,
    /// Megabytes of quantized matrices without a packed layout.
    slow_mb: f64,
}

#[derive(Debug, Serialize)]
struct LayoutRow {
    layout: String,
    tensors: usize,
    mb: f64,
}

impl From<&LayoutSummary> for LayoutReport {
    fn from(summary: &LayoutSummary) -> Self {
        let mb = |bytes: u64| (bytes as f64 / 1e3).round() / 1e3;
        let row = |(layout, tensors, bytes): &(String, usize, u64)| LayoutRow {
            layout: layout.clone(),
            tensors: *tensors,
            mb: mb(*bytes),
        };
        let matrices = summary.layouts.iter().map(row).collect();
        Self { matrices, slow_mb: mb(summary.slow_bytes) }
    }
}

/// The summary on one line.
pub fn layout_line(summary: &LayoutSummary) -> String {
    let mut parts: Vec<_> = summary
        .layouts
        .iter()
        .map(|(name, tensors, size)| format!("{tensors} {name} ({})", bytes(*size)))
        .collect();
    parts.push(format!("{} off the fast path", bytes(summary.slow_bytes)));
    format!("matrices: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_chosen_by_name() {
        assert_eq!(parse("auto").unwrap(), LayoutOptions::default());
        assert!(!parse("off").unwrap().enabled);
        let chosen = parse("a-8,-b-8,c").unwrap();
        assert_eq!(chosen.prefer, ["a-8", "c"]);
        assert_eq!(chosen.avoid, ["b-8"]);
        for wrong in ["", "a,,b", "-", "off,a", "a,auto"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

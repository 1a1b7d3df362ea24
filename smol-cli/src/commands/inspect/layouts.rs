//! `smol inspect --layouts`: what computes with each matrix of a model.

use crate::arguments::{LayoutReport, load_model, measured};
use crate::cli::Global;
use crate::interrupt;
use crate::report::print;
use crate::units::bytes;
use anyhow::Result;
use serde::Serialize;
use smolmaxxing::{
    CancelToken, LayoutOptions, LayoutSummary, WeightKernel, WeightLayout, WeightUse,
};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    summary: LayoutReport,
    weights: Vec<Row<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'a str,
    #[serde(rename = "use")]
    used_as: &'static str,
    shape: [i64; 4],
    bytes: u64,
    /// Name of the layout; `repack`: one of llama.cpp's; absent: none.
    layout: Option<&'a str>,
    /// Why there is none.
    reason: Option<&'a str>,
    slow: bool,
}

impl<'a> Row<'a> {
    fn new(weight: &'a WeightLayout) -> Self {
        let (layout, reason) = match &weight.kernel {
            WeightKernel::Packed { layout } => (Some(layout.as_str()), None),
            WeightKernel::Repacked => (Some("repack"), None),
            WeightKernel::Plain { reason } => (None, Some(reason.as_str())),
            _ => (None, None),
        };
        let used_as = match weight.used_as {
            WeightUse::Experts => "experts",
            WeightUse::Rows => "rows",
            _ => "matrix",
        };
        Self {
            name: &weight.name,
            ty: &weight.ty,
            used_as,
            shape: weight.shape,
            bytes: weight.bytes,
            layout,
            reason,
            slow: weight.is_slow(),
        }
    }
}

/// Loads the model and prints its matrices, the sums last.
pub fn run(path: &Path, json: bool, global: &Global) -> Result<ExitCode> {
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let mut layouts = LayoutOptions::default();
    layouts.measured = measured(global);
    let model = load_model(path, &cancel, |model| model.layouts(layouts))?;
    let rows: Vec<_> = model.layouts().iter().map(Row::new).collect();
    let summary = model.layout_summary();
    let report = Report { summary: LayoutReport::from(&summary), weights: rows };
    print(json, &report, |out| text(out, &report.weights, &summary))?;
    Ok(ExitCode::SUCCESS)
}

fn text(out: &mut dyn Write, rows: &[Row<'_>], summary: &LayoutSummary) -> io::Result<()> {
    writeln!(
        out,
        "{:36} {:8} {:8} {:>20} {:>10}  layout",
        "matrix", "type", "use", "shape", "size"
    )?;
    for row in rows {
        let shape: Vec<_> =
            row.shape.iter().filter(|n| **n != 1).map(ToString::to_string).collect();
        let kernel =
            row.layout.map_or_else(|| format!("- ({})", row.reason.unwrap_or("")), str::to_owned);
        writeln!(
            out,
            "{:36} {:8} {:8} {:>20} {:>10}  {kernel}",
            row.name,
            row.ty,
            row.used_as,
            shape.join(" x "),
            bytes(row.bytes)
        )?;
    }
    for (name, tensors, size) in &summary.layouts {
        writeln!(out, "{name:16} {tensors:5} matrices {:>10}", bytes(*size))?;
    }
    writeln!(out, "off the fast path      {:>20}", bytes(summary.slow_bytes))
}

//! Results about layouts, as tables and as JSON.

use crate::table::table;
use serde::Serialize;
use smolmaxxing::kernels::{Finding, Layout, Measurement, Operation, Pair};
use std::fmt::Write as _;

/// Everything that was found.
#[derive(Serialize)]
pub struct Report {
    pub cpu: Option<String>,
    /// Level of the kernels that ran.
    pub level: &'static str,
    pub llama_commit: &'static str,
    pub threads: u32,
    /// Measured; `null` if speed was not.
    pub clock_ghz: Option<f64>,
    pub layouts: Vec<LayoutReport>,
}

#[derive(Serialize)]
pub struct LayoutReport {
    pub name: &'static str,
    pub version: u32,
    /// Of the weights.
    #[serde(rename = "type")]
    pub weight_type: &'static str,
    pub group_rows: usize,
    pub column_multiple: usize,
    pub bits_per_weight: f64,
    /// Of the type's own form.
    pub plain_bits_per_weight: f64,
    pub exact: bool,
    pub optional: bool,
    /// Whether no fault was found.
    pub right: bool,
    pub error_limit: f64,
    pub checks: Vec<Check>,
    pub speeds: Vec<Speed>,
    pub skipped: Vec<Skipped>,
}

#[derive(Serialize)]
pub struct Check {
    pub name: &'static str,
    pub shape: Option<String>,
    pub columns: Option<usize>,
    pub error: Option<f64>,
    pub fault: Option<String>,
}

/// A matrix that was not measured.
#[derive(Serialize)]
pub struct Skipped {
    pub shape: String,
    pub reason: String,
}

/// One operation, with the layout and as stock llama.cpp does it.
#[derive(Serialize)]
pub struct Speed {
    pub op: &'static str,
    /// Experts if there are any, rows, columns.
    pub shape: String,
    pub tokens: usize,
    /// Experts that each token used.
    pub used: Option<usize>,
    /// How stock llama.cpp keeps the weights: `plain` or `repack`.
    pub stock: &'static str,
    pub samples: usize,
    pub best_s: f64,
    pub median_s: f64,
    pub stock_best_s: f64,
    pub stock_median_s: f64,
    /// How many times as fast as stock, by the best samples.
    pub ratio: f64,
    /// Median of neighbouring samples.
    pub median_ratio: f64,
    /// Products of a weight and an activation, in 10^9 a second, of the best sample.
    pub gweights_s: f64,
    pub stock_gweights_s: f64,
    /// Bytes of weights that are read, and 10^9 of them a second; `null` for several tokens.
    pub bytes: Option<usize>,
    pub gb_s: Option<f64>,
    /// How fast a block of that many bytes can be read, which bounds the speed for one token.
    pub memory_gb_s: Option<f64>,
    pub error: f64,
}

impl Report {
    pub fn new(cpu: Option<String>, level: &'static str, threads: u32) -> Self {
        let llama_commit = smolmaxxing::build_info().llama_commit;
        Self { cpu, level, llama_commit, threads, clock_ghz: None, layouts: Vec::new() }
    }

    pub fn is_right(&self) -> bool {
        self.layouts.iter().all(LayoutReport::is_right)
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write!(text, "{}, {}", self.cpu.as_deref().unwrap_or("unknown CPU"), self.level);
        let _ =
            write!(text, ", {} thread{}", self.threads, if self.threads == 1 { "" } else { "s" });
        if let Some(clock) = self.clock_ghz {
            let _ = write!(text, ", {clock:.2} GHz");
        }
        text.push_str("\n\n");
        text.push_str(&table(
            &["layout", "weights", "kind", "bits", "plain bits", "rows", "result", "largest error"],
            3,
            self.layouts.iter().map(LayoutReport::cells).collect(),
        ));
        for layout in &self.layouts {
            for check in &layout.checks {
                let Some(fault) = &check.fault else { continue };
                let shape = check.shape.as_deref().unwrap_or_default();
                let _ = writeln!(text, "\n{}, {} {shape}: {fault}", layout.name, check.name);
            }
            for speed in layout.speeds.iter().filter(|speed| !layout.allows(speed)) {
                let Speed { op, shape, tokens, error, .. } = speed;
                let name = layout.name;
                let _ = writeln!(
                    text,
                    "\n{name}, {op} {shape}, {tokens} tokens: differs by {error:.1e}"
                );
            }
        }
        let speeds: Vec<_> = self
            .layouts
            .iter()
            .flat_map(|layout| layout.speeds.iter().map(|speed| self.speed_cells(layout, speed)))
            .collect();
        if !speeds.is_empty() {
            text.push('\n');
            text.push_str(&table(
                &[
                    "layout",
                    "matrix",
                    "tokens",
                    "Gw/s",
                    "GB/s",
                    "w/cycle",
                    "of memory",
                    "stock",
                    "Gw/s",
                    "ratio",
                    "error",
                ],
                2,
                speeds,
            ));
            text.push_str(
                "\nGw/s: 10^9 weights times activations a second, the best of several samples; of memory: GB/s as a \
                 part of the\nspeed at which a block of that size is read; stock: how llama.cpp keeps such weights \
                 itself, and its Gw/s; ratio:\nbest over best, above 1 the layout is faster; error: largest difference \
                 to stock's result over its root mean square\n",
            );
        }
        text
    }

    fn speed_cells(&self, layout: &LayoutReport, speed: &Speed) -> Vec<String> {
        let gb_s = speed.gb_s.zip(speed.memory_gb_s);
        let tokens = match speed.used {
            Some(used) => format!("{} x {used}", speed.tokens),
            None => speed.tokens.to_string(),
        };
        // The clock of one core says nothing about several.
        let per_cycle = self.clock_ghz.map(|ghz| speed.gweights_s / ghz / f64::from(self.threads));
        let unknown = || "-".to_owned();
        vec![
            layout.name.to_owned(),
            speed.shape.clone(),
            tokens,
            digits(speed.gweights_s),
            gb_s.map_or_else(unknown, |(gb_s, _)| digits(gb_s)),
            per_cycle.map_or_else(unknown, digits),
            gb_s.map_or_else(unknown, |(gb_s, memory)| format!("{:.0} %", gb_s / memory * 100.0)),
            speed.stock.to_owned(),
            digits(speed.stock_gweights_s),
            format!("{:.2}", speed.ratio),
            format!("{:.1e}", speed.error),
        ]
    }
}

impl LayoutReport {
    pub fn new(layout: Layout, findings: Vec<Finding>) -> Self {
        Self {
            name: layout.name(),
            version: layout.version(),
            weight_type: layout.weight_type().name(),
            group_rows: layout.group_rows(),
            column_multiple: layout.column_multiple(),
            bits_per_weight: layout.bits_per_weight(),
            plain_bits_per_weight: layout.weight_type().bits_per_element(),
            exact: layout.is_exact(),
            optional: layout.is_optional(),
            right: findings.iter().all(|finding| finding.fault.is_none()),
            error_limit: layout.error_limit(),
            checks: findings.into_iter().map(Check::of).collect(),
            speeds: Vec::new(),
            skipped: Vec::new(),
        }
    }

    pub fn is_right(&self) -> bool {
        self.right
    }

    /// Adds a measurement, whose result may be wrong, too.
    pub fn add(&mut self, speed: Speed) {
        self.right &= self.allows(&speed);
        self.speeds.push(speed);
    }

    fn allows(&self, speed: &Speed) -> bool {
        // What a lossy layout loses depends on the weights.
        !self.exact || speed.error <= self.error_limit
    }

    fn largest_error(&self) -> Option<f64> {
        // In the table of speeds a lossy layout's error is what it has lost.
        let speeds = self.speeds.iter().filter(|_| self.exact).map(|speed| speed.error);
        let errors = self.checks.iter().filter_map(|check| check.error);
        errors.chain(speeds).reduce(f64::max)
    }

    fn cells(&self) -> Vec<String> {
        let kind = match (self.exact, self.optional) {
            (true, false) => "exact",
            (true, true) => "exact, if named",
            (false, true) => "lossy, if named",
            (false, false) => "lossy",
        };
        vec![
            self.name.to_owned(),
            self.weight_type.to_owned(),
            kind.to_owned(),
            format!("{:.3}", self.bits_per_weight),
            format!("{:.3}", self.plain_bits_per_weight),
            self.group_rows.to_string(),
            if self.right { "right".to_owned() } else { "WRONG".to_owned() },
            self.largest_error().map_or("-".to_owned(), |error| format!("{error:.1e}")),
        ]
    }
}

impl Check {
    fn of(finding: Finding) -> Self {
        Self {
            name: finding.name,
            shape: finding.shape.map(|shape| shape.to_string()),
            columns: finding.columns,
            error: finding.error,
            fault: finding.fault,
        }
    }
}

impl Speed {
    /// `bytes`: of the weights that one token needs; `bandwidth`: at which they can be read, in bytes a second.
    pub fn new(
        pair: &Pair,
        operation: &Operation,
        tokens: usize,
        measured: &Measurement,
        bytes: usize,
        bandwidth: Option<f64>,
    ) -> Self {
        let shape = pair.ours().shape();
        let rate = |amount: f64, seconds: f64| amount / 1e9 / seconds.max(1e-12);
        let best_s = measured.ours.best.as_secs_f64();
        let stock_best_s = measured.stock.best.as_secs_f64();
        Self {
            op: operation.name(),
            shape: shape.to_string(),
            tokens,
            used: shape.experts.map(|_| operation.columns() / tokens),
            stock: pair.stock().storage().name(),
            samples: measured.samples,
            best_s,
            median_s: measured.ours.median.as_secs_f64(),
            stock_best_s,
            stock_median_s: measured.stock.median.as_secs_f64(),
            ratio: measured.ratio,
            median_ratio: measured.median_ratio,
            gweights_s: rate(measured.products as f64, best_s),
            stock_gweights_s: rate(measured.products as f64, stock_best_s),
            bytes: bandwidth.map(|_| bytes),
            gb_s: bandwidth.map(|_| rate(bytes as f64, best_s)),
            memory_gb_s: bandwidth.map(|speed| speed / 1e9),
            error: measured.comparison.error,
        }
    }
}

/// About three digits.
fn digits(value: f64) -> String {
    let places = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits() {
        assert_eq!(
            [0.123, 9.994, 9.996, 99.96, 1234.5].map(digits),
            ["0.12", "9.99", "10.0", "100", "1234"]
        );
    }
}

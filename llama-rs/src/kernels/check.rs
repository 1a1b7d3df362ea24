//! Everything about a layout that is either right or wrong.

use std::time::Duration;

use super::pair::Beside;
use super::random::{Random, Weights};
use super::{Layout, MatrixShape, Operation, Pair};
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};

/// How to check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Threads that compute.
    pub threads: u32,
    /// About the time that a comparison may take; with less there are fewer rows of activations.
    pub time: Duration,
    /// Stops the check.
    pub cancel: CancelToken,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { threads: 1, time: Duration::from_millis(300), cancel: CancelToken::new() }
    }
}

/// The result of one part of a check.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Finding {
    /// What was checked: `self-test`, `bits` (the kernels with each other), or ggml's name of an operation.
    pub name: &'static str,
    /// The weights: matrices (with experts), rows, columns.
    pub shape: Option<MatrixShape>,
    /// Rows of activations, or ids.
    pub columns: Option<usize>,
    /// The largest difference, as in [`Comparison::error`](super::Comparison::error).
    pub error: Option<f64>,
    /// What is wrong.
    pub fault: Option<String>,
}

/// Most rows of activations in a comparison.
const MOST_COLUMNS: usize = 512;
/// A mixture of experts as in a prompt of 64 tokens.
const EXPERTS: usize = 32;
const EXPERTS_USED: usize = 8;
const TOKENS: usize = 64;

impl Layout {
    /// Returns the largest [`Comparison::error`](super::Comparison::error) that is no fault.
    ///
    /// Exact layouts are compared with ggml's own kernels, from which they differ in the order of float additions only.
    /// What a lossy one makes of weights depends on them, so it is compared with products of that, from which it differs
    /// by the rounding of activations to 8 bits.
    pub fn error_limit(&self) -> f64 {
        if self.is_exact() { 1e-4 } else { 0.1 }
    }
}

/// Checks a layout: its self-test, its kernels against each other, and operations with it against ggml's own code.
///
/// # Errors
/// [`ErrorKind::Cancelled`]; [`ErrorKind::OutOfMemory`]. What is wrong with the layout is no error but a fault of a finding.
pub fn check(layout: Layout, options: &CheckOptions) -> Result<Vec<Finding>> {
    let mut findings = vec![Finding::new("self-test", layout.self_test())];
    let mut random = Random::new(3);
    for blocks in [1, 2, 7] {
        options.continues()?;
        findings.push(bits(layout, blocks * layout.column_multiple(), &mut random)?);
    }
    if findings.iter().any(|finding| finding.fault.is_some()) {
        // What is that wrong could do harm in a graph.
        return Ok(findings);
    }
    let compare = |pair: &Pair, operation: Operation| {
        options.continues()?;
        let error = pair.compare(&operation, options.threads)?.error;
        let limit = layout.error_limit();
        let fault = (error.is_nan() || error > limit).then(|| {
            format!("differs from ggml's own result by {error:.1e}, more than {limit:.0e}")
        });
        Ok::<_, Error>(Finding {
            shape: Some(pair.ours().shape()),
            columns: Some(operation.columns()),
            error: Some(error),
            ..Finding::new(operation.name(), fault)
        })
    };
    let beside = if layout.is_exact() { Beside::Stock } else { Beside::Unpacked };
    // The last group is not full.
    let multiple = layout.column_multiple();
    let rows = 4 * layout.group_rows() + 1;
    let shape = MatrixShape::new(rows, 2048_usize.next_multiple_of(multiple));
    let pair = Pair::beside(layout, shape, beside)?;
    findings.push(compare(&pair, Operation::product(1))?);
    let afford = |pair: &Pair, operation: &dyn Fn(usize) -> Operation, most| {
        pair.affordable(operation, most, options.time, options.threads)
    };
    let columns = afford(&pair, &Operation::product, MOST_COLUMNS)?;
    findings.push(compare(&pair, Operation::product(columns))?);
    let mut got = compare(&pair, Operation::rows(rows))?;
    if got.error != Some(0.0) {
        got.fault = Some("rows differ from the right ones".to_owned());
    }
    findings.push(got);
    let columns = 1536_usize.next_multiple_of(multiple);
    let rows = 2 * layout.group_rows() + 3;
    let pair = Pair::beside(layout, MatrixShape::experts(EXPERTS, rows, columns), beside)?;
    let operation = |tokens| Operation::experts(tokens, EXPERTS_USED, 1);
    let tokens = afford(&pair, &operation, TOKENS)?;
    findings.push(compare(&pair, operation(tokens))?);
    Ok(findings)
}

/// Compares the kernels with each other on rows of `columns` weights.
fn bits(layout: Layout, columns: usize, random: &mut Random) -> Result<Finding> {
    // One group that is full and one that is not.
    let rows = layout.group_rows() + 3;
    let mut activations = random.activations(19 * columns);
    // Extremes: none, the largest, all of one size, and so small that they are denormal.
    activations[..columns].fill(0.0);
    activations[columns..2 * columns].fill(-1.0);
    activations[2 * columns..3 * columns].iter_mut().for_each(|x| *x *= 1e30);
    activations[3 * columns..4 * columns].iter_mut().for_each(|x| *x *= 1e-39);
    let mut refusal = None;
    for weights in Weights::ALL {
        let bytes = weights.rows(layout.weight_type(), rows, columns, random)?;
        match layout.verify(columns, &bytes, &activations) {
            Ok(found) => {
                return Ok(Finding {
                    shape: Some(MatrixShape::new(rows, columns)),
                    columns: Some(activations.len() / columns),
                    ..Finding::new("bits", found.fault)
                });
            }
            Err(error) if error.kind() == &ErrorKind::Unsupported => refusal = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(refusal.unwrap_or_else(|| Error::invalid("no weights")))
}

impl CheckOptions {
    fn continues(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::cancelled("the check")) } else { Ok(()) }
    }
}

impl Finding {
    fn new(name: &'static str, fault: Option<String>) -> Self {
        Self { name, shape: None, columns: None, error: None, fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::kernels::faulty;

    #[test]
    fn a_faulty_layout_does_not_pass() {
        for (raw, words) in faulty::all() {
            if words == "behind its output" {
                // The self-test has no room for what is written there.
                continue;
            }
            let layout = Layout::from_raw(raw).unwrap();
            let findings = check(layout, &CheckOptions::default()).unwrap();
            assert!(findings[0].fault.is_some(), "{words}: {findings:?}");
            let bits = findings.iter().filter(|finding| finding.name == "bits");
            assert!(
                bits.clone().count() > 0 && bits.clone().all(|finding| finding.fault.is_some())
            );
        }
    }

    #[test]
    fn cancelled_checks_end() {
        let options = CheckOptions::default();
        options.cancel.cancel();
        let layout = super::super::layouts().unwrap()[0];
        assert!(check(layout, &options).unwrap_err().is_cancelled());
    }
}

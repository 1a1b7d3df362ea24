//! From bytes to tokens a second.

use super::Tally;
use crate::expert::trace::{Graph, Trace};
use std::time::Duration;

/// How fast a machine reads and computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Bytes a second that experts are read with.
    pub flash: f64,
    /// Seconds that computing one token takes if nothing has to be read.
    pub compute: f64,
}

impl Speed {
    /// Predicts tokens a second if reads and computing take turns, as without prefetch.
    pub fn tokens_per_second(&self, tally: &Tally) -> f64 {
        1.0 / (self.compute + tally.bytes_per_token() / self.flash)
    }

    /// Returns the most tokens a second: reads and computing at the same time, all the time.
    pub fn most_tokens_per_second(&self, tally: &Tally) -> f64 {
        1.0 / self.compute.max(tally.bytes_per_token() / self.flash)
    }
}

/// Returns the bytes a second of a trace's reads over the time in which there were any. `None` if
/// it has no reads.
pub fn recorded_flash(trace: &Trace) -> Option<f64> {
    let reads = trace.graphs.iter().flat_map(|graph| &graph.reads);
    let mut spans: Vec<_> = { reads.clone() }
        .map(|read| (read.started, read.started.saturating_add(read.took)))
        .collect();
    spans.sort_unstable();
    let (mut busy, mut until) = (Duration::ZERO, Duration::ZERO);
    for (start, end) in spans {
        busy += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    let bytes: f64 = reads.map(|read| read.bytes as f64).sum();
    (!busy.is_zero()).then(|| bytes / busy.as_secs_f64())
}

/// Returns the seconds that a token of a trace took besides waiting for reads: the median of the
/// times from the end of one graph of one token to the end of the next. `None` if there are no
/// such graphs with times.
pub fn recorded_compute(trace: &Trace) -> Option<f64> {
    let pairs = trace.graphs.windows(2).map(|pair| (&pair[0], &pair[1]));
    let single = pairs.filter(|(before, now)| before.tokens() == 1 && now.tokens() == 1);
    let timed = single.filter(|(_, now)| !now.took.is_zero());
    let end = |graph: &Graph| graph.started.saturating_add(graph.took);
    let mut times: Vec<_> = timed
        .map(|(before, now)| end(now).saturating_sub(end(before)).saturating_sub(now.waited))
        .collect();
    let middle = times.len() / 2;
    (!times.is_empty()).then(|| times.select_nth_unstable(middle).1.as_secs_f64())
}

//! What a pager has done so far.

use serde::Serialize;

/// What a pager has done since it was made.
///
/// An expert counts once for each token and layer that chose it, whatever its number of tensors.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct PagerStatistics {
    /// Chosen experts that were in the pool, or that an earlier token of the same batch had read.
    pub hits: u64,
    /// Chosen experts that had to be read, or waited for while they were read ahead.
    pub misses: u64,
    /// `misses` of all that were chosen; 0 if none was.
    pub miss_rate: f64,
    /// Tokens that went through the experts.
    pub tokens: u64,
    /// MB (10^6 bytes) read for a token.
    pub mb_per_token: f64,
    /// Milliseconds that the computation stood still for a token, waiting for a read.
    pub wait_ms_per_token: f64,
    /// Experts read ahead that were in the pool when they were chosen.
    pub useful: u64,
    /// Experts read ahead that were chosen before they had come.
    pub late: u64,
    /// Experts read ahead, wholly or in part, that left the pool without having been chosen.
    pub wasted: u64,
    /// Experts for which the pool had no room, read tensor by tensor and let go.
    pub streamed: u64,
    /// Bytes read; second reads that verify are not counted.
    pub bytes_read: u64,
    /// Experts that the pool has room for now.
    pub slots: u64,
    /// MB (10^6 bytes) that the pager holds: slots and buffers.
    pub pool_mb: f64,
    /// Threads that read.
    pub readers: usize,
    /// `direct`, or `buffered` and why.
    pub io_mode: String,
}

impl PagerStatistics {
    /// Returns what has been done since `earlier`. Slots, memory, readers and mode are those of now.
    ///
    /// ```
    /// use smol_engine::expert::PagerStatistics;
    ///
    /// let now = PagerStatistics::default();
    /// assert_eq!(now.since(&now), now);
    /// ```
    pub fn since(&self, earlier: &Self) -> Self {
        let hits = self.hits.saturating_sub(earlier.hits);
        let misses = self.misses.saturating_sub(earlier.misses);
        let tokens = self.tokens.saturating_sub(earlier.tokens);
        let bytes_read = self.bytes_read.saturating_sub(earlier.bytes_read);
        let waited = |statistics: &Self| statistics.wait_ms_per_token * statistics.tokens as f64;
        Self {
            hits,
            misses,
            miss_rate: ratio(misses as f64, hits + misses),
            tokens,
            mb_per_token: ratio(bytes_read as f64 / 1e6, tokens),
            wait_ms_per_token: ratio((waited(self) - waited(earlier)).max(0.0), tokens),
            useful: self.useful.saturating_sub(earlier.useful),
            late: self.late.saturating_sub(earlier.late),
            wasted: self.wasted.saturating_sub(earlier.wasted),
            streamed: self.streamed.saturating_sub(earlier.streamed),
            bytes_read,
            ..self.clone()
        }
    }
}

/// `part` of `all`; 0 of nothing.
fn ratio(part: f64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_rates_of_its_own() {
        let before = PagerStatistics {
            hits: 10,
            misses: 30,
            miss_rate: 0.75,
            tokens: 10,
            mb_per_token: 3.0,
            wait_ms_per_token: 5.0,
            bytes_read: 30_000_000,
            wasted: 2,
            slots: 7,
            ..PagerStatistics::default()
        };
        let after = PagerStatistics {
            hits: 100,
            misses: 40,
            miss_rate: 40.0 / 140.0,
            tokens: 30,
            mb_per_token: 50.0 / 30.0,
            wait_ms_per_token: 3.0,
            bytes_read: 50_000_000,
            wasted: 5,
            slots: 9,
            io_mode: "direct".to_owned(),
            ..PagerStatistics::default()
        };
        let between = after.since(&before);
        assert_eq!((between.hits, between.misses, between.tokens), (90, 10, 20));
        assert_eq!((between.miss_rate, between.mb_per_token), (0.1, 1.0));
        assert!((between.wait_ms_per_token - 2.0).abs() < 1e-9);
        assert_eq!((between.wasted, between.slots, between.io_mode.as_str()), (3, 9, "direct"));
        let nothing = after.since(&after);
        assert_eq!((nothing.miss_rate, nothing.mb_per_token, nothing.tokens), (0.0, 0.0, 0));
    }
}

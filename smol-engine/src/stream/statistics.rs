//! What a stream has done so far.

use serde::Serialize;

/// What a stream has done since it was made.
///
/// A *pass* is one computation of a graph that used streamed weights: a token, or a batch.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct StreamStatistics {
    /// Passes through the weights.
    pub passes: u64,
    /// MB (10^6 bytes) read for a pass.
    pub mb_per_pass: f64,
    /// Milliseconds that the computation stood still for a pass, waiting for weights.
    pub wait_ms_per_pass: f64,
    /// Uses of a tensor for which the computation stood still.
    pub late: u64,
    /// MB (10^6 bytes) of weights that were read and not used.
    pub wasted_mb: f64,
    /// MB (10^6 bytes) that the stream holds: weights and buffers.
    pub zone_mb: f64,
    /// Threads that read.
    pub readers: usize,
    /// Bytes read; second reads that verify are not counted.
    pub bytes_read: u64,
    /// `direct`, or `buffered` and why.
    pub io_mode: String,
}

impl StreamStatistics {
    /// Returns what has been done since `earlier`. Memory, readers and mode are those of now.
    ///
    /// ```
    /// use smol_engine::stream::StreamStatistics;
    ///
    /// let now = StreamStatistics::default();
    /// assert_eq!(now.since(&now), now);
    /// ```
    pub fn since(&self, earlier: &Self) -> Self {
        let passes = self.passes.saturating_sub(earlier.passes);
        let bytes_read = self.bytes_read.saturating_sub(earlier.bytes_read);
        let waited = |statistics: &Self| statistics.wait_ms_per_pass * statistics.passes as f64;
        Self {
            passes,
            mb_per_pass: ratio(bytes_read as f64 / 1e6, passes),
            wait_ms_per_pass: ratio((waited(self) - waited(earlier)).max(0.0), passes),
            late: self.late.saturating_sub(earlier.late),
            wasted_mb: (self.wasted_mb - earlier.wasted_mb).max(0.0),
            bytes_read,
            ..self.clone()
        }
    }
}

/// `part` of `all`; 0 of nothing.
pub(super) fn ratio(part: f64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_rates_of_its_own() {
        let before = StreamStatistics {
            passes: 10,
            mb_per_pass: 3.0,
            wait_ms_per_pass: 5.0,
            late: 4,
            wasted_mb: 1.5,
            bytes_read: 30_000_000,
            zone_mb: 7.0,
            ..StreamStatistics::default()
        };
        let after = StreamStatistics {
            passes: 30,
            mb_per_pass: 50.0 / 30.0,
            wait_ms_per_pass: 3.0,
            late: 5,
            wasted_mb: 2.0,
            bytes_read: 50_000_000,
            zone_mb: 9.0,
            io_mode: "direct".to_owned(),
            ..StreamStatistics::default()
        };
        let between = after.since(&before);
        assert_eq!((between.passes, between.late, between.bytes_read), (20, 1, 20_000_000));
        assert_eq!((between.mb_per_pass, between.wasted_mb), (1.0, 0.5));
        assert!((between.wait_ms_per_pass - 2.0).abs() < 1e-9);
        assert_eq!((between.zone_mb, between.io_mode.as_str()), (9.0, "direct"));
        assert_eq!(after.since(&after).mb_per_pass, 0.0);
    }
}

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

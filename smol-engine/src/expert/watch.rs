//! Tells others of a pager's reads.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A read that a pager has done: one tensor of an expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadDone {
    /// Number of the layer.
    pub layer: usize,
    /// The expert.
    pub expert: u32,
    /// When the read started.
    pub started: Instant,
    /// How long it took, with packing.
    pub took: Duration,
    /// Bytes that were read.
    pub bytes: u64,
}

type Watch = dyn Fn(&ReadDone) + Send + Sync;

/// Who is told of reads, if anyone.
#[derive(Default)]
pub(super) struct ReadWatch(OnceLock<Box<Watch>>);

impl ReadWatch {
    /// Sets who is told. Returns whether nobody was before.
    pub(super) fn set(&self, watch: impl Fn(&ReadDone) + Send + Sync + 'static) -> bool {
        self.0.set(Box::new(watch)).is_ok()
    }

    pub(super) fn tell(&self, layer: usize, expert: u32, started: Instant, bytes: u64) {
        if let Some(watch) = self.0.get() {
            watch(&ReadDone { layer, expert, started, took: started.elapsed(), bytes });
        }
    }
}

impl fmt::Debug for ReadWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReadWatch").field(&self.0.get().is_some()).finish()
    }
}

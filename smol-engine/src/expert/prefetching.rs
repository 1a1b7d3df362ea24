//! The pager as what reads predicted experts.

use super::Pager;
use super::prefetch::{PrefetchCounts, Prefetcher};

impl Prefetcher for Pager {
    fn predict(&self, layer: usize, experts: &[u32]) {
        Self::predict(self, layer, experts);
    }

    fn is_resident(&self, layer: usize, expert: u32) -> bool {
        Self::is_resident(self, layer, expert)
    }

    fn prefetch_counts(&self) -> PrefetchCounts {
        self.counts()
    }
}

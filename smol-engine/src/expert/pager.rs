//! Keeps the experts that are used in memory, and reads those that are not there.

use super::config::{ExpertLayer, PagerConfig};
use super::{PagerStatistics, Result};
use crate::io::{DirectFile, ReadAt};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Tells whether a run is to stop.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// Keeps the experts that are used in memory, and reads those that are not there.
pub struct Pager {
    layers: Vec<ExpertLayer>,
}

impl Pager {
    /// Opens files as [`PagerConfig::io`] says and makes a pager of the experts in them.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if a file cannot be opened.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        layers: Vec<ExpertLayer>,
        config: &PagerConfig,
    ) -> Result<Arc<Self>> {
        let mut files: Vec<Arc<dyn ReadAt>> = Vec::new();
        for path in paths {
            files.push(Arc::new(DirectFile::open_with(path, config.io)?));
        }
        Self::new(files, layers, config)
    }

    /// Makes a pager of the experts in open files. Nothing is read yet.
    ///
    /// # Errors
    /// If the layers make no sense or reach past the end of a file, or the budget is less than
    /// one token needs.
    pub fn new(
        _files: Vec<Arc<dyn ReadAt>>,
        layers: Vec<ExpertLayer>,
        _config: &PagerConfig,
    ) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { layers }))
    }

    /// Returns the layers, as they were given.
    pub fn layers(&self) -> &[ExpertLayer] {
        &self.layers
    }

    /// Starts to read those of a layer's experts that the router chose for `run`.
    pub fn want(&self, _run: usize, _layer: usize, _experts: &[u32]) {}

    /// Reads experts ahead that a layer is likely to choose.
    pub fn predict(&self, _layer: usize, _experts: &[u32]) {}

    /// Begins a product with one tensor of a layer's experts; `uses` are the rows of each.
    pub fn begin(
        &self,
        _run: usize,
        _layer: usize,
        _tensor: usize,
        _experts: &[u32],
        _uses: &[u32],
    ) {
    }

    /// Writes the indexes of [`begin`](Self::begin)'s experts in the order in which they are
    /// best waited for.
    pub fn order(&self, _run: usize, _order: &mut [u32]) {}

    /// Waits for an expert by its index in [`begin`](Self::begin)'s and returns its weights.
    /// `None`: the run has failed or was stopped.
    pub fn wait(&self, _run: usize, _index: usize) -> Option<*const u8> {
        None
    }

    /// Lets go of the weights that [`wait`](Self::wait) returned.
    pub fn done(&self, _run: usize, _index: usize) {}

    /// Ends a run and lets go of all that it holds.
    ///
    /// # Errors
    /// If the run has failed.
    pub fn end(&self, _run: usize) -> Result<()> {
        Ok(())
    }

    /// Sets what tells a waiting run to stop.
    pub fn set_stop(&self, _run: usize, _stop: Option<Stop>) {}

    /// Returns whether an expert is in the pool.
    pub fn is_resident(&self, _layer: usize, _expert: u32) -> bool {
        false
    }

    /// Sets the budget in bytes and returns what is held now.
    pub fn set_budget(&self, bytes: u64) -> u64 {
        bytes
    }

    /// Shrinks under memory pressure and returns what is held now, in bytes.
    pub fn relieve(&self, available: u64, _reserve: u64) -> u64 {
        available
    }

    /// Returns what has been done so far.
    pub fn statistics(&self) -> PagerStatistics {
        PagerStatistics::default()
    }
}

impl fmt::Debug for Pager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pager").field("layers", &self.layers.len()).finish_non_exhaustive()
    }
}

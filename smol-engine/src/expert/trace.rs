//! Records of which experts a model chose, and how long reading them took.
//!
//! A trace is written while a model runs, and played back by the
//! [simulator](super::simulate) with other pools and policies. Its file is a header and blocks of
//! records, each with a checksum: a file that ends early or is damaged is good up to there.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use smol_engine::expert::trace::{LayerHeader, TensorSize, Trace, TraceHeader, TraceWriter};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("moe.trace");
//! let tensor = TensorSize { file: 1 << 20, memory: 1 << 20 };
//! let layer = LayerHeader { block: 0, experts: 8, used: 2, tensors: vec![tensor; 3] };
//! let writer = TraceWriter::create(&path, &TraceHeader { model: "moe".into(), layers: vec![layer] })?;
//! // A graph of one token, computed by run 0.
//! writer.choose(0, 0, 2, &[5, 1]);
//! writer.end(0, std::time::Duration::ZERO);
//! writer.finish()?;
//!
//! let trace = Trace::read(&path)?;
//! assert!(trace.damage.is_none());
//! assert_eq!(trace.graphs[0].layers().next().unwrap().ids, [5, 1]);
//! # Ok(())
//! # }
//! ```

mod error;
mod format;
mod reader;
mod writer;

pub use error::{Error, Result};
pub use reader::{Trace, TraceReader};
pub use writer::TraceWriter;

use std::time::Duration;

/// What a trace is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceHeader {
    /// Name of the model.
    pub model: String,
    /// The layers that have experts, in the order in which a graph computes them.
    pub layers: Vec<LayerHeader>,
}

/// The experts of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerHeader {
    /// Number of the model's block that they belong to.
    pub block: u32,
    /// Number of experts.
    pub experts: u32,
    /// Experts that a token chooses.
    pub used: u32,
    /// Sizes of one expert, tensor by tensor.
    pub tensors: Vec<TensorSize>,
}

impl LayerHeader {
    /// Returns the bytes that are read for one expert.
    pub fn file_bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.file))
    }

    /// Returns the bytes that one expert takes in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, tensor| sum.saturating_add(tensor.memory))
    }
}

/// The size of one expert's part of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorSize {
    /// Bytes in the file.
    pub file: u64,
    /// Bytes in memory, packed or not.
    pub memory: u64,
}

/// One computation of the model's graph: a token, or a batch of a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    /// When it started, since the trace was created.
    pub started: Duration,
    /// How long it took.
    pub took: Duration,
    /// How much of that it waited for reads.
    pub waited: Duration,
    /// Reads that ended since the graph before, whatever they were for.
    pub reads: Vec<Read>,
    layers: Vec<LayerOf>,
    ids: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LayerOf {
    layer: u32,
    used: u32,
    /// Where its ids end among all.
    end: usize,
}

/// What one layer's router chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choices<'a> {
    /// Index of the layer in [`TraceHeader::layers`].
    pub layer: usize,
    /// Experts that each token chose.
    pub used: usize,
    /// The experts, token by token, best first.
    pub ids: &'a [u32],
}

impl Choices<'_> {
    /// Returns the number of tokens.
    pub const fn tokens(&self) -> usize {
        self.ids.len() / self.used
    }
}

impl Graph {
    /// Returns the number of tokens: the most of any layer, as a prompt's last layer computes
    /// only those whose output is wanted.
    pub fn tokens(&self) -> usize {
        self.layers().map(|layer| layer.tokens()).max().unwrap_or(0)
    }

    /// Returns what the routers chose, layer by layer.
    pub fn layers(&self) -> impl Iterator<Item = Choices<'_>> {
        let mut start = 0;
        self.layers.iter().map(move |&LayerOf { layer, used, end }| {
            let ids = &self.ids[start..end];
            start = end;
            Choices { layer: layer as usize, used: used as usize, ids }
        })
    }

    /// Adds what a layer's router chose: `used` experts for each token.
    ///
    /// # Panics
    /// If `ids` are not whole tokens.
    pub fn push(&mut self, layer: usize, used: usize, ids: &[u32]) {
        self.extend(layer, used, ids.iter().copied());
    }

    fn extend(&mut self, layer: usize, used: usize, ids: impl Iterator<Item = u32>) {
        let start = self.ids.len();
        self.ids.extend(ids);
        let end = self.ids.len();
        assert!(used > 0 && (end - start).is_multiple_of(used), "the ids are not whole tokens");
        self.layers.push(LayerOf { layer: layer as u32, used: used as u32, end });
    }
}

/// One expert that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Index of the layer in [`TraceHeader::layers`].
    pub layer: u32,
    /// The expert.
    pub expert: u32,
    /// When the read started, since the trace was created.
    pub started: Duration,
    /// How long it took.
    pub took: Duration,
    /// Bytes that were read.
    pub bytes: u64,
}

#[cfg(test)]
mod tests;

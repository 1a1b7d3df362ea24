//! What a pager is made from: the experts' places in files, and its options.

use super::{Policy, Scope};
use crate::io::IoChoice;
use std::fmt;
use std::sync::Arc;

/// Brings an expert's weights into the form that kernels read.
pub trait Packer: Send + Sync {
    /// Packs one expert of a tensor: from [`ExpertTensor::stride`] bytes of the file to
    /// [`ExpertTensor::bytes`] bytes in memory. Called by several threads at once.
    fn pack(&self, plain: &[u8], packed: &mut [u8]);
}

/// One tensor of a layer's experts: where each expert of it lies in a file.
#[derive(Clone)]
pub struct ExpertTensor {
    /// Name of the tensor.
    pub name: String,
    /// Number of the file in the list given to the pager.
    pub file: usize,
    /// Offset of the first expert in the file, in bytes.
    pub offset: u64,
    /// Bytes of one expert in the file; expert `e` starts at `offset + e * stride`.
    pub stride: u64,
    /// Bytes of one expert in memory: `stride`, or what the packer makes of them.
    pub bytes: usize,
    /// Brings the file's bytes into another form. `None`: kernels read them as they are.
    pub packer: Option<Arc<dyn Packer>>,
}

impl fmt::Debug for ExpertTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertTensor")
            .field("name", &self.name)
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("stride", &self.stride)
            .field("bytes", &self.bytes)
            .field("packed", &self.packer.is_some())
            .finish()
    }
}

/// The experts of one layer.
#[derive(Debug, Clone)]
pub struct ExpertLayer {
    /// Number of the model's block that they belong to, for messages.
    pub block: u32,
    /// Number of experts.
    pub experts: u32,
    /// Experts that a token chooses.
    pub used: u32,
    /// The layer's tensors in the order in which a graph needs them: 1 to 8.
    pub tensors: Vec<ExpertTensor>,
}

/// Options of a [`Pager`](super::Pager).
///
/// ```
/// use smol_engine::expert::{PagerConfig, Policy};
///
/// let config = PagerConfig { budget: 700 << 20, policy: Policy::Lru, ..PagerConfig::default() };
/// assert!(!config.verify);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PagerConfig {
    /// Bytes of memory for all that the pager holds: pool, streams and the readers' buffers.
    pub budget: u64,
    /// Chooses the expert that leaves the pool.
    pub policy: Policy,
    /// Which layers share the pool's memory.
    pub scope: Scope,
    /// Threads that read; 0 is up to 4, as the budget allows.
    pub readers: usize,
    /// How [`Pager::open`](super::Pager::open) opens files.
    pub io: IoChoice,
    /// Whether each read is done twice and compared. Through the page cache both reads find the
    /// same bytes there, so that only faults of this machine's memory are noticed.
    pub verify: bool,
}

impl Default for PagerConfig {
    /// All that the experts need, read by up to 4 threads past the page cache.
    fn default() -> Self {
        Self {
            budget: u64::MAX,
            policy: Policy::default(),
            scope: Scope::default(),
            readers: 0,
            io: IoChoice::default(),
            verify: false,
        }
    }
}

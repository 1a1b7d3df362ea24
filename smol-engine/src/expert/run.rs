//! One computation of a graph: what it holds and what it waits for.

use super::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Tells whether a run is to stop; asked outside of all locks, by the threads that wait.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// What a run has of an expert of its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// Not chosen.
    None,
    /// Chosen; no slot was free so far.
    Missing,
    /// It holds a slot.
    Held {
        slot: u32,
        /// Whether it had to be read.
        miss: bool,
    },
    /// It comes through the ring, tensor by tensor.
    Streamed,
}

/// One expert of the product that is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    Slot {
        expert: u32,
        slot: u32,
    },
    Stream {
        expert: u32,
        /// `None`: its turn has not come.
        buffer: Option<u32>,
    },
    Done,
}

/// The product that is computed: one tensor of the chosen experts.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
pub(super) struct Product {
    pub(super) tensor: u8,
    pub(super) items: Vec<Item>,
    /// Items that are not done.
    pub(super) left: usize,
    /// First item that may be a stream without a buffer.
    pub(super) next: usize,
}

/// One computation of a graph.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Run {
    pub(super) id: usize,
    pub(super) layer: Option<usize>,
    pub(super) epoch: u64,
    /// Whether the layer's first product has begun.
    pub(super) begun: bool,
    /// Of each expert of the layer.
    pub(super) marks: Vec<Mark>,
    /// Bits of the layer's tensors that are computed.
    pub(super) computed: u8,
    pub(super) product: Product,
    pub(super) failure: Option<Error>,
    pub(super) stop: Option<Stop>,
    /// Pools that the run's layers are in.
    pub(super) pools: Vec<usize>,
    /// Threads that wait, and since when there are any.
    pub(super) waiting: usize,
    pub(super) since: Option<Instant>,
}

impl Run {
    pub(super) fn new(id: usize) -> Self {
        Self {
            id,
            layer: None,
            epoch: 0,
            begun: false,
            marks: Vec::new(),
            computed: 0,
            product: Product::default(),
            failure: None,
            stop: None,
            pools: Vec::new(),
            waiting: 0,
            since: None,
        }
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("id", &self.id)
            .field("layer", &self.layer)
            .field("begun", &self.begun)
            .field("marks", &self.marks)
            .field("computed", &self.computed)
            .field("product", &self.product)
            .field("failure", &self.failure)
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

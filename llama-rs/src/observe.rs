//! Watching graph computation: which operations run, on which threads.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::ffi::engine::{self, RawTensor};
use crate::op::Op;

/// Watches the graphs that llama.cpp computes, in all contexts of the process.
///
/// The methods run on compute threads, several at once, in the middle of a decode: they should take microseconds. A
/// panic is contained: the decode stops and returns [`ErrorKind::CallbackPanicked`](crate::ErrorKind::CallbackPanicked).
pub trait Observer: Send + Sync {
    /// Tells whether [`Observer::node`] wants to see nodes of this operation; asked once, when the observer is attached.
    /// Nodes that no observer wants cost nothing.
    fn watches(&self, op: Op) -> bool {
        let _ = op;
        true
    }

    /// A graph of `n_nodes` nodes is about to be computed. Runs on the thread that decodes.
    fn graph_begin(&self, n_nodes: usize) {
        let _ = n_nodes;
    }

    /// A thread is about to compute its part of a node. Every thread of the pool reports every node, except those that
    /// ggml fuses into their predecessor and those that compute nothing, such as views.
    fn node(&self, node: &NodeInfo<'_>) {
        let _ = node;
    }

    /// The graph is done; `completed` is false if it was stopped or failed. Runs on the thread that decodes.
    fn graph_end(&self, completed: bool) {
        let _ = completed;
    }
}

/// A node of a graph, as one thread is about to compute its part of it.
pub struct NodeInfo<'a> {
    tensor: RawTensor<'a>,
    thread: usize,
    threads: usize,
}

impl<'a> NodeInfo<'a> {
    pub(crate) fn new(tensor: RawTensor<'a>, thread: i32, threads: i32) -> Self {
        let index = |number| usize::try_from(number).unwrap_or(0);
        Self { tensor, thread: index(thread), threads: index(threads) }
    }

    /// Returns the name, such as `ffn_out-3`; not every node has one.
    pub fn name(&self) -> String {
        self.tensor.name()
    }

    /// Returns the operation.
    pub fn operation(&self) -> Op {
        self.tensor.op()
    }

    /// Returns the operation as ggml names it, such as `MUL_MAT`.
    pub fn op(&self) -> &'static str {
        self.operation().name()
    }

    /// Returns the number of elements of the result along each dimension, the contiguous one first.
    pub fn shape(&self) -> [i64; 4] {
        self.tensor.shape()
    }

    /// Returns the element type of the result, such as `f32`.
    pub fn type_name(&self) -> &'static str {
        self.tensor.type_name()
    }

    /// Returns the element types of the inputs, such as `q4_K`.
    pub fn source_types(&self) -> Vec<&'static str> {
        self.tensor.sources().map(RawTensor::type_name).collect()
    }

    /// Returns the number of this thread, from 0.
    pub fn thread(&self) -> usize {
        self.thread
    }

    /// Returns how many threads compute the node.
    pub fn threads(&self) -> usize {
        self.threads
    }
}

impl fmt::Debug for NodeInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeInfo")
            .field("name", &self.name())
            .field("op", &self.op())
            .field("shape", &self.shape())
            .field("type", &self.type_name())
            .field("sources", &self.source_types())
            .field("thread", &self.thread)
            .field("threads", &self.threads)
            .finish()
    }
}

/// Keeps an observer attached until it is dropped.
#[derive(Debug)]
#[must_use = "the observer is detached when the guard is dropped"]
pub struct ObserverGuard {
    id: u64,
}

impl Drop for ObserverGuard {
    fn drop(&mut self) {
        engine::detach_observer(self.id);
    }
}

/// Attaches an observer to all graph computation of the process. Waits for running graphs and loads to end.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when called from an observer.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// #[derive(Default)]
/// struct Count(AtomicUsize);
/// impl llama_rs::Observer for Count {
///     fn graph_begin(&self, _n_nodes: usize) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// let count = Arc::new(Count::default());
/// let guard = llama_rs::observe(count.clone())?;
/// // ... decode ...
/// drop(guard);
/// # Ok::<(), llama_rs::Error>(())
/// ```
pub fn observe(observer: Arc<dyn Observer>) -> Result<ObserverGuard> {
    engine::attach_observer(observer).map(|id| ObserverGuard { id })
}

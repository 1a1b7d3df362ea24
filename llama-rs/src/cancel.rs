//! Stopping work from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that stops loading, prefill, decoding and generation from any thread.
///
/// Clones share one flag. llama.cpp looks at it between the nodes of a graph, so a running decode stops within
/// milliseconds; the call returns an error for which [`Error::is_cancelled`](crate::Error::is_cancelled) holds.
///
/// # Examples
/// ```
/// let token = llama_rs::CancelToken::new();
/// let other = token.clone();
/// std::thread::spawn(move || other.cancel()).join().unwrap();
/// assert!(token.is_cancelled());
/// token.reset();
/// assert!(!token.is_cancelled());
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancelToken {
    flag: Arc<AtomicBool>,
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the work that carries this token to stop. Safe to call at any time, from any thread.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
    }

    /// Tells whether [`cancel`](Self::cancel) was called since the last [`reset`](Self::reset).
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Makes the token usable again.
    pub fn reset(&self) {
        self.flag.store(false, Ordering::Release);
    }

    /// Tells whether both tokens share one flag.
    pub fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.flag, &other.flag)
    }

    /// The shared flag, for C callbacks that read it.
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }
}

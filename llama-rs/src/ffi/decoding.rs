//! What the decode of a thread and the engines that it calls tell each other.

use std::cell::{Cell, RefCell};

use crate::cancel::CancelToken;
use crate::error::Error;

thread_local! {
    /// What stops the decode of this thread.
    static STOP: RefCell<Option<CancelToken>> = const { RefCell::new(None) };
    /// Why the last graph of this thread failed.
    static FAILURE: RefCell<Option<Error>> = const { RefCell::new(None) };
    /// Whether somebody asks for `FAILURE`.
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decode whose waits for weights `cancel` stops; returns why an engine failed in it.
pub(crate) fn during_decode<T>(
    cancel: Option<&CancelToken>,
    decode: impl FnOnce() -> T,
) -> (T, Option<Error>) {
    STOP.set(cancel.cloned());
    FAILURE.take();
    ASKED.set(true);
    let result = decode();
    ASKED.set(false);
    STOP.take();
    (result, FAILURE.take())
}

/// What tells an engine's run, begun on this thread, to stop.
pub(super) fn stop() -> Option<smol_engine::expert::Stop> {
    let token = STOP.with_borrow(Clone::clone)?;
    Some(std::sync::Arc::new(move || token.is_cancelled()))
}

/// Ends the decode of this thread with an error.
pub(super) fn fail(error: Error) {
    if ASKED.get() {
        FAILURE.set(Some(error));
    } else {
        tracing::error!("{error}");
    }
}

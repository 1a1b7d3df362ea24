//! Panics of callbacks: kept until the call that made them possible returns.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind};

/// The text of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The error that reports a contained panic.
pub(crate) fn error(what: &str, message: &str) -> Error {
    Error::new(ErrorKind::CallbackPanicked, format!("the {what} panicked: {message}"))
}

/// Runs an engine's answer to a callback. A panic, which would be a fault of ours, is told once, kept in `panicked`, and
/// answered with `otherwise`.
pub(super) fn contained<T>(
    engine: &str,
    panicked: &AtomicBool,
    otherwise: T,
    call: impl FnOnce() -> T,
) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        if !panicked.swap(true, Ordering::AcqRel) {
            tracing::error!("{engine}: {}", message(&*panic));
        }
        otherwise
    })
}

//! Panics of callbacks: kept until the call that made them possible returns.

use std::any::Any;

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

//! How calls end: a status, and a message for people.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use llama_rs::{Error, ErrorKind};

/// How a call ended. The reason in words is in smx_last_error().
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum smx_status {
    /// It did what was asked.
    SMX_OK = 0,
    /// An argument is NULL where that is not allowed, not UTF-8, or out of range.
    SMX_ERROR_ARGUMENT = 1,
    /// A file could not be read.
    SMX_ERROR_IO = 2,
    /// The file is no model that can be run.
    SMX_ERROR_MODEL = 3,
    /// The memory does not suffice.
    SMX_ERROR_MEMORY = 4,
    /// The prompt does not fit into the session's context.
    SMX_ERROR_CONTEXT = 5,
    /// The model's chat template refuses these messages.
    SMX_ERROR_TEMPLATE = 6,
    /// This model or device cannot do what was asked.
    SMX_ERROR_UNSUPPORTED = 7,
    /// Loading was stopped by its callback.
    SMX_ERROR_CANCELLED = 8,
    /// The session is in use by another call.
    SMX_ERROR_BUSY = 9,
    /// A fault of this library. The session that it happened in can only be freed.
    SMX_ERROR_INTERNAL = 10,
}

/// What a call fails with.
pub(crate) struct Failure {
    status: smx_status,
    message: String,
}

impl Failure {
    pub(crate) fn new(status: smx_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::new(smx_status::SMX_ERROR_ARGUMENT, message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::Tokenize | ErrorKind::Grammar => {
                smx_status::SMX_ERROR_ARGUMENT
            }
            ErrorKind::Io(_) => smx_status::SMX_ERROR_IO,
            ErrorKind::Load
            | ErrorKind::Gguf
            | ErrorKind::MissingShards(_)
            | ErrorKind::FileChanged
            | ErrorKind::NonFinite => smx_status::SMX_ERROR_MODEL,
            ErrorKind::OutOfMemory { .. } => smx_status::SMX_ERROR_MEMORY,
            ErrorKind::ContextFull { .. } | ErrorKind::PromptTooLong { .. } => {
                smx_status::SMX_ERROR_CONTEXT
            }
            ErrorKind::Template => smx_status::SMX_ERROR_TEMPLATE,
            ErrorKind::Unsupported | ErrorKind::Cpu => smx_status::SMX_ERROR_UNSUPPORTED,
            ErrorKind::Cancelled => smx_status::SMX_ERROR_CANCELLED,
            _ => smx_status::SMX_ERROR_INTERNAL,
        };
        Self::new(status, error.to_string())
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Runs a call; failures and panics become a status and the message of this thread.
pub(crate) fn call(f: impl FnOnce() -> Result<(), Failure>) -> smx_status {
    let failure = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(())) => return smx_status::SMX_OK,
        Ok(Err(failure)) => failure,
        Err(payload) => contained(payload),
    };
    let message = CString::new(failure.message.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no message any more.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
    failure.status
}

/// As [`call`], for what cannot fail.
pub(crate) fn quietly(f: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        contained(payload);
    }
}

fn contained(payload: Box<dyn Any + Send>) -> Failure {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_default();
    // Its destructor could panic as well.
    mem::forget(payload);
    Failure::new(smx_status::SMX_ERROR_INTERNAL, format!("internal error: {text}"))
}

/// Returns the reason of the last failure on this thread, empty if there was none. Never NULL; valid until the next call
/// that fails on this thread, and no longer than the thread.
#[unsafe(no_mangle)]
pub extern "C" fn smx_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => panic!("cargo's version has no NUL"),
    };

/// Returns the version of this library, for example "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn smx_version() -> *const c_char {
    VERSION.as_ptr()
}

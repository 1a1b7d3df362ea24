//! Preparing the process for calls into C, and turning their status into errors.

use std::ffi::CStr;
use std::sync::OnceLock;

use ggml_sys as sys;

use crate::error::{Error, ErrorKind, Result};
use crate::log::{self, LogLine};

/// Makes the process ready for llama.cpp; cheap after the first call.
///
/// # Errors
/// [`ErrorKind::Cpu`] if the CPU lacks instructions that the library was built with, [`ErrorKind::Internal`] if the
/// native part was built for another version of this crate.
pub(crate) fn init() -> Result<()> {
    static READY: OnceLock<Result<(), (ErrorKind, String)>> = OnceLock::new();
    let ready = READY.get_or_init(|| {
        // First of all: any later call may contain instructions that the CPU doesn't have.
        if let Err(missing) = sys::cpu::check() {
            return Err((ErrorKind::Cpu, missing.to_string()));
        }
        super::log::install();
        let started = guarded(ErrorKind::Internal, "starting llama.cpp", || {
            // SAFETY: takes a number; guarded against C++ exceptions (smol.h).
            match unsafe { sys::smol_install(sys::SMOL_ABI_VERSION) } {
                // SAFETY: no arguments; guarded (smol.h). Called once, as llama.h asks.
                sys::SMOL_OK => unsafe { sys::smol_backend_init() },
                failed => failed,
            }
        });
        started.map_err(|error| (error.kind().clone(), error.message().to_owned()))
    });
    ready.clone().map_err(|(kind, message)| Error::new(kind, message))
}

/// Runs one guarded C function; on failure makes an error of `kind` with the lines that it printed.
pub(crate) fn guarded(
    kind: ErrorKind,
    what: &str,
    call: impl FnOnce() -> sys::smol_status,
) -> Result<()> {
    let capture = log::capture();
    let status = call();
    if status == sys::SMOL_OK {
        return Ok(());
    }
    let message = last_error();
    Err(failure(status, &message, kind, what, capture.finish()))
}

/// The message of the last guarded function that failed on this thread.
pub(crate) fn last_error() -> String {
    // SAFETY: no arguments; returns a string that is valid until the next guarded call of this thread (smol.h).
    let message = unsafe { sys::smol_last_error() };
    if message.is_null() {
        return String::new();
    }
    // SAFETY: not null, NUL-terminated, and copied before any further call (smol.h).
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// The error for a failed status.
pub(crate) fn failure(
    status: sys::smol_status,
    message: &str,
    kind: ErrorKind,
    what: &str,
    log: Vec<LogLine>,
) -> Error {
    let cause = log::cause(&log).unwrap_or(message);
    let out_of_memory = status == sys::SMOL_ERR_MEMORY || tells_of_memory(&log);
    let kind = match status {
        _ if out_of_memory => ErrorKind::OutOfMemory { needed: None, available: None },
        sys::SMOL_ERR_EXCEPTION | sys::SMOL_ERR_NULL => kind,
        _ => ErrorKind::Internal,
    };
    let text = match (cause.is_empty(), out_of_memory) {
        (true, true) => format!("{what} failed: not enough memory"),
        (true, false) => format!("{what} failed without a reason"),
        (false, true) => format!("{what} failed for lack of memory: {cause}"),
        (false, false) => format!("{what} failed: {cause}"),
    };
    Error::new(kind, text).with_log(log)
}

/// Whether the lines show that an allocation failed: ggml reports that in its log only.
pub(crate) fn tells_of_memory(log: &[LogLine]) -> bool {
    const SIGNS: [&str; 5] = [
        "failed to allocate",
        "unable to allocate",
        "insufficient memory",
        "Cannot allocate memory",
        "bad_alloc",
    ];
    let complaints = log.iter().filter(|line| line.level >= log::LogLevel::Warn);
    complaints.into_iter().any(|line| SIGNS.iter().any(|sign| line.text.contains(sign)))
}

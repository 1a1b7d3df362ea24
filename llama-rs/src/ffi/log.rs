//! Installs the log and abort callbacks of llama.cpp and ggml.

use std::ffi::{CStr, c_char, c_void};
use std::panic::catch_unwind;
use std::ptr;

use ggml_sys as sys;

use crate::log::{Fragment, LogLevel, LogSource, receive};

/// Routes all printing to [`crate::log`]. To be called once, before any other call into C: the setters aren't
/// synchronized (llama.h: "The logger state is global so these functions are NOT thread safe").
pub(crate) fn install() {
    // SAFETY: `llama_log_set` stores the function in both libraries' logger states (llama-impl.cpp:54); it is static.
    unsafe { sys::llama_log_set(Some(on_llama), ptr::null_mut()) };
    // SAFETY: `ggml_log_set` stores the function (ggml.c:8247); it is static.
    unsafe { sys::ggml_log_set(Some(on_ggml), ptr::null_mut()) };
    // SAFETY: `ggml_set_abort_callback` stores the function (ggml.c:247); it is static.
    unsafe { sys::ggml_set_abort_callback(Some(on_abort)) };
}

/// Lets llama.cpp and ggml print to standard error again, as without this crate.
#[cfg(feature = "tools")]
pub(crate) fn uninstall() {
    // SAFETY: null stands for the default function in both libraries' logger states (llama-impl.cpp:54); no other call
    // into C is running yet.
    unsafe { sys::llama_log_set(None, ptr::null_mut()) };
    // SAFETY: null stands for no function (ggml.c:247).
    unsafe { sys::ggml_set_abort_callback(None) };
}

extern "C" fn on_llama(level: sys::ggml_log_level, text: *const c_char, _user_data: *mut c_void) {
    forward(LogSource::Llama, level, text);
}

extern "C" fn on_ggml(level: sys::ggml_log_level, text: *const c_char, _user_data: *mut c_void) {
    forward(LogSource::Ggml, level, text);
}

fn forward(source: LogSource, level: sys::ggml_log_level, text: *const c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: ggml_log_internal_v and llama_log_internal_v pass a NUL-terminated buffer that lives through the call
    // (ggml.c:287, llama-impl.cpp:60).
    let text = unsafe { CStr::from_ptr(text) };
    let fragment = match level {
        sys::GGML_LOG_LEVEL_DEBUG => Fragment::Start(LogLevel::Debug),
        sys::GGML_LOG_LEVEL_WARN => Fragment::Start(LogLevel::Warn),
        sys::GGML_LOG_LEVEL_ERROR => Fragment::Start(LogLevel::Error),
        sys::GGML_LOG_LEVEL_CONT => Fragment::Continuation,
        _ => Fragment::Start(LogLevel::Info),
    };
    // The application's function is guarded where it is called; this catches faults of our own code.
    let _ = catch_unwind(|| receive(source, fragment, &text.to_string_lossy()));
}

/// ggml is about to call abort(): there is no way back, but the reason should reach the log.
extern "C" fn on_abort(message: *const c_char) {
    forward(LogSource::Ggml, sys::GGML_LOG_LEVEL_ERROR, message);
    forward(LogSource::Ggml, sys::GGML_LOG_LEVEL_CONT, c"\n".as_ptr());
    // Also to standard error: the log may be silenced or not written before the process ends.
    if !message.is_null() {
        // SAFETY: `ggml_abort` passes a NUL-terminated buffer on its stack (ggml.c:253).
        let message = unsafe { CStr::from_ptr(message) };
        let _ = catch_unwind(|| eprintln!("fatal error in ggml: {}", message.to_string_lossy()));
    }
}

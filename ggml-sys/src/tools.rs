//! Upstream's command-line tools as functions (feature `tools`).
//!
//! Each is upstream's own code with every option that it has. Without TLS in the build, what downloads over HTTPS
//! (`-hf`, `-mu https://...`) ends with a message that says so; a file and `http://` work.

use crate::{SMOL_OK, smol_last_error, smol_status};
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tool's entry point, see native/tools.h.
type Entry = unsafe extern "C" fn(c_int, *mut *mut c_char, *mut c_int) -> smol_status;

// By hand: bindings.rs is the same with and without the feature.
unsafe extern "C" {
    fn smol_tool_bench(argc: c_int, argv: *mut *mut c_char, code: *mut c_int) -> smol_status;
    fn smol_tool_perplexity(argc: c_int, argv: *mut *mut c_char, code: *mut c_int) -> smol_status;
    fn smol_tool_quantize(argc: c_int, argv: *mut *mut c_char, code: *mut c_int) -> smol_status;
    fn smol_tool_completion(argc: c_int, argv: *mut *mut c_char, code: *mut c_int) -> smol_status;
    fn smol_tool_at_exit(function: extern "C" fn()) -> bool;
}

/// One of upstream's tools. A program contains only those that it names.
#[derive(Clone, Copy)]
pub struct Tool {
    name: &'static str,
    entry: Entry,
}

impl Tool {
    /// `llama-bench`: speed of prompt processing and generation.
    pub const BENCH: Self = Self { name: "llama-bench", entry: smol_tool_bench };
    /// `llama-perplexity`: perplexity and other scores of a text.
    pub const PERPLEXITY: Self = Self { name: "llama-perplexity", entry: smol_tool_perplexity };
    /// `llama-quantize`: converts a model to another type.
    pub const QUANTIZE: Self = Self { name: "llama-quantize", entry: smol_tool_quantize };
    /// `llama-completion`: continues a prompt, also interactively.
    pub const COMPLETION: Self = Self { name: "llama-completion", entry: smol_tool_completion };

    /// Returns the name of upstream's program.
    pub fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tool").field(&self.name).finish()
    }
}

/// A tool ended without an exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    message: String,
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ToolError {}

/// Runs a tool with the arguments of a program, the first being its name, and returns its exit code.
///
/// Call [`cpu::check`](crate::cpu::check) first. The process is the tool's: it prints to standard output and error, sets
/// the locale and signal handlers (a closed pipe ends the process, as in a C program), may call `exit`, and leaves its
/// log function behind.
///
/// # Errors
///
/// [`ToolError`] if a tool is running already, if there are more arguments than C can count, or for a C++ exception
/// that the tool let out; standard C++ programs abort there.
pub fn run(tool: Tool, args: &[CString]) -> Result<c_int, ToolError> {
    // The tools keep what they work on in global variables.
    static RUNNING: AtomicBool = AtomicBool::new(false);
    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            RUNNING.store(false, Ordering::Release);
        }
    }
    if RUNNING.swap(true, Ordering::Acquire) {
        return Err(ToolError {
            message: format!("{tool} cannot start: a tool is running already"),
        });
    }
    let _running = Running;

    // Bytes of our own: C may write into its arguments.
    let mut strings: Vec<Vec<u8>> =
        args.iter().map(|arg| arg.as_bytes_with_nul().to_vec()).collect();
    if strings.is_empty() {
        strings.push(format!("{tool}\0").into_bytes());
    }
    let argc = c_int::try_from(strings.len())
        .map_err(|_| ToolError { message: format!("{} arguments are too many", strings.len()) })?;
    let mut argv: Vec<*mut c_char> =
        strings.iter_mut().map(|string| string.as_mut_ptr().cast()).collect();
    argv.push(ptr::null_mut());
    let mut code = 0;
    // SAFETY: `argv` has `argc` NUL-terminated strings and a null pointer at its end, all of them alive and ours during
    // the call, as the `main` of a C program gets them; `code` is writable; exceptions are caught (native/tools.cpp);
    // one tool runs at a time.
    let status = unsafe { (tool.entry)(argc, argv.as_mut_ptr(), &raw mut code) };
    if status == SMOL_OK {
        return Ok(code);
    }
    // SAFETY: takes nothing (smol.h, smol_last_error).
    let message = unsafe { smol_last_error() };
    // SAFETY: never null, NUL-terminated, and valid until the next smol_ call of this thread (smol.h).
    let message = unsafe { CStr::from_ptr(message) };
    Err(ToolError { message: format!("{tool}: {}", message.to_string_lossy()) })
}

/// Has a function called when the process exits, also when a tool calls `exit`.
///
/// # Errors
///
/// The C library has no room for one more.
pub fn at_exit(function: extern "C" fn()) -> Result<(), ToolError> {
    // SAFETY: the function is static and takes nothing (native/tools.cpp passes it to std::atexit).
    if unsafe { smol_tool_at_exit(function) } {
        Ok(())
    } else {
        Err(ToolError {
            message: "the C library takes no more functions to call at exit".to_owned(),
        })
    }
}

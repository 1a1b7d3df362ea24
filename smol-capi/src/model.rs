//! Models: loaded once, used by any number of sessions.

use std::ffi::{CStr, c_char, c_void};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use llama_rs::plan::PlannedContext;
use llama_rs::{LoadMode, Model};

use crate::argument::{object, place};
use crate::status::{Failure, call, quietly, smx_status};

/// Read the weights into memory if they fit with room to spare, otherwise map the file.
pub const SMX_LOAD_AUTO: i32 = 0;
/// Read the weights into memory of the process.
pub const SMX_LOAD_READ: i32 = 1;
/// Map the file: the system reads pages when they are used and drops them when memory is short. The file must not change
/// while the model lives.
pub const SMX_LOAD_MAP: i32 = 2;

/// A loaded model. Sessions keep what they need of it: it may be freed before them.
pub struct smx_model {
    pub(crate) model: Model,
}

/// Is called with the fraction of the model that is loaded, 0 to 1, on the thread that loads it. Loading stops when it
/// returns false. It must not throw an exception.
pub type smx_progress_fn =
    Option<unsafe extern "C" fn(fraction: f32, user_data: *mut c_void) -> bool>;

/// How a model is loaded; begin with smx_model_options_default().
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct smx_model_options {
    /// SMX_LOAD_AUTO, SMX_LOAD_READ or SMX_LOAD_MAP.
    pub load_mode: i32,
    /// Context, in tokens, for which `ram` leaves room: the n_ctx of the session; 0: what the model was trained on, at most
    /// 4096.
    pub n_ctx: u32,
    /// Bytes of RAM that the process may fill; 0: no limit. Weights for which there is no room are read from the file when
    /// they are needed, which needs SMX_LOAD_AUTO or SMX_LOAD_READ.
    pub ram: u64,
    /// Folder that keeps packed weights, which takes about the size of the model, so that the next load maps them instead of
    /// packing them again; NULL: none.
    pub pack_cache: *const c_char,
    /// May be NULL.
    pub progress: smx_progress_fn,
    /// Passed to `progress` as it is.
    pub user_data: *mut c_void,
}

impl Default for smx_model_options {
    fn default() -> Self {
        Self {
            load_mode: SMX_LOAD_AUTO,
            n_ctx: 0,
            ram: 0,
            pack_cache: null(),
            progress: None,
            user_data: null_mut(),
        }
    }
}

/// Returns the options that NULL stands for: mode AUTO, no limit of RAM, no folder, no callback.
#[unsafe(no_mangle)]
pub extern "C" fn smx_model_options_default() -> smx_model_options {
    smx_model_options::default()
}

/// The callback of a load, which stays on the loading thread.
struct Progress {
    call: unsafe extern "C" fn(f32, *mut c_void) -> bool,
    user_data: *mut c_void,
}

// SAFETY: llama.cpp calls it on the thread that loads (llama-model-loader.cpp), which is the one that passed it.
unsafe impl Send for Progress {}

/// Loads a GGUF file; of a model in several files, the first. `options` may be NULL. The model is freed with
/// smx_model_free().
///
/// # Safety
/// `path` is a NUL-terminated string; `options` points to options with NUL-terminated texts, or is NULL; `out` points to a
/// pointer, which becomes NULL when loading fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_model_load(
    path: *const c_char,
    options: *const smx_model_options,
    out: *mut *mut smx_model,
) -> smx_status {
    call(|| {
        // SAFETY: NULL or writable, by this function's contract.
        let out = unsafe { place(out, "out") }?;
        if path.is_null() {
            return Err(Failure::argument("path is NULL"));
        }
        // SAFETY: not NULL, hence NUL-terminated by this function's contract.
        let path = path_of(unsafe { CStr::from_ptr(path) })?;
        let options = match options.is_null() {
            true => smx_model_options::default(),
            // SAFETY: not NULL, hence valid by this function's contract.
            false => *unsafe { object(options, "options") }?,
        };
        let mode = match options.load_mode {
            SMX_LOAD_AUTO => LoadMode::Auto,
            SMX_LOAD_READ => LoadMode::Read,
            SMX_LOAD_MAP => LoadMode::Mmap,
            mode => {
                return Err(Failure::argument(format!("load_mode is {mode}, allowed are 0 to 2")));
            }
        };
        let mut builder = Model::builder(path).load_mode(mode);
        if options.ram > 0 {
            let n_ctx = (options.n_ctx > 0).then_some(options.n_ctx);
            let planned = PlannedContext { n_ctx, ..PlannedContext::default() };
            builder = builder.ram(options.ram).planned_context(planned);
        }
        if !options.pack_cache.is_null() {
            // SAFETY: not NULL, hence NUL-terminated by this function's contract.
            builder = builder.pack_cache(path_of(unsafe { CStr::from_ptr(options.pack_cache) })?);
        }
        if let Some(call) = options.progress {
            let progress = Progress { call, user_data: options.user_data };
            builder = builder.on_progress(move |fraction| {
                let progress = &progress;
                // SAFETY: the caller's function with the caller's data, during the call that they were passed to.
                match unsafe { (progress.call)(fraction, progress.user_data) } {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            });
        }
        let model = builder.load()?;
        *out = Box::into_raw(Box::new(smx_model { model }));
        Ok(())
    })
}

#[cfg(unix)]
fn path_of(path: &CStr) -> Result<PathBuf, Failure> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    Ok(OsStr::from_bytes(path.to_bytes()).into())
}

#[cfg(not(unix))]
fn path_of(path: &CStr) -> Result<PathBuf, Failure> {
    path.to_str()
        .map(PathBuf::from)
        .map_err(|e| Failure::argument(format!("path is not UTF-8: {e}")))
}

/// Frees a model. NULL does nothing.
///
/// # Safety
/// `model` is NULL or comes from smx_model_load(), is freed once, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_model_free(model: *mut smx_model) {
    if !model.is_null() {
        // SAFETY: made by Box::into_raw in smx_model_load and freed once, by this function's contract.
        let model = unsafe { Box::from_raw(model) };
        quietly(|| drop(model));
    }
}

//! A loaded model.

use std::ffi::{CString, c_void};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use ggml_sys as sys;

use super::call;
use super::panics;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::layouts::LayoutOptions;

/// Told the fraction that is loaded; asked whether to go on.
pub(crate) type ProgressFn = Box<dyn FnMut(f32) -> ControlFlow<()> + Send>;

/// How llama.cpp gets at the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawLoadMode {
    Read,
    Mmap,
    Mlock,
    DirectIo,
}

/// A value that takes the place of one in the file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RawOverride {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
}

pub(crate) struct LoadRequest {
    pub(crate) paths: Vec<CString>,
    pub(crate) mode: RawLoadMode,
    pub(crate) use_extra_bufts: bool,
    pub(crate) check_tensors: bool,
    pub(crate) layouts: LayoutOptions,
    pub(crate) overrides: Vec<(String, RawOverride)>,
    pub(crate) progress: Option<ProgressFn>,
    pub(crate) cancel: Option<CancelToken>,
    /// Called when the files are mapped and nothing has been read yet.
    pub(crate) before_reading: Option<Box<dyn FnOnce() + Send>>,
}

/// Owns a `llama_model`.
#[derive(Debug)]
pub(crate) struct RawModel {
    model: NonNull<sys::llama_model>,
}

// SAFETY: after loading, a model is read only: llama_context holds `const llama_model &` (llama-context.h), and neither
// llama_model nor llama_vocab has mutable members. The one writer, the YaRN adjustment in llama_init_from_model
// (llama-context.cpp:4184), is serialized by CREATION in ffi/context.rs and never reached: no rope setting is exposed.
unsafe impl Send for RawModel {}
// SAFETY: as above.
unsafe impl Sync for RawModel {}

/// What the progress callback works with; lives on the stack of `load`.
struct Progress {
    callback: Option<ProgressFn>,
    cancel: Option<CancelToken>,
    before_reading: Option<Box<dyn FnOnce() + Send>>,
    stopped: bool,
    panic: Option<String>,
}

extern "C" fn on_progress(fraction: f32, user_data: *mut c_void) -> bool {
    let progress = user_data.cast::<Progress>();
    // SAFETY: `load` passes a live `Progress`, and llama.cpp calls back on the loading thread only, one call at a time
    // (llama-model-loader.cpp, load_all_data).
    let progress = unsafe { &mut *progress };
    if let Some(before_reading) = progress.before_reading.take() {
        // Our own code; a panic would be a fault of ours and must not pass into C.
        let _ = catch_unwind(AssertUnwindSafe(before_reading));
    }
    if progress.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
        progress.stopped = true;
        return false;
    }
    let Some(callback) = &mut progress.callback else { return true };
    match catch_unwind(AssertUnwindSafe(|| callback(fraction))) {
        Ok(ControlFlow::Continue(())) => true,
        Ok(ControlFlow::Break(())) => {
            progress.stopped = true;
            false
        }
        Err(panic) => {
            progress.panic = Some(panics::message(&*panic).to_owned());
            false
        }
    }
}

impl RawModel {
    /// Loads a model whose files have been validated.
    pub(crate) fn load(request: LoadRequest) -> Result<Self> {
        call::init()?;
        super::layouts::choose(&request.layouts)?;
        let overrides = encode_overrides(&request.overrides)?;
        let mut paths: Vec<_> = request.paths.iter().map(|path| path.as_ptr()).collect();
        let mut progress = Progress {
            callback: request.progress,
            cancel: request.cancel,
            before_reading: request.before_reading,
            stopped: false,
            panic: None,
        };
        // SAFETY: a pure function without arguments (llama-model.cpp:3410).
        let mut params = unsafe { sys::llama_model_default_params() };
        params.n_gpu_layers = 0;
        params.load_mode = match request.mode {
            RawLoadMode::Read => sys::LLAMA_LOAD_MODE_NONE,
            RawLoadMode::Mmap => sys::LLAMA_LOAD_MODE_MMAP,
            RawLoadMode::Mlock => sys::LLAMA_LOAD_MODE_MLOCK,
            RawLoadMode::DirectIo => sys::LLAMA_LOAD_MODE_DIRECT_IO,
        };
        params.use_extra_bufts = request.use_extra_bufts;
        params.check_tensors = request.check_tensors;
        params.kv_overrides = if overrides.is_empty() { ptr::null() } else { overrides.as_ptr() };
        params.progress_callback = Some(on_progress);
        params.progress_callback_user_data = ptr::from_mut(&mut progress).cast();

        let mut model = ptr::null_mut();
        let outcome = call::guarded(ErrorKind::Load, "loading the model", || {
            // SAFETY: `paths` holds `paths.len()` NUL-terminated strings, `overrides` ends with an empty key
            // (llama-model-loader.cpp reads up to it), `progress` outlives the call; guarded (smol.h).
            unsafe { sys::smol_model_load(paths.as_mut_ptr(), paths.len(), &params, &mut model) }
        });
        // A model exists only if the call succeeded, but never leave one behind.
        let loaded = NonNull::new(model).map(|model| Self { model });
        if let Some(message) = &progress.panic {
            return Err(panics::error("progress callback", message));
        }
        if progress.stopped {
            return Err(Error::cancelled("loading the model"));
        }
        outcome?;
        loaded.ok_or_else(|| Error::new(ErrorKind::Load, "llama.cpp returned no model"))
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::llama_model {
        self.model.as_ptr()
    }

    pub(crate) fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is alive; returns the address of a member (llama-model.cpp:3434).
        unsafe { sys::llama_model_get_vocab(self.as_ptr()) }
    }

    pub(crate) fn n_ctx_train(&self) -> u32 {
        // SAFETY: the model is alive; returns a member (llama-model.cpp:3446).
        unsafe { sys::llama_model_n_ctx_train(self.as_ptr()) }.cast_unsigned()
    }

    pub(crate) fn n_embd(&self) -> u32 {
        // SAFETY: the model is alive; returns a member (llama-model.cpp:3450).
        unsafe { sys::llama_model_n_embd(self.as_ptr()) }.cast_unsigned()
    }

    pub(crate) fn n_embd_out(&self) -> u32 {
        // SAFETY: the model is alive; arithmetic on members (llama-model.cpp:3458).
        unsafe { sys::llama_model_n_embd_out(self.as_ptr()) }.cast_unsigned()
    }

    pub(crate) fn n_layer(&self) -> u32 {
        // SAFETY: the model is alive; arithmetic on members (llama-model.cpp:3462).
        unsafe { sys::llama_model_n_layer(self.as_ptr()) }.cast_unsigned()
    }

    pub(crate) fn n_swa(&self) -> u32 {
        // SAFETY: the model is alive; returns a member (llama-model.cpp:3482).
        unsafe { sys::llama_model_n_swa(self.as_ptr()) }.cast_unsigned()
    }

    pub(crate) fn size(&self) -> u64 {
        // SAFETY: the model is alive; returns a member (llama-model.cpp:3806).
        unsafe { sys::llama_model_size(self.as_ptr()) }
    }

    pub(crate) fn n_params(&self) -> u64 {
        // SAFETY: the model is alive; returns a member (llama-model.cpp:3829).
        unsafe { sys::llama_model_n_params(self.as_ptr()) }
    }

    pub(crate) fn desc(&self) -> String {
        let mut buffer = vec![0u8; 256];
        // SAFETY: `buffer` has the length that is passed; writes with snprintf (llama-model.cpp:3798).
        let length = unsafe {
            sys::llama_model_desc(self.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
        };
        buffer.truncate(usize::try_from(length).unwrap_or(0).min(buffer.len() - 1));
        String::from_utf8_lossy(&buffer).into_owned()
    }

    pub(crate) fn has_encoder(&self) -> bool {
        // SAFETY: the model is alive; a switch over a member (llama-model.cpp:3833).
        unsafe { sys::llama_model_has_encoder(self.as_ptr()) }
    }

    pub(crate) fn has_decoder(&self) -> bool {
        // SAFETY: the model is alive; a switch over a member (llama-model.cpp:3843).
        unsafe { sys::llama_model_has_decoder(self.as_ptr()) }
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        // SAFETY: the model is alive; a switch over a member (llama-model.cpp:3854).
        unsafe { sys::llama_model_is_recurrent(self.as_ptr()) }
    }

    pub(crate) fn is_hybrid(&self) -> bool {
        // SAFETY: the model is alive; a switch over a member (llama-model.cpp:3858).
        unsafe { sys::llama_model_is_hybrid(self.as_ptr()) }
    }

    /// Whether a token has several positions, which rules out shifting (llama-kv-cache.cpp:634).
    pub(crate) fn has_multi_axis_rope(&self) -> bool {
        // SAFETY: the model is alive; a switch over a member (llama-model.cpp:3532).
        let rope = unsafe { sys::llama_model_rope_type(self.as_ptr()) };
        rope == sys::LLAMA_ROPE_TYPE_MROPE || rope == sys::LLAMA_ROPE_TYPE_IMROPE
    }
}

impl Drop for RawModel {
    fn drop(&mut self) {
        // SAFETY: made by smol_model_load and freed once; contexts and vocabularies hold clones of the owner.
        unsafe { sys::smol_model_free(self.model.as_ptr()) };
    }
}

/// The C array of overrides, ended by an entry with an empty key, or empty if there are none.
fn encode_overrides(
    overrides: &[(String, RawOverride)],
) -> Result<Vec<sys::llama_model_kv_override>> {
    if overrides.is_empty() {
        return Ok(Vec::new());
    }
    let mut encoded = Vec::with_capacity(overrides.len() + 1);
    for (key, value) in overrides {
        // SAFETY: a C struct of numbers and bytes, for which zeros are valid.
        let mut entry: sys::llama_model_kv_override = unsafe { std::mem::zeroed() };
        copy_text(key, &mut entry.key, "key")?;
        match value {
            RawOverride::Int(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_INT;
                entry.__bindgen_anon_1.val_i64 = *value;
            }
            RawOverride::Float(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_FLOAT;
                entry.__bindgen_anon_1.val_f64 = *value;
            }
            RawOverride::Bool(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_BOOL;
                entry.__bindgen_anon_1.val_bool = *value;
            }
            RawOverride::Text(value) => {
                entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_STR;
                let mut text = [0; 128];
                copy_text(value, &mut text, "value")?;
                entry.__bindgen_anon_1.val_str = text;
            }
        }
        encoded.push(entry);
    }
    // SAFETY: as above; the empty key ends the list.
    encoded.push(unsafe { std::mem::zeroed() });
    Ok(encoded)
}

/// Copies a text into a C buffer, with its NUL.
fn copy_text(text: &str, to: &mut [std::ffi::c_char; 128], what: &str) -> Result<()> {
    if text.is_empty() || text.len() >= to.len() || text.contains('\0') {
        return Err(Error::invalid(format!(
            "metadata override: the {what} {text:?} must have 1 to {} bytes and no NUL",
            to.len() - 1
        )));
    }
    for (to, from) in to.iter_mut().zip(text.bytes()) {
        *to = from as std::ffi::c_char;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_end_with_an_empty_key() {
        assert!(encode_overrides(&[]).unwrap().is_empty());
        let encoded = encode_overrides(&[("a.b".into(), RawOverride::Int(3))]).unwrap();
        assert_eq!(encoded.len(), 2);
        assert_eq!(encoded[0].key[..4], [b'a' as _, b'.' as _, b'b' as _, 0]);
        assert_eq!(encoded[1].key[0], 0);
    }

    #[test]
    fn overrides_that_do_not_fit_are_refused() {
        for key in ["", "a\0b", &"k".repeat(128)] {
            let error = encode_overrides(&[(key.into(), RawOverride::Bool(true))]).err().unwrap();
            assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
        }
        let long = RawOverride::Text("v".repeat(128));
        assert!(encode_overrides(&[("key".into(), long)]).is_err());
    }
}

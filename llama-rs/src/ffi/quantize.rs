//! llama.cpp's quantizer.

use std::ffi::CStr;

use ggml_sys as sys;

use super::call;
use crate::error::{ErrorKind, Result};
use crate::log;

/// Writes the quantized model; the input has been validated.
pub(crate) fn quantize(
    from: &CStr,
    to: &CStr,
    ftype: sys::llama_ftype,
    threads: u32,
    allow_requantize: bool,
    pure: bool,
) -> Result<()> {
    call::init()?;
    // SAFETY: a pure function without arguments (llama.h, llama_model_quantize_default_params).
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = threads as i32;
    params.ftype = ftype;
    params.allow_requantize = allow_requantize;
    params.pure_ = pure;
    let capture = log::capture();
    let mut result = 0;
    // SAFETY: two NUL-terminated paths and initialized parameters without pointers; guarded (smol.h).
    let status =
        unsafe { sys::smol_model_quantize(from.as_ptr(), to.as_ptr(), &params, &mut result) };
    let (status, message) = match (status, result) {
        (sys::SMOL_OK, 0) => return Ok(()),
        // llama.cpp has caught the exception itself and logged it.
        (sys::SMOL_OK, code) => (sys::SMOL_ERR_NULL, format!("code {code}")),
        (failed, _) => (failed, call::last_error()),
    };
    Err(call::failure(status, &message, ErrorKind::Load, "quantizing", capture.finish()))
}

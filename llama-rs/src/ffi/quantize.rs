//! llama.cpp's quantizer.

use std::ffi::CStr;

use ggml_sys as sys;

use super::call;
use crate::error::{Error, ErrorKind, Result};

/// Writes the quantized model; the input has been validated.
pub(crate) fn quantize(
    from: &CStr,
    to: &CStr,
    ftype: u32,
    threads: u32,
    allow_requantize: bool,
    pure: bool,
) -> Result<()> {
    call::init()?;
    // SAFETY: a pure function without arguments (llama.h, llama_model_quantize_default_params).
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = threads as i32;
    params.ftype = ftype as sys::llama_ftype;
    params.allow_requantize = allow_requantize;
    params.pure_ = pure;
    let mut result = 0;
    call::guarded(ErrorKind::Load, "quantizing", || {
        // SAFETY: two NUL-terminated paths and initialized parameters without pointers; guarded (smol.h).
        unsafe { sys::smol_model_quantize(from.as_ptr(), to.as_ptr(), &params, &mut result) }
    })?;
    match result {
        0 => Ok(()),
        code => Err(Error::new(ErrorKind::Load, format!("quantizing failed with code {code}"))),
    }
}

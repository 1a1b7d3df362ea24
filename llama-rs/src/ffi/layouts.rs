//! The choice of packed layouts for a load, and what became of each weight.

use std::ffi::{CStr, CString, c_char};

use ggml_sys as sys;

use super::call;
use crate::error::{Error, ErrorKind, Result};
use crate::layouts::{LayoutOptions, WeightKernel, WeightLayout, WeightUse};

/// Settles the layouts of the models that this thread loads from now on.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a name that the CPU level does not have.
pub(crate) fn choose(options: &LayoutOptions) -> Result<()> {
    call::init()?;
    let named = strings(&options.prefer)?;
    let off = strings(&options.avoid)?;
    let (named, off) = (pointers(&named), pointers(&off));
    let packing = sys::smol_packing {
        enabled: options.enabled,
        named: named.as_ptr(),
        named_n: named.len(),
        off: off.as_ptr(),
        off_n: off.len(),
    };
    call::guarded(ErrorKind::InvalidArgument, "choosing packed layouts", || {
        // SAFETY: the arrays hold as many NUL-terminated strings as are passed, and outlive the call; guarded (smol.h).
        unsafe { sys::smol_packing_set(&packing) }
    })
}

/// Returns what became of the matrices of the model that this thread loaded last.
pub(crate) fn of_last_load() -> Vec<WeightLayout> {
    // SAFETY: no arguments; the size of a thread's own list (packed_weights.cpp).
    let n = unsafe { sys::smol_weight_count() };
    let read = |i| {
        let mut weight = sys::smol_weight::default();
        // SAFETY: writes into a struct of that type; false beyond the end of the list (smol.h).
        unsafe { sys::smol_weight_get(i, &mut weight) }.then(|| of(&weight))
    };
    (0..n).filter_map(read).collect()
}

fn of(weight: &sys::smol_weight) -> WeightLayout {
    let kernel = match (text(weight.path), text(weight.reason)) {
        (Some(path), _) if path == "repack" => WeightKernel::Repacked,
        (Some(layout), _) => WeightKernel::Packed { layout },
        (None, reason) => WeightKernel::Plain { reason: reason.unwrap_or_default() },
    };
    let used_as = match weight.op {
        sys::GGML_OP_MUL_MAT_ID => WeightUse::Experts,
        sys::GGML_OP_GET_ROWS => WeightUse::Rows,
        _ => WeightUse::Matrix,
    };
    let end = weight.name.iter().position(|c| *c == 0).unwrap_or(weight.name.len());
    let name: Vec<u8> = weight.name[..end].iter().flat_map(|c| c.to_ne_bytes()).collect();
    // SAFETY: a valid type of a loaded tensor; returns a string of the program (ggml.c, ggml_type_name).
    let ty = text(unsafe { sys::ggml_type_name(weight.type_) }).unwrap_or_default();
    WeightLayout {
        name: String::from_utf8_lossy(&name).into_owned(),
        ty,
        used_as,
        shape: weight.ne,
        bytes: weight.bytes,
        kernel,
    }
}

/// A string of the program's constants.
fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: NULL or the address of a constant, NUL-terminated string (packed_weights.cpp: names of layouts, reasons).
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

fn strings(names: &[String]) -> Result<Vec<CString>> {
    let convert = |name: &String| CString::new(name.as_str());
    names
        .iter()
        .map(convert)
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| Error::invalid("a layout's name has a NUL byte in it"))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

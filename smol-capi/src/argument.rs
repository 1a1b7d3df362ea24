//! Arguments from C as references, with NULL and foreign text refused.

use std::ffi::{CStr, c_char};
use std::slice;

use crate::status::Failure;

type Result<T> = std::result::Result<T, Failure>;

/// A text that must be there.
///
/// # Safety
/// `text` is NULL or a NUL-terminated string that does not change while `'a` lasts.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    match unsafe { optional_text(text, name) }? {
        Some(text) => Ok(text),
        None => Err(Failure::argument(format!("{name} is NULL"))),
    }
}

/// A text, or `None` for NULL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, hence NUL-terminated and unchanged by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|e| Failure::argument(format!("{name} is not UTF-8: {e}")))
}

/// An object that must be there.
///
/// # Safety
/// `pointer` is NULL or points to a `T` that nothing changes while `'a` lasts.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, name: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

/// An array; NULL is allowed if it is empty.
///
/// # Safety
/// `pointer` is NULL or points to `len` values that nothing changes while `'a` lasts.
pub(crate) unsafe fn array<'a, T>(pointer: *const T, len: usize, name: &str) -> Result<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(Failure::argument(format!("{name} is NULL but has {len} entries")));
    }
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::argument(format!("{name} has {len} entries")));
    }
    // SAFETY: not NULL, hence valid for `len` values by the caller's promise; their size does not overflow, see above.
    Ok(unsafe { slice::from_raw_parts(pointer, len) })
}

/// A place for a new object, set to NULL.
///
/// # Safety
/// `place` is NULL or points to a pointer that may be written.
pub(crate) unsafe fn place<'a, T>(place: *mut *mut T, name: &str) -> Result<&'a mut *mut T> {
    if place.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, hence writable by the caller's promise; it may be uninitialized, so it is written first.
    unsafe { place.write(std::ptr::null_mut()) };
    // SAFETY: initialized above.
    Ok(unsafe { &mut *place })
}

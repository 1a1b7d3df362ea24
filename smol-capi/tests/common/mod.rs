//! Tiny models, and objects of the C API that free themselves.

#![allow(dead_code, reason = "each test uses a part")]

use smol_capi::*;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

/// A tiny model on disk.
pub struct TinyFile {
    folder: TempDir,
    path: PathBuf,
}

impl TinyFile {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

pub fn write(arch: Arch) -> TinyFile {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny::write(&path, arch, &TinyOptions::default()).unwrap();
    TinyFile { folder, path }
}

pub struct OwnedModel {
    pub pointer: *mut smx_model,
}

impl Drop for OwnedModel {
    fn drop(&mut self) {
        // SAFETY: made by smx_model_load, freed once.
        unsafe { smx_model_free(self.pointer) };
    }
}

pub fn load(arch: Arch) -> (OwnedModel, TinyFile) {
    let tiny = write(arch);
    let path = CString::new(tiny.path.to_str().unwrap()).unwrap();
    let mut pointer = null_mut();
    // SAFETY: all pointers are to values that live until the call returns.
    let status = unsafe { smx_model_load(path.as_ptr(), null(), &raw mut pointer) };
    assert_eq!(status, smx_status::SMX_OK, "{}", last_error());
    (OwnedModel { pointer }, tiny)
}

pub struct OwnedSession {
    pub pointer: *mut smx_session,
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // SAFETY: made by smx_session_new, freed once.
        unsafe { smx_session_free(self.pointer) };
    }
}

pub fn session(model: &OwnedModel, options: &smx_session_options) -> OwnedSession {
    let mut pointer = null_mut();
    // SAFETY: all pointers are to values that live until the call returns.
    let status = unsafe { smx_session_new(model.pointer, options, &raw mut pointer) };
    assert_eq!(status, smx_status::SMX_OK, "{}", last_error());
    OwnedSession { pointer }
}

pub fn last_error() -> String {
    // SAFETY: never NULL, valid until the next failure on this thread.
    unsafe { CStr::from_ptr(smx_last_error()) }.to_str().unwrap().to_owned()
}

/// The pieces of an answer.
#[derive(Default)]
pub struct Text {
    pub pieces: Vec<String>,
}

impl Text {
    pub fn user_data(&mut self) -> *mut c_void {
        (&raw mut *self).cast()
    }
}

pub unsafe extern "C" fn append(text: *const c_char, len: usize, user: *mut c_void) -> bool {
    // SAFETY: `user` is a `Text` that lives during the call.
    let pieces = unsafe { &mut (*user.cast::<Text>()).pieces };
    // SAFETY: the API promises a NUL behind the text.
    let piece = unsafe { CStr::from_ptr(text) }.to_str().unwrap();
    assert_eq!(piece.len(), len);
    pieces.push(piece.to_owned());
    true
}

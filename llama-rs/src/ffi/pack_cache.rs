//! The cache of packed weights, as the overlay calls it while a model is loaded.

use std::cell::RefCell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::OnceLock;

use ggml_sys as sys;
use smol_engine::pack_cache::{PackedFile, Weight};

use super::call;
use super::model::RawModel;
use crate::error::{ErrorKind, Result};
use crate::plain_weights::PlainWeights;

/// The layout of weights that nobody packs (smol.h).
const PLAIN: &str = "plain";

/// A weight of a model, packed, and where its bytes are.
pub(crate) struct Placed {
    pub(crate) weight: Weight,
    /// Whether they are in the cache's file.
    pub(crate) cached: bool,
    data: *const u8,
}

impl Placed {
    /// The packed bytes. `model` must be the one of this weight, and its cache file open.
    pub(crate) fn bytes<'a>(&self, _model: &'a RawModel) -> &'a [u8] {
        // SAFETY: the overlay has told that so many bytes are there (pack_cache.cpp, smol_pack_cache_placed): in a buffer
        // of the model, which is not written to after loading, or in the file, which outlives it (Inner in model.rs).
        unsafe { slice::from_raw_parts(self.data, self.weight.bytes as usize) }
    }
}

/// What the callbacks see.
struct Shared<'a> {
    found: Option<(&'a PackedFile, Option<&'a PlainWeights>)>,
    placed: RefCell<Vec<Placed>>,
}

/// Loads a model whose weights come from `found`, as far as they are there; returns where all packed ones are.
///
/// `found` must stay open as long as the model.
pub(crate) fn during_load<T>(
    found: Option<(&PackedFile, Option<&PlainWeights>)>,
    load: impl FnOnce() -> Result<T>,
) -> Result<(T, Vec<Placed>)> {
    /// The thread must not load other models with this cache, whatever happens.
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            // SAFETY: NULL takes the cache of this thread out; can't fail (pack_cache.cpp).
            unsafe { sys::smol_pack_cache_set(std::ptr::null()) };
        }
    }
    let shared = Shared { found, placed: RefCell::new(Vec::new()) };
    let table = sys::smol_pack_cache {
        abi_version: sys::SMOL_ABI_VERSION,
        reserved: 0,
        ud: std::ptr::from_ref(&shared).cast_mut().cast(),
        find: Some(on_find),
        placed: Some(on_placed),
    };
    let reset = Reset;
    call::guarded(ErrorKind::Internal, "setting the cache of packed weights", || {
        // SAFETY: the table outlives the load, after which `reset` takes it out again.
        unsafe { sys::smol_pack_cache_set(&table) }
    })?;
    let loaded = load()?;
    drop(reset);
    Ok((loaded, shared.placed.into_inner()))
}

/// The CPU's features, as far as code depends on them.
pub(crate) fn cpu_features() -> &'static str {
    static FEATURES: OnceLock<String> = OnceLock::new();
    FEATURES.get_or_init(|| {
        // SAFETY: no arguments; returns a string of the library that is written by this call only, which is made once
        // (llama.cpp, llama_print_system_info).
        let text = unsafe { sys::llama_print_system_info() };
        // SAFETY: NUL-terminated (llama.h, llama_print_system_info), copied at once.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned()
    })
}

/// # Safety
/// `weight` must be a valid description with a NUL-terminated name and layout.
unsafe fn weight_of(weight: *const sys::smol_packed_weight) -> Weight {
    // SAFETY: as the caller promises; lives through the call.
    let weight = unsafe { &*weight };
    // SAFETY: the name of a tensor (ggml.h, GGML_MAX_NAME).
    let name = unsafe { CStr::from_ptr(weight.name) };
    // SAFETY: a constant of the overlay (pack_cache.cpp, describe).
    let layout = unsafe { CStr::from_ptr(weight.layout) };
    Weight {
        name: name.to_string_lossy().into_owned(),
        layout: layout.to_string_lossy().into_owned(),
        version: weight.version,
        ty: weight.type_,
        shape: weight.ne.map(i64::cast_unsigned),
        bytes: weight.bytes as u64,
    }
}

extern "C" fn on_find(ud: *mut c_void, weight: *const sys::smol_packed_weight) -> *const c_void {
    // SAFETY: `during_load` passes a living `Shared`, and the overlay calls on the loading thread only.
    let shared = unsafe { &*ud.cast::<Shared<'_>>() };
    let Some((file, plain)) = shared.found else { return std::ptr::null() };
    // SAFETY: the overlay passes one (pack_cache.cpp, smol_pack_cache_find).
    let weight = unsafe { weight_of(weight) };
    let found = catch_unwind(AssertUnwindSafe(|| {
        let bytes = match weight.layout.as_str() {
            PLAIN => plain.and_then(|plain| plain.find(&weight)),
            _ => file.find(&weight),
        };
        bytes.map(<[u8]>::as_ptr)
    }));
    found.ok().flatten().map_or(std::ptr::null(), <*const u8>::cast)
}

extern "C" fn on_placed(
    ud: *mut c_void,
    weight: *const sys::smol_packed_weight,
    data: *const c_void,
) {
    // SAFETY: as in on_find.
    let shared = unsafe { &*ud.cast::<Shared<'_>>() };
    // SAFETY: as in on_find.
    let weight = unsafe { weight_of(weight) };
    let data = data.cast::<u8>();
    // A panic would be a fault of ours and must not pass into C; a weight that is not noted is not kept.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let found = shared.found.and_then(|(file, _)| file.find(&weight));
        let cached = found.is_some_and(|bytes| bytes.as_ptr() == data);
        shared.placed.borrow_mut().push(Placed { weight, cached, data });
    }));
}

//! The pager of a model's experts, as the overlay calls it.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ggml_sys as sys;
use smol_engine::expert::routing::{CacheBias, Gating};
use smol_engine::expert::{self, Pager};
use smol_engine::io;

use super::kernels::RawLayout;
use super::{call, decoding, panics};
use crate::error::{Error, ErrorKind, Result};

/// Where a tensor of experts is, for the loader.
pub(crate) struct PagedTensor {
    pub(crate) layer: usize,
    /// Number among the tensors of its layer.
    pub(crate) tensor: usize,
    pub(crate) layout: Option<RawLayout>,
    pub(crate) file: u16,
    pub(crate) offset: u64,
    /// Bytes of all its experts in the file.
    pub(crate) size: u64,
}

/// What is told about the computation, on the threads that compute.
pub(crate) trait Watcher: Send + Sync {
    /// What the router of a layer is about to read, one row a token.
    fn hidden(&self, _layer: usize, _x: &[f32]) {}
    /// The experts of each of some tokens, `used` of a token, before the first product of a layer with them.
    fn chosen(&self, _run: usize, _layer: usize, _used: usize, _ids: &[i32]) {}
    /// The graph is over.
    fn ended(&self, _run: usize) {}
}

/// Of each layer: what the model adds to the scores of its experts to choose by, if anything.
pub(crate) type Corrections = Vec<Option<Vec<f32>>>;

/// What the callbacks see.
struct Shared {
    pager: Arc<Pager>,
    tensors: HashMap<String, PagedTensor>,
    bias: CacheBias,
    corrections: Corrections,
    watchers: Vec<Arc<dyn Watcher>>,
    panicked: AtomicBool,
}

/// The experts of one model, paged; outlives the model.
pub(crate) struct PagedExperts {
    table: Box<sys::smol_pager>,
    shared: Box<Shared>,
}

// SAFETY: the table holds static functions and the address of `shared`, which is Sync and stays where it is.
unsafe impl Send for PagedExperts {}
// SAFETY: as above.
unsafe impl Sync for PagedExperts {}

thread_local! {
    /// The run of this thread that knows what stops it.
    static TOLD: Cell<usize> = const { Cell::new(0) };
}

/// Returns how paged experts and streamed matrices of a type and row length will lie in memory, given the layouts that
/// this thread has chosen. `None`: as in the file.
pub(crate) fn layout_of(ty: u32, columns: u64) -> Option<RawLayout> {
    let columns = i64::try_from(columns).ok()?;
    // SAFETY: a pure function of its arguments and this thread's choice (packed_weights.cpp, smol_layout_for_any); `ty`
    // is a type of the enum, as smol-gguf knows no others.
    RawLayout::from_ptr(unsafe { sys::smol_paged_layout(ty as sys::ggml_type, columns) })
}

/// Whether this build can leave out weights at load.
pub(crate) fn can_page() -> bool {
    // SAFETY: returns a constant of the build (overlay.cpp).
    unsafe { sys::smol_has_load_hook() }
}

impl PagedExperts {
    pub(crate) fn new(
        pager: Arc<Pager>,
        tensors: HashMap<String, PagedTensor>,
        bias: CacheBias,
        corrections: Corrections,
        watchers: Vec<Arc<dyn Watcher>>,
    ) -> Self {
        let biased = bias.is_active();
        let watched = !watchers.is_empty();
        let panicked = AtomicBool::new(false);
        let shared = Box::new(Shared { pager, tensors, bias, corrections, watchers, panicked });
        let table = Box::new(sys::smol_pager {
            abi_version: sys::SMOL_ABI_VERSION,
            reserved: 0,
            ud: std::ptr::from_ref(&*shared).cast_mut().cast(),
            place: Some(on_place),
            check: Some(on_check),
            hidden: watched.then_some(on_hidden as _),
            order: biased.then_some(on_order as _),
            want: Some(on_want),
            begin: Some(on_begin),
            wait: Some(on_wait),
            done: Some(on_done),
            end: Some(on_end),
        });
        Self { table, shared }
    }

    pub(crate) fn pager(&self) -> &Arc<Pager> {
        &self.shared.pager
    }

    /// Pages the experts of models that upstream's code loads on this thread, until the process ends.
    #[cfg(feature = "tools")]
    pub(crate) fn keep(&'static self) -> Result<()> {
        call::guarded(ErrorKind::Unsupported, "paging experts", || {
            // SAFETY: the table lives as long as the process.
            unsafe { sys::smol_paging_set(&*self.table) }
        })
    }

    /// Loads a model whose experts this pages.
    pub(crate) fn during_load<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<T> {
        /// The thread must not load other models with this pager, whatever happens.
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                // SAFETY: NULL takes the pager of this thread out; can't fail (paged_weights.cpp).
                unsafe { sys::smol_paging_set(std::ptr::null()) };
            }
        }
        call::guarded(ErrorKind::Unsupported, "paging experts", || {
            // SAFETY: the table outlives the load, and the model, which is dropped before `self` (Inner in model.rs).
            unsafe { sys::smol_paging_set(&*self.table) }
        })?;
        let _reset = Reset;
        load()
    }
}

/// The error of this crate for one of the pager.
pub(crate) fn error_of(error: expert::Error) -> Error {
    let kind = match &error {
        expert::Error::Io(error) => io_kind(error),
        expert::Error::Budget { floor, budget } => {
            ErrorKind::OutOfMemory { needed: Some(*floor), available: Some(*budget) }
        }
        expert::Error::Memory { bytes, .. } => {
            ErrorKind::OutOfMemory { needed: Some(*bytes), available: None }
        }
        expert::Error::Thread(error) => ErrorKind::Io(error.kind()),
        expert::Error::Stopped => ErrorKind::Cancelled,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.to_string()).with_source(error)
}

/// The kind of an error of reading weights.
pub(super) fn io_kind(error: &io::Error) -> ErrorKind {
    match error {
        io::Error::Changed { .. } | io::Error::Truncated { .. } => ErrorKind::FileChanged,
        io::Error::Access { source, .. } | io::Error::Read { source, .. } => {
            ErrorKind::Io(source.kind())
        }
        _ => ErrorKind::Internal,
    }
}

impl Shared {
    /// # Safety
    /// `ud` must be that of a table of a living [`PagedExperts`].
    unsafe fn of<'a>(ud: *mut c_void) -> &'a Self {
        // SAFETY: as the caller promises; the box stays where it is.
        unsafe { &*ud.cast::<Self>() }
    }

    /// Runs `call`; a panic, which would be a fault of ours, ends the runs of this pager.
    fn contained<T>(&self, otherwise: T, call: impl FnOnce() -> T) -> T {
        panics::contained("expert pager", &self.panicked, otherwise, call)
    }
}

fn experts_of(ids: &[i32]) -> Vec<u32> {
    ids.iter().filter_map(|id| u32::try_from(*id).ok()).collect()
}

extern "C" fn on_place(
    ud: *mut c_void,
    name: *const c_char,
    out: *mut sys::smol_paged_place,
) -> bool {
    // SAFETY: `ud` comes from the table, whose owner outlives load and model.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: the NUL-terminated name of a tensor (ggml.h, GGML_MAX_NAME), read during the call.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(tensor) = name.to_str().ok().and_then(|name| shared.tensors.get(name)) else {
        return false;
    };
    let place = sys::smol_paged_place {
        layer: tensor.layer as i32,
        tensor: tensor.tensor as i32,
        layout: tensor.layout.map_or(std::ptr::null(), RawLayout::as_ptr),
    };
    // SAFETY: the overlay passes room for one (paged_weights.cpp).
    unsafe { out.write(place) };
    true
}

extern "C" fn on_check(
    ud: *mut c_void,
    place: *const sys::smol_paged_place,
    file: u16,
    offset: u64,
    size: u64,
) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: a place that on_place wrote (paged_weights.cpp, init_tensor).
    let place = unsafe { &*place };
    let same = |tensor: &&PagedTensor| {
        (tensor.layer as i32, tensor.tensor as i32) == (place.layer, place.tensor)
    };
    let Some(tensor) = shared.tensors.values().find(same) else { return false };
    (tensor.file, tensor.offset, tensor.size) == (file, offset, size)
}

extern "C" fn on_hidden(ud: *mut c_void, layer: i32, x: *const f32, n: i64) {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: the rows of activations that the node is about to read (paged_compute.cpp, tell_hidden).
    let x = unsafe { slice::from_raw_parts(x, n as usize) };
    shared.contained((), || {
        shared.watchers.iter().for_each(|watcher| watcher.hidden(layer as usize, x));
    });
}

extern "C" fn on_order(
    ud: *mut c_void,
    layer: i32,
    gating: sys::smol_gating,
    scores: *const f32,
    n: i64,
    order: *mut i32,
) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: a row of the sort's input (paged_compute.cpp, sort_experts).
    let scores = unsafe { slice::from_raw_parts(scores, n as usize) };
    // SAFETY: the same row of its output, which nothing else refers to.
    let order = unsafe { slice::from_raw_parts_mut(order, n as usize) };
    let gating = match gating {
        sys::SMOL_GATING_SOFTMAX => Gating::Softmax,
        sys::SMOL_GATING_SIGMOID => Gating::Sigmoid,
        sys::SMOL_GATING_SQRT_SOFTPLUS => Gating::SqrtSoftplus,
        _ => Gating::SoftmaxWeight,
    };
    let resident = |expert| shared.pager.is_resident(layer as usize, expert);
    shared.contained(false, || {
        let correction = shared.corrections.get(layer as usize).and_then(Option::as_deref);
        shared.bias.order_corrected(gating, scores, correction, resident, order);
        true
    })
}

extern "C" fn on_want(ud: *mut c_void, run: usize, layer: i32, experts: *const i32, n: i32) {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: the first `n` of a sorted row (paged_compute.cpp, sort_experts).
    let experts = unsafe { slice::from_raw_parts(experts, n as usize) };
    shared.contained((), || shared.pager.want(run, layer as usize, &experts_of(experts)));
}

extern "C" fn on_begin(ud: *mut c_void, op: *const sys::smol_expert_op) {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: lives through the call (paged_compute.cpp, Product::begin).
    let op = unsafe { &*op };
    // SAFETY: `n` experts (paged_compute.cpp).
    let experts = unsafe { slice::from_raw_parts(op.experts, op.n as usize) };
    // SAFETY: as many places, which only this call writes to.
    let order = unsafe { slice::from_raw_parts_mut(op.order, op.n as usize) };
    shared.contained((), || {
        let experts = experts_of(experts);
        let entries = experts.iter().max().map_or(0, |last| *last as usize + 2);
        // SAFETY: an entry for each expert of the layer and one more (expert_uses.h); `experts` are among them.
        let first_use = unsafe { slice::from_raw_parts(op.first_use, entries) };
        let uses = |expert: &u32| {
            let expert = *expert as usize;
            (first_use[expert + 1] - first_use[expert]) as u32
        };
        let uses: Vec<u32> = experts.iter().map(uses).collect();
        if TOLD.replace(op.run) != op.run {
            shared.pager.set_stop(op.run, decoding::stop());
        }
        if op.tensor == 0 && !shared.watchers.is_empty() {
            let ids = chosen(op);
            let used = op.used as usize;
            let layer = op.layer as usize;
            shared.watchers.iter().for_each(|w| w.chosen(op.run, layer, used, &ids));
        }
        shared.pager.begin(op.run, op.layer as usize, op.tensor as usize, &experts, &uses);
        shared.pager.order(op.run, order);
    });
}

/// The experts of each token; a token that lacks some has -1 instead.
fn chosen(op: &sys::smol_expert_op) -> Vec<i32> {
    let mut ids = Vec::with_capacity((op.used * op.tokens) as usize);
    for token in 0..op.tokens as usize {
        let first = op.ids.wrapping_byte_add(token * op.stride);
        // SAFETY: the node's ids: `tokens` rows, `stride` bytes apart, of `used` numbers (smol.h).
        ids.extend_from_slice(unsafe { slice::from_raw_parts(first, op.used as usize) });
    }
    ids
}

extern "C" fn on_wait(ud: *mut c_void, run: usize, i: i32) -> *const c_void {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    if shared.panicked.load(Ordering::Relaxed) {
        return std::ptr::null();
    }
    shared.contained(std::ptr::null(), || {
        shared.pager.wait(run, i as usize).map_or(std::ptr::null(), |weights| weights.cast())
    })
}

extern "C" fn on_done(ud: *mut c_void, run: usize, i: i32) {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    shared.contained((), || shared.pager.done(run, i as usize));
}

extern "C" fn on_end(ud: *mut c_void, run: usize) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    let ended = shared.contained(Ok(()), || {
        shared.watchers.iter().for_each(|watcher| watcher.ended(run));
        let ended = shared.pager.end(run);
        shared.pager.set_stop(run, None);
        TOLD.set(0);
        ended
    });
    let error = match ended {
        _ if shared.panicked.load(Ordering::Acquire) => {
            Error::new(ErrorKind::Internal, "the expert pager failed; load the model again")
        }
        Ok(()) => return true,
        Err(error) => error_of(error),
    };
    decoding::fail(error);
    false
}

#[cfg(test)]
mod tests;

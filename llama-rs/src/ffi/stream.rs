//! The streamed weights of a model, as the overlay asks for them.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ggml_sys as sys;
use smol_engine::stream::{self, Stream};

use super::kernels::RawLayout;
use super::{call, decoding, pager, panics};
use crate::error::{Error, ErrorKind, Result};

/// Where a streamed tensor is, for the loader.
pub(crate) struct StreamedTensor {
    /// Number among the stream's tensors.
    pub(crate) tensor: u32,
    pub(crate) layout: Option<RawLayout>,
    /// Whether it lies in memory as llama.cpp packs it.
    pub(crate) repacked: bool,
    /// Whether only single rows of it are read.
    pub(crate) rows_only: bool,
    /// Bytes of a row in the file.
    pub(crate) row_bytes: usize,
    pub(crate) file: u16,
    pub(crate) offset: u64,
    /// Bytes in the file.
    pub(crate) size: u64,
}

/// What the callbacks see.
struct Shared {
    stream: Arc<Stream>,
    tensors: HashMap<String, StreamedTensor>,
    /// Bytes of a row of each tensor, by number.
    row_bytes: Vec<usize>,
    /// Why rows did not come, in the run that goes on.
    failure: Mutex<Option<Error>>,
    panicked: AtomicBool,
}

/// The streamed weights of one model; outlives the model.
pub(crate) struct StreamedWeights {
    table: Box<sys::smol_streamer>,
    shared: Box<Shared>,
}

// SAFETY: the table holds static functions and the address of `shared`, which is Sync and stays where it is.
unsafe impl Send for StreamedWeights {}
// SAFETY: as above.
unsafe impl Sync for StreamedWeights {}

impl StreamedWeights {
    pub(crate) fn new(stream: Arc<Stream>, tensors: HashMap<String, StreamedTensor>) -> Self {
        let mut row_bytes = vec![0; tensors.len()];
        tensors.values().for_each(|t| row_bytes[t.tensor as usize] = t.row_bytes);
        let (failure, panicked) = (Mutex::default(), AtomicBool::new(false));
        let shared = Box::new(Shared { stream, tensors, row_bytes, failure, panicked });
        let table = Box::new(sys::smol_streamer {
            abi_version: sys::SMOL_ABI_VERSION,
            reserved: 0,
            ud: std::ptr::from_ref(&*shared).cast_mut().cast(),
            place: Some(on_place),
            check: Some(on_check),
            begin: Some(on_begin),
            wait: Some(on_wait),
            rows: Some(on_rows),
            end: Some(on_end),
        });
        Self { table, shared }
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        &self.shared.stream
    }

    /// Streams the weights of models that upstream's code loads on this thread, until the process ends.
    #[cfg(feature = "tools")]
    pub(crate) fn keep(&'static self) -> Result<()> {
        call::guarded(ErrorKind::Unsupported, "streaming weights", || {
            // SAFETY: the table lives as long as the process.
            unsafe { sys::smol_streaming_set(&*self.table) }
        })
    }

    /// Loads a model whose weights this streams.
    pub(crate) fn during_load<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<T> {
        /// The thread must not load other models with this streamer, whatever happens.
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                // SAFETY: NULL takes the streamer of this thread out; can't fail (streamed_weights.cpp).
                unsafe { sys::smol_streaming_set(std::ptr::null()) };
            }
        }
        call::guarded(ErrorKind::Unsupported, "streaming weights", || {
            // SAFETY: the table outlives the load, and the model, which is dropped before `self` (Inner in model.rs).
            unsafe { sys::smol_streaming_set(&*self.table) }
        })?;
        let _reset = Reset;
        load()
    }
}

/// The error of this crate for one of the stream.
pub(crate) fn error_of(error: stream::Error) -> Error {
    let kind = match &error {
        stream::Error::Io(error) => pager::io_kind(error),
        stream::Error::Zone { floor, zone } => {
            ErrorKind::OutOfMemory { needed: Some(*floor), available: Some(*zone) }
        }
        stream::Error::Memory { bytes, .. } => {
            ErrorKind::OutOfMemory { needed: Some(*bytes), available: None }
        }
        stream::Error::Thread(error) => ErrorKind::Io(error.kind()),
        stream::Error::Stopped => ErrorKind::Cancelled,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.to_string()).with_source(error)
}

impl Shared {
    /// # Safety
    /// `ud` must be that of a table of living [`StreamedWeights`].
    unsafe fn of<'a>(ud: *mut c_void) -> &'a Self {
        // SAFETY: as the caller promises; the box stays where it is.
        unsafe { &*ud.cast::<Self>() }
    }

    /// Runs `call`; a panic, which would be a fault of ours, ends the runs of this stream.
    fn contained<T>(&self, otherwise: T, call: impl FnOnce() -> T) -> T {
        panics::contained("streamed weights", &self.panicked, otherwise, call)
    }

    fn rows(&self, tensor: u32, ids: &[u32], out: &mut [u8]) -> bool {
        match self.stream.rows(tensor, ids, out) {
            Ok(()) => true,
            Err(error) => {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert_with(|| error_of(error));
                false
            }
        }
    }

    /// Ends a run; what went wrong in it.
    fn end(&self, run: usize) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = self.stream.end(run);
        self.stream.set_stop(run, None);
        match (ended, failure) {
            (Err(error), _) => Err(error_of(error)),
            (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(()),
        }
    }
}

extern "C" fn on_place(
    ud: *mut c_void,
    name: *const c_char,
    out: *mut sys::smol_stream_place,
) -> bool {
    // SAFETY: `ud` comes from the table, whose owner outlives load and model.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: the NUL-terminated name of a tensor (ggml.h, GGML_MAX_NAME), read during the call.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(tensor) = name.to_str().ok().and_then(|name| shared.tensors.get(name)) else {
        return false;
    };
    let place = sys::smol_stream_place {
        tensor: tensor.tensor as i32,
        layout: tensor.layout.map_or(std::ptr::null(), RawLayout::as_ptr),
        rows_only: tensor.rows_only,
        repacked: tensor.repacked,
    };
    // SAFETY: the overlay passes room for one (streamed_weights.cpp).
    unsafe { out.write(place) };
    true
}

extern "C" fn on_check(
    ud: *mut c_void,
    place: *const sys::smol_stream_place,
    file: u16,
    offset: u64,
    size: u64,
) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    // SAFETY: a place that on_place wrote (streamed_weights.cpp, fill).
    let number = unsafe { (*place).tensor };
    let same = |tensor: &&StreamedTensor| tensor.tensor as i32 == number;
    let Some(tensor) = shared.tensors.values().find(same) else { return false };
    (tensor.file, tensor.offset, tensor.size) == (file, offset, size)
}

extern "C" fn on_begin(
    ud: *mut c_void,
    run: usize,
    tensors: *const i32,
    n: i32,
    addresses: *mut *mut c_void,
) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    let n = n as usize;
    let (tensors, addresses) = if n == 0 {
        // An empty vector's address is none to make a slice of.
        (&[][..], &mut [][..])
    } else {
        // SAFETY: `n` numbers of tensors that on_place gave (streamed_compute.cpp, smol_streamed_begin).
        let tensors = unsafe { slice::from_raw_parts(tensors, n) };
        // SAFETY: as many null pointers, which only this call writes to (as above).
        (tensors, unsafe { slice::from_raw_parts_mut(addresses, n) })
    };
    shared.contained(false, || {
        shared.stream.set_stop(run, decoding::stop());
        let order: Vec<u32> = tensors.iter().map(|tensor| *tensor as u32).collect();
        let Some(places) = shared.stream.begin(run, &order) else { return false };
        for (address, place) in addresses.iter_mut().zip(places) {
            *address = place.cast_mut().cast();
        }
        true
    })
}

extern "C" fn on_wait(ud: *mut c_void, run: usize, i: i32) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    !shared.panicked.load(Ordering::Relaxed)
        && shared.contained(false, || shared.stream.wait(run, i as usize))
}

extern "C" fn on_rows(
    ud: *mut c_void,
    tensor: i32,
    ids: *const i32,
    n: i64,
    rows: *mut c_void,
) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    let n = n as usize;
    // SAFETY: `n` row numbers, at least one (streamed_compute.cpp, get_rows).
    let ids = unsafe { slice::from_raw_parts(ids, n) };
    let len = n * shared.row_bytes[tensor as usize];
    // SAFETY: this thread's part of the work buffer, of `n` rows (streamed_compute.cpp, RowWork).
    unsafe { rows.cast::<u8>().write_bytes(0, len) };
    // SAFETY: the same bytes, written just now, which only this call refers to.
    let rows = unsafe { slice::from_raw_parts_mut(rows.cast::<u8>(), len) };
    shared.contained(false, || {
        let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
        shared.rows(tensor as u32, &ids, rows)
    })
}

extern "C" fn on_end(ud: *mut c_void, run: usize) -> bool {
    // SAFETY: as in on_place.
    let shared = unsafe { Shared::of(ud) };
    let ended = shared.contained(Ok(()), || shared.end(run));
    let error = match ended {
        _ if shared.panicked.load(Ordering::Acquire) => {
            Error::new(ErrorKind::Internal, "streaming weights failed; load the model again")
        }
        Ok(()) => return true,
        Err(error) => error,
    };
    decoding::fail(error);
    false
}

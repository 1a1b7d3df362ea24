//! The engine slot of the overlay: graph observation and the load hook.
//!
//! The overlay holds one engine for the process. It is replaced as a whole whenever an observer comes or goes, so that
//! compute threads read it without a lock.

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ggml_sys as sys;

use super::{call, panics};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Observer;
use crate::op::Op;

/// A weight that is about to be read at load.
#[cfg_attr(not(test), allow(dead_code, reason = "for engines to come; a test proves it"))]
pub(crate) struct OfferedTensor<'a> {
    pub(crate) name: &'a str,
    /// The file among the shards.
    pub(crate) file: u16,
    /// The place of the bytes in that file.
    pub(crate) offset: u64,
    /// Bytes of the tensor.
    pub(crate) size: u64,
}

/// The answer to an offered tensor.
#[cfg_attr(not(test), allow(dead_code, reason = "for engines to come; a test proves it"))]
pub(crate) enum Supply {
    /// llama.cpp reads the bytes itself.
    Decline,
    /// The tensor gets these bytes, `size` of them.
    Bytes(Vec<u8>),
    /// Loading fails.
    Fail,
}

/// Supplies the bytes of weights in place of the file.
pub(crate) trait WeightSource: Send + Sync {
    fn supply(&self, tensor: &OfferedTensor<'_>) -> Supply;
}

/// Number of operations (`GGML_OP_COUNT`); each has a bit in an [`OpMask`].
pub(crate) const OP_COUNT: u8 = sys::GGML_OP_COUNT as u8;
const _: () = assert!(sys::GGML_OP_COUNT <= 128);

/// A bit for each operation.
type OpMask = [u64; 2];

/// ggml's name of an operation below [`OP_COUNT`].
pub(crate) fn op_name(index: u8) -> &'static str {
    assert!(index < OP_COUNT);
    // SAFETY: an operation of the enum, checked above (ggml.c, GGML_OP_NAME).
    literal(unsafe { sys::ggml_op_name(sys::ggml_op::from(index)) })
}

fn mask_of(wanted: impl Fn(Op) -> bool) -> OpMask {
    let mut mask = [0; 2];
    for op in Op::all().filter(|op| wanted(*op)) {
        mask[op.index() / 64] |= 1 << (op.index() % 64);
    }
    mask
}

fn has(mask: OpMask, op: Op) -> bool {
    mask[op.index() / 64] >> (op.index() % 64) & 1 == 1
}

/// An attached observer.
#[derive(Clone)]
struct Attachment {
    id: u64,
    observer: Arc<dyn Observer>,
    /// The operations whose nodes it wants.
    ops: OpMask,
}

/// What is attached to the process.
#[derive(Default, Clone)]
struct Attached {
    observers: Vec<Attachment>,
    source: Option<Arc<dyn WeightSource>>,
}

/// What the callbacks see: a copy of `Attached` that doesn't change.
struct Engine {
    observers: Vec<Attachment>,
    source: Option<Arc<dyn WeightSource>>,
}

/// The attached things, the engine made of them, and the next id.
struct Slot {
    attached: Attached,
    current: *mut Engine,
    next_id: u64,
}

// SAFETY: `current` is owned by the slot: made by Box::into_raw and freed only after the overlay let go of it.
unsafe impl Send for Slot {}

static SLOT: Mutex<Slot> = Mutex::new(Slot {
    attached: Attached { observers: Vec::new(), source: None },
    current: ptr::null_mut(),
    next_id: 0,
});

static FAILED: AtomicBool = AtomicBool::new(false);
static FAILURE: Mutex<Option<String>> = Mutex::new(None);

thread_local! {
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Attaches an observer; the id detaches it.
pub(crate) fn attach_observer(observer: Arc<dyn Observer>) -> Result<u64> {
    // Application code: not under the lock.
    let ops = mask_of(|op| observer.watches(op));
    change(|attached, id| attached.observers.push(Attachment { id, observer, ops }))
}

/// Detaches an observer.
pub(crate) fn detach_observer(id: u64) {
    // Without observers the old engine would just go on calling this one, so a failure changes nothing else.
    let _ = change(|attached, _| attached.observers.retain(|other| other.id != id));
}

/// Attaches or detaches the source of weights.
#[cfg_attr(not(test), allow(dead_code, reason = "for engines to come; a test proves it"))]
pub(crate) fn set_weight_source(source: Option<Arc<dyn WeightSource>>) -> Result<()> {
    change(|attached, _| attached.source = source).map(drop)
}

/// Whether any observer is attached.
pub(crate) fn has_observers() -> bool {
    !SLOT.lock().unwrap_or_else(PoisonError::into_inner).attached.observers.is_empty()
}

/// Whether a callback panicked since the last [`take_failure`]; the running graph should stop.
pub(crate) fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// The error for a callback that panicked, once.
pub(crate) fn take_failure() -> Option<Error> {
    if !FAILED.load(Ordering::Acquire) {
        return None;
    }
    let message = FAILURE.lock().unwrap_or_else(PoisonError::into_inner).take();
    FAILED.store(false, Ordering::Release);
    message.map(|message| panics::error("observer", &message))
}

fn change(edit: impl FnOnce(&mut Attached, u64)) -> Result<u64> {
    if IN_CALLBACK.get() {
        return Err(Error::invalid("observers cannot be attached or detached from an observer"));
    }
    call::init()?;
    let mut slot = SLOT.lock().unwrap_or_else(PoisonError::into_inner);
    let id = slot.next_id;
    slot.next_id += 1;
    let mut attached = slot.attached.clone();
    edit(&mut attached, id);
    let next = install(&attached)?;
    let previous = std::mem::replace(&mut slot.current, next);
    slot.attached = attached;
    drop(slot);
    if !previous.is_null() {
        // SAFETY: made by Box::into_raw in `install`; smol_engine_set has returned, so no callback uses it any more
        // (smol.h: "Waits for running graphs and loads to end").
        drop(unsafe { Box::from_raw(previous) });
    }
    Ok(id)
}

/// Hands the overlay an engine for `attached`, or none if nothing is attached.
fn install(attached: &Attached) -> Result<*mut Engine> {
    let idle = attached.observers.is_empty() && attached.source.is_none();
    let engine = if idle {
        ptr::null_mut()
    } else {
        let Attached { observers, source } = attached.clone();
        Box::into_raw(Box::new(Engine { observers, source }))
    };
    let watches = !attached.observers.is_empty();
    let mask = attached
        .observers
        .iter()
        .fold([0; 2], |mask, observer| [mask[0] | observer.ops[0], mask[1] | observer.ops[1]]);
    let table = sys::smol_engine {
        abi_version: sys::SMOL_ABI_VERSION,
        reserved: 0,
        ud: engine.cast(),
        op_mask: mask,
        load_tensor: attached.source.is_some().then_some(on_load_tensor as _),
        graph_begin: watches.then_some(on_graph_begin as _),
        graph_end: watches.then_some(on_graph_end as _),
        node: watches.then_some(on_node as _),
    };
    let outcome = call::guarded(ErrorKind::Internal, "attaching to the compute graph", || {
        let table = if idle { ptr::null() } else { ptr::from_ref(&table) };
        // SAFETY: null or a table that is copied; its functions are static and `ud` lives until the next change; not
        // called from a callback (checked in `change`); guarded (smol.h).
        unsafe { sys::smol_engine_set(table) }
    });
    if let Err(error) = outcome {
        if !engine.is_null() {
            // SAFETY: made above and not taken by the overlay.
            drop(unsafe { Box::from_raw(engine) });
        }
        return Err(error);
    }
    Ok(engine)
}

/// Runs application code for each observer that wants nodes of `op`, or for all, on a thread of llama.cpp; keeps the
/// first panic.
fn each_observer(user_data: *mut c_void, op: Option<Op>, call: impl Fn(&dyn Observer)) {
    if has_failed() {
        return;
    }
    // SAFETY: the engine that `install` passed; it lives until no callback runs any more.
    let engine = unsafe { &*user_data.cast::<Engine>() };
    IN_CALLBACK.set(true);
    let watching = engine.observers.iter().filter(|o| op.is_none_or(|op| has(o.ops, op)));
    let outcome = catch_unwind(AssertUnwindSafe(|| watching.for_each(|o| call(&*o.observer))));
    IN_CALLBACK.set(false);
    if let Err(panic) = outcome {
        keep_failure(panics::message(&*panic));
    }
}

fn keep_failure(message: &str) {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    failure.get_or_insert_with(|| message.to_owned());
    FAILED.store(true, Ordering::Release);
}

extern "C" fn on_graph_begin(user_data: *mut c_void, n_nodes: i32, _uid: u64) {
    each_observer(user_data, None, |observer| {
        observer.graph_begin(usize::try_from(n_nodes).unwrap_or(0));
    });
}

extern "C" fn on_graph_end(user_data: *mut c_void, status: i32) {
    each_observer(user_data, None, |observer| {
        observer.graph_end(status == sys::GGML_STATUS_SUCCESS);
    });
}

extern "C" fn on_node(user_data: *mut c_void, node: *const sys::smol_node) -> bool {
    // SAFETY: the overlay passes a node that lives through the call (smol.h).
    let node = unsafe { &*node };
    let Some(tensor) = RawTensor::new(node.tensor) else { return false };
    each_observer(user_data, Some(tensor.op()), |observer| {
        observer.node(&crate::observe::NodeInfo::new(tensor, node.ith, node.nth));
    });
    false
}

extern "C" fn on_load_tensor(
    user_data: *mut c_void,
    tensor: *mut sys::ggml_tensor,
    file: u16,
    offset: u64,
    size: u64,
) -> i32 {
    // SAFETY: as in each_observer.
    let engine = unsafe { &*user_data.cast::<Engine>() };
    let (Some(source), Some(raw)) = (&engine.source, RawTensor::new(tensor)) else { return 0 };
    IN_CALLBACK.set(true);
    let name = raw.name();
    let offered = OfferedTensor { name: &name, file, offset, size };
    let supplied = catch_unwind(AssertUnwindSafe(|| source.supply(&offered)));
    IN_CALLBACK.set(false);
    match supplied {
        Ok(Supply::Decline) => 0,
        Ok(Supply::Bytes(bytes)) if bytes.len() as u64 == size => {
            // SAFETY: the tensor has been allocated and `size` is its byte count (ggml-backend.cpp:531); the buffer's
            // own setter copies the bytes, as the loader does after reading them.
            unsafe { sys::ggml_backend_tensor_set(tensor, bytes.as_ptr().cast(), 0, bytes.len()) };
            1
        }
        Ok(Supply::Bytes(_) | Supply::Fail) => -1,
        Err(panic) => {
            keep_failure(panics::message(&*panic));
            -1
        }
    }
}

/// A tensor that llama.cpp shows during a callback.
#[derive(Clone, Copy)]
pub(crate) struct RawTensor<'a> {
    tensor: &'a sys::ggml_tensor,
}

impl<'a> RawTensor<'a> {
    /// Wraps a pointer that is null or valid for `'a`, the length of a callback.
    fn new(tensor: *const sys::ggml_tensor) -> Option<Self> {
        // SAFETY: only called with pointers of running callbacks and of `src`, which ggml keeps null or valid
        // (ggml.h, struct ggml_tensor); the results don't leave the callback (NodeInfo borrows them).
        unsafe { tensor.as_ref() }.map(|tensor| Self { tensor })
    }

    /// Its name; not every node has one.
    pub(crate) fn name(self) -> String {
        let bytes: Vec<u8> = self
            .tensor
            .name
            .iter()
            .take_while(|byte| **byte != 0)
            .map(|byte| *byte as u8)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The operation that computes it.
    pub(crate) fn op(self) -> Op {
        // Always below GGML_OP_COUNT (ggml.h, struct ggml_tensor).
        Op::from_index(self.tensor.op as u8)
    }

    /// Elements along each dimension.
    pub(crate) fn shape(self) -> [i64; 4] {
        self.tensor.ne
    }

    /// Name of the element type.
    pub(crate) fn type_name(self) -> &'static str {
        // SAFETY: `type` is a type of the enum (ggml.c, ggml_type_name).
        literal(unsafe { sys::ggml_type_name(self.tensor.type_) })
    }

    /// Its inputs, up to the first that is missing.
    pub(crate) fn sources(self) -> impl Iterator<Item = RawTensor<'a>> {
        self.tensor.src.iter().map_while(|source| Self::new(*source))
    }
}

/// A string literal of ggml's tables.
fn literal(text: *const std::ffi::c_char) -> &'static str {
    if text.is_null() {
        return "?";
    }
    // SAFETY: an entry of a constant table of NUL-terminated ASCII literals.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;
    use std::thread::{self, ThreadId};

    use smol_gguf::Gguf;
    use testkit::tiny::{self, Arch, TinyOptions};

    use super::*;
    use crate::{Model, SeqId, Token};

    /// Supplies every weight of one file to loads of one thread: other tests load models meanwhile.
    struct FromFile {
        file: Gguf,
        thread: ThreadId,
        negate: bool,
        fail: bool,
        offered: AtomicUsize,
        bytes: AtomicUsize,
    }

    impl WeightSource for FromFile {
        fn supply(&self, tensor: &OfferedTensor<'_>) -> Supply {
            if thread::current().id() != self.thread {
                return Supply::Decline;
            }
            if self.fail {
                return Supply::Fail;
            }
            let info = self.file.tensor(tensor.name).unwrap();
            assert_eq!((tensor.file, tensor.size), (0, info.n_bytes()));
            assert_eq!(tensor.offset, self.file.file_offset(info).unwrap());
            self.offered.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(tensor.size as usize, Ordering::Relaxed);
            let mut bytes = self.file.data(info).unwrap().into_owned();
            if self.negate && tensor.name == "output_norm.weight" {
                // The sign of a float is in its last byte.
                bytes.chunks_mut(4).for_each(|float| float[3] ^= 0x80);
            }
            Supply::Bytes(bytes)
        }
    }

    fn logits(path: &Path) -> Vec<f32> {
        let model = Model::load(path).unwrap();
        let mut context = model.context().n_ctx(256).threads(1, 1).build().unwrap();
        let tokens: Vec<_> = (300..310).map(Token).collect();
        context.prefill(SeqId::FIRST, &tokens).unwrap().last_logits().unwrap().to_vec()
    }

    #[test]
    fn an_engine_can_supply_every_weight() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
        let expected = logits(&path);
        let source = |negate, fail| {
            let file = Gguf::open(&path).unwrap();
            let (offered, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let thread = thread::current().id();
            Arc::new(FromFile { file, thread, negate, fail, offered, bytes })
        };

        let same = source(false, false);
        // SAFETY: returns a constant of the build (overlay.cpp).
        if !unsafe { sys::smol_has_load_hook() } {
            // Built without the patch: said so instead of ignored.
            let error = set_weight_source(Some(same)).unwrap_err();
            assert!(error.message().contains("load-hook"), "{error}");
            return;
        }
        set_weight_source(Some(same.clone())).unwrap();
        assert_eq!(logits(&path), expected);
        assert_eq!(same.offered.load(Ordering::Relaxed), same.file.tensors().len());
        assert_eq!(same.bytes.load(Ordering::Relaxed) as u64, same.file.tensor_bytes());

        // What is supplied is what is computed with.
        set_weight_source(Some(source(true, false))).unwrap();
        let negated: Vec<f32> = logits(&path).iter().map(|logit| -logit).collect();
        assert_eq!(negated, expected);

        set_weight_source(Some(source(false, true))).unwrap();
        let error = Model::load(&path).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Load);
        set_weight_source(None).unwrap();
        assert_eq!(logits(&path), expected);
    }
}

//! A context: the memory and buffers of running a model.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ggml_sys as sys;

use super::threadpool::ThreadPool;
use super::{call, decoding, engine};
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::log;
use crate::model::Model;

/// One context is made at a time: llama_init_from_model may write to the model (llama-context.cpp:4184).
static CREATION: Mutex<()> = Mutex::new(());

/// Checked values for a new context.
pub(crate) struct RawContextParams {
    pub(crate) n_ctx: u32,
    pub(crate) n_batch: u32,
    pub(crate) n_ubatch: u32,
    pub(crate) n_seq_max: u32,
    pub(crate) n_threads: u32,
    pub(crate) n_threads_batch: u32,
    pub(crate) type_k: i32,
    pub(crate) type_v: i32,
    /// -1 automatic, 0 off, 1 on, as in llama.h.
    pub(crate) flash_attn: i32,
    /// -1 from the model, otherwise as in llama.h; `None` for a context without embeddings.
    pub(crate) pooling: Option<i32>,
    pub(crate) swa_full: bool,
    pub(crate) kv_unified: bool,
}

/// A batch in C's layout; all slices have the same length.
pub(crate) struct RawBatch<'a> {
    pub(crate) tokens: &'a [sys::llama_token],
    pub(crate) positions: &'a [sys::llama_pos],
    /// For each token, the sequences that it belongs to; never empty.
    pub(crate) sequences: &'a [&'a [sys::llama_seq_id]],
    /// For each token, whether its logits or embedding are wanted: 0 or 1.
    pub(crate) outputs: &'a [i8],
}

/// What `llama_decode` did.
#[derive(Debug)]
pub(crate) enum DecodeOutcome {
    Done,
    NoSlot,
    Aborted,
    /// The return code, or `None` for a C++ exception, and the error that describes it.
    Failed(Option<i32>, Error),
}

/// What the abort callback reads while a decode runs.
struct AbortState {
    /// The flag of the context's token or null; replaced between calls only.
    flag: AtomicPtr<AtomicBool>,
    /// Off while llama.cpp must not be interrupted.
    armed: AtomicBool,
    /// Set while memory is used up.
    short: Option<Arc<AtomicBool>>,
}

extern "C" fn should_abort(user_data: *mut c_void) -> bool {
    // SAFETY: `RawContext` passes its boxed `AbortState`, which outlives the llama_context (see its fields).
    let state = unsafe { &*user_data.cast::<AbortState>() };
    if !state.armed.load(Ordering::Relaxed) {
        return false;
    }
    let short = state.short.as_ref().is_some_and(|short| short.load(Ordering::Acquire));
    if engine::has_failed() || short {
        return true;
    }
    let flag = state.flag.load(Ordering::Acquire);
    // SAFETY: null or the flag of the token that `RawContext` holds; it is replaced with `&mut self` only, when no
    // decode of this context runs.
    unsafe { flag.as_ref() }.is_some_and(|flag| flag.load(Ordering::Acquire))
}

/// Owns a `llama_context` and everything it points to. Fields are dropped in this order.
pub(crate) struct RawContext {
    context: OwnedContext,
    _generation: ThreadPool,
    /// For batches, if their number of threads differs.
    _batch: Option<ThreadPool>,
    abort: Box<AbortState>,
    cancel: Option<CancelToken>,
    model: Model,
}

struct OwnedContext(NonNull<sys::llama_context>);

// SAFETY: a llama_context is used by one thread at a time (`RawContext` isn't Sync) and keeps no thread-local state; its
// worker threads belong to the pools.
unsafe impl Send for OwnedContext {}

impl Drop for OwnedContext {
    fn drop(&mut self) {
        // SAFETY: made by smol_context_new and freed once, before the pools, the abort state and the model.
        unsafe { sys::smol_context_free(self.0.as_ptr()) };
    }
}

impl RawContext {
    pub(crate) fn new(
        model: &Model,
        params: &RawContextParams,
        cancel: Option<CancelToken>,
    ) -> Result<Self> {
        let generation = ThreadPool::new(params.n_threads)?;
        let same = params.n_threads_batch == params.n_threads;
        let batch = if same { None } else { Some(ThreadPool::new(params.n_threads_batch)?) };
        let abort = Box::new(AbortState {
            flag: AtomicPtr::new(flag_of(cancel.as_ref())),
            armed: AtomicBool::new(false),
            short: model.guard().map(|guard| Arc::clone(guard.short())),
        });
        // SAFETY: a pure function without arguments (llama-context.cpp:4044).
        let mut raw = unsafe { sys::llama_context_default_params() };
        raw.n_ctx = params.n_ctx;
        raw.n_batch = params.n_batch;
        raw.n_ubatch = params.n_ubatch;
        raw.n_seq_max = params.n_seq_max;
        raw.n_threads = params.n_threads as i32;
        raw.n_threads_batch = params.n_threads_batch as i32;
        raw.type_k = params.type_k as sys::ggml_type;
        raw.type_v = params.type_v as sys::ggml_type;
        raw.flash_attn_type = params.flash_attn as sys::llama_flash_attn_type;
        raw.embeddings = params.pooling.is_some();
        if let Some(pooling) = params.pooling {
            raw.pooling_type = pooling as sys::llama_pooling_type;
        }
        raw.swa_full = params.swa_full;
        raw.kv_unified = params.kv_unified;
        raw.offload_kqv = false;
        raw.op_offload = false;
        raw.abort_callback = Some(should_abort);
        raw.abort_callback_data = ptr::from_ref(&*abort).cast_mut().cast();

        let mut context = ptr::null_mut();
        let one_at_a_time = CREATION.lock().unwrap_or_else(PoisonError::into_inner);
        call::guarded(ErrorKind::Context, "making the context", || {
            // SAFETY: the model is alive and stays so (the context holds a clone); `raw` is initialized and the abort
            // state outlives the context; guarded (smol.h).
            unsafe { sys::smol_context_new(model.raw().as_ptr(), &raw, &mut context) }
        })?;
        drop(one_at_a_time);
        let context = NonNull::new(context)
            .map(OwnedContext)
            .ok_or_else(|| Error::new(ErrorKind::Context, "llama.cpp returned no context"))?;
        let for_batches = batch.as_ref().unwrap_or(&generation).as_ptr();
        // SAFETY: stores the pointers (llama-context.cpp:1300); the pools are dropped after the context.
        unsafe {
            sys::llama_attach_threadpool(context.0.as_ptr(), generation.as_ptr(), for_batches)
        };
        let model = model.clone();
        Ok(Self { context, _generation: generation, _batch: batch, abort, cancel, model })
    }

    fn as_ptr(&self) -> *mut sys::llama_context {
        self.context.0.as_ptr()
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn cancel_token(&self) -> Option<&CancelToken> {
        self.cancel.as_ref()
    }

    pub(crate) fn set_cancel_token(&mut self, cancel: Option<CancelToken>) {
        self.abort.flag.store(flag_of(cancel.as_ref()), Ordering::Release);
        self.cancel = cancel;
    }

    pub(crate) fn n_ctx(&self) -> u32 {
        // SAFETY: the context is alive; returns a member (llama-context.cpp:4207).
        unsafe { sys::llama_n_ctx(self.as_ptr()) }
    }

    pub(crate) fn n_ctx_seq(&self) -> u32 {
        // SAFETY: the context is alive; returns a member (llama-context.cpp:4211).
        unsafe { sys::llama_n_ctx_seq(self.as_ptr()) }
    }

    pub(crate) fn n_batch(&self) -> u32 {
        // SAFETY: the context is alive; returns a member (llama-context.cpp:4215).
        unsafe { sys::llama_n_batch(self.as_ptr()) }
    }

    pub(crate) fn n_ubatch(&self) -> u32 {
        // SAFETY: the context is alive; returns a member (llama-context.cpp:4219).
        unsafe { sys::llama_n_ubatch(self.as_ptr()) }
    }

    /// The pooling in effect, as numbered in llama.h.
    pub(crate) fn pooling(&self) -> i32 {
        // SAFETY: the context is alive; returns a member (llama-context.cpp:4235).
        unsafe { sys::llama_pooling_type(self.as_ptr()) as i32 }
    }

    pub(crate) fn is_causal(&self) -> bool {
        // SAFETY: the context is alive; returns a member (llama-context.cpp:4274).
        unsafe { sys::llama_get_causal_attn(self.as_ptr()) }
    }

    /// The context's memory, or null for models that have none.
    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive; returns a pointer that it owns (llama-context.cpp:4336).
        unsafe { sys::llama_get_memory(self.as_ptr()) }
    }

    pub(crate) fn has_memory(&self) -> bool {
        !self.memory().is_null()
    }

    pub(crate) fn can_shift(&self) -> bool {
        // SAFETY: accepts null; a look at members otherwise (llama-context.cpp:4542).
        unsafe { sys::llama_memory_can_shift(self.memory()) }
    }

    /// The first and last position of a sequence, -1 each if it is empty. `seq` has been checked.
    pub(crate) fn seq_pos_min(&self, seq: i32) -> i32 {
        // SAFETY: accepts a null memory; `seq` is within n_seq_max, so that no assertion fails
        // (llama-kv-cache.cpp:722).
        unsafe { sys::llama_memory_seq_pos_min(self.memory(), seq) }
    }

    /// The last position of a sequence, -1 if it is empty. `seq` has been checked.
    pub(crate) fn seq_pos_max(&self, seq: i32) -> i32 {
        // SAFETY: as for seq_pos_min (llama-kv-cache.cpp:735).
        unsafe { sys::llama_memory_seq_pos_max(self.memory(), seq) }
    }

    /// Runs a batch that has been checked. `interruptible` is off where stopping would leave the memory inconsistent.
    pub(crate) fn decode(&mut self, batch: &RawBatch<'_>, interruptible: bool) -> DecodeOutcome {
        let n_tokens = batch.tokens.len();
        let mut lists: Vec<_> =
            batch.sequences.iter().map(|list| list.as_ptr().cast_mut()).collect();
        let mut counts: Vec<_> = batch.sequences.iter().map(|list| list.len() as i32).collect();
        let lengths = [batch.positions.len(), lists.len(), batch.outputs.len()];
        assert!(lengths.iter().all(|length| *length == n_tokens), "a batch of unequal parts");
        let raw = sys::llama_batch {
            n_tokens: n_tokens as i32,
            token: batch.tokens.as_ptr().cast_mut(),
            embd: ptr::null_mut(),
            pos: batch.positions.as_ptr().cast_mut(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: lists.as_mut_ptr(),
            logits: batch.outputs.as_ptr().cast_mut(),
        };
        let capture = log::capture();
        let mut result = 0;
        self.abort.armed.store(interruptible, Ordering::Relaxed);
        let context = self.as_ptr();
        let cancel = self.cancel.as_ref().filter(|_| interruptible);
        let (status, unpaged) = decoding::during_decode(cancel, || {
            // SAFETY: the context is alive and borrowed mutably; the arrays of `raw` have `n_tokens` entries, are read
            // only (llama_batch_ext copies them) and outlive the call; guarded (smol.h).
            unsafe { sys::smol_decode(context, &raw, &mut result) }
        });
        self.abort.armed.store(false, Ordering::Relaxed);
        if let Some(error) = unpaged {
            return match error.kind() {
                ErrorKind::Cancelled => DecodeOutcome::Aborted,
                _ => DecodeOutcome::Failed(Some(result), error),
            };
        }
        if status != sys::SMOL_OK {
            let message = call::last_error();
            let log = capture.finish();
            let error = call::failure(status, &message, ErrorKind::Decode, "decoding", log);
            return DecodeOutcome::Failed(None, error);
        }
        match result {
            0 => DecodeOutcome::Done,
            1 => DecodeOutcome::NoSlot,
            2 => DecodeOutcome::Aborted,
            code => {
                let log = capture.finish();
                // GGML_STATUS_ALLOC_FAILED (llama-context.cpp:2051).
                let status = if code == -2 { sys::SMOL_ERR_MEMORY } else { sys::SMOL_ERR_NULL };
                let error = call::failure(
                    status,
                    &format!("code {code}"),
                    ErrorKind::Decode,
                    "decoding",
                    log,
                );
                DecodeOutcome::Failed(Some(code), error)
            }
        }
    }

    /// Waits for the computation; results are complete afterwards.
    pub(crate) fn synchronize(&mut self) -> Result<()> {
        call::guarded(ErrorKind::Decode, "finishing the decode", || {
            // SAFETY: the context is alive; guarded (smol.h).
            unsafe { sys::smol_synchronize(self.as_ptr()) }
        })
    }

    /// The logits of token `index` of the last batch, which asked for them; `n_vocab` numbers.
    pub(crate) fn logits(&self, index: usize) -> Option<&[f32]> {
        let n_vocab = self.model.raw().vocab_len() as usize;
        self.output_row(index, n_vocab, |context, index, row| {
            // SAFETY: the context is alive; returns null for an index without output (llama-context.cpp:1064);
            // guarded (smol.h).
            unsafe { sys::smol_logits_ith(context, index, row) }
        })
    }

    /// The embedding of token `index` of the last batch.
    pub(crate) fn embedding(&self, index: usize) -> Option<&[f32]> {
        let n_embd = self.model.raw().n_embd_out() as usize;
        self.output_row(index, n_embd, |context, index, row| {
            // SAFETY: as for logits (llama-context.cpp:1095); guarded (smol.h).
            unsafe { sys::smol_embeddings_ith(context, index, row) }
        })
    }

    /// The pooled embedding of a sequence of the last batch.
    pub(crate) fn sequence_embedding(&self, seq: i32) -> Option<&[f32]> {
        let n_embd = self.model.raw().n_embd_out() as usize;
        self.output_row(usize::try_from(seq).ok()?, n_embd, |context, seq, row| {
            // SAFETY: a look-up that returns null for other sequences (llama-context.cpp:1118); the row has
            // n_embd_out numbers for every pooling but RANK, which isn't offered; guarded (smol.h).
            unsafe { sys::smol_embeddings_seq(context, seq, row) }
        })
    }

    fn output_row(
        &self,
        index: usize,
        length: usize,
        get: impl FnOnce(*mut sys::llama_context, i32, &mut *mut f32) -> sys::smol_status,
    ) -> Option<&[f32]> {
        let mut row = ptr::null_mut();
        let status = get(self.as_ptr(), i32::try_from(index).ok()?, &mut row);
        if status != sys::SMOL_OK || row.is_null() {
            return None;
        }
        // SAFETY: llama.cpp returned a row of `length` floats inside its output buffer, which stays until the next call
        // that takes `&mut self`. Reading a further row may reorder rows (output_reorder, llama-context.cpp:1061), but
        // only at the first read after a decode, when no row is borrowed yet: `Context` reads one then.
        Some(unsafe { std::slice::from_raw_parts(row, length) })
    }

    pub(crate) fn memory_clear(&mut self) -> Result<()> {
        self.memory_call("clearing the memory", |context| {
            // SAFETY: the context is alive; accepts a null memory; guarded (smol.h).
            unsafe { sys::smol_memory_clear(context, true) }
        })
    }

    /// Removes the positions `from..to`; negative means open. False if the memory can only remove whole sequences.
    pub(crate) fn memory_remove(&mut self, seq: i32, from: i32, to: i32) -> Result<bool> {
        let mut removed = false;
        self.memory_call("removing from the memory", |context| {
            // SAFETY: the context is alive, `seq` within n_seq_max (llama-kv-cache.cpp:446); guarded (smol.h).
            unsafe { sys::smol_memory_seq_rm(context, seq, from, to, &mut removed) }
        })?;
        Ok(removed)
    }

    pub(crate) fn memory_copy(&mut self, from: i32, to: i32, start: i32, end: i32) -> Result<()> {
        self.memory_call("copying a sequence", |context| {
            // SAFETY: the context is alive, both sequences within n_seq_max and the range whole where the sequences
            // have buffers of their own (llama-kv-cache.cpp:514, 563); guarded (smol.h).
            unsafe { sys::smol_memory_seq_cp(context, from, to, start, end) }
        })
    }

    pub(crate) fn memory_add(&mut self, seq: i32, from: i32, to: i32, delta: i32) -> Result<()> {
        self.memory_call("shifting a sequence", |context| {
            // SAFETY: the context is alive, `seq` within n_seq_max, the memory can shift (llama-kv-cache.cpp:633);
            // guarded (smol.h).
            unsafe { sys::smol_memory_seq_add(context, seq, from, to, delta) }
        })
    }

    pub(crate) fn memory_divide(&mut self, seq: i32, from: i32, to: i32, by: i32) -> Result<()> {
        self.memory_call("dividing positions", |context| {
            // SAFETY: as for memory_add, and `by` isn't zero (llama-kv-cache.cpp:683); guarded (smol.h).
            unsafe { sys::smol_memory_seq_div(context, seq, from, to, by) }
        })
    }

    fn memory_call(
        &mut self,
        what: &str,
        call: impl FnOnce(*mut sys::llama_context) -> sys::smol_status,
    ) -> Result<()> {
        let context = self.as_ptr();
        call::guarded(ErrorKind::Internal, what, || call(context))
    }

    /// The state of a sequence as llama.cpp writes it.
    pub(crate) fn state_of(&mut self, seq: i32) -> Result<Vec<u8>> {
        let mut size = 0;
        call::guarded(ErrorKind::State, "measuring the state", || {
            // SAFETY: the context is alive, `seq` within n_seq_max; guarded (smol.h).
            unsafe { sys::smol_state_seq_size(self.as_ptr(), seq, &mut size) }
        })?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(size).map_err(|_| {
            let kind = ErrorKind::OutOfMemory { needed: Some(size as u64), available: None };
            Error::new(kind, format!("no memory for a state of {size} bytes"))
        })?;
        bytes.resize(size, 0);
        let mut written = 0;
        call::guarded(ErrorKind::State, "saving the state", || {
            // SAFETY: `bytes` has `size` bytes, the bound that llama.cpp checks; guarded (smol.h).
            unsafe {
                sys::smol_state_seq_get(self.as_ptr(), bytes.as_mut_ptr(), size, seq, &mut written)
            }
        })?;
        if written != size {
            let message = format!("saving the state failed: {written} of {size} bytes");
            return Err(Error::new(ErrorKind::State, message));
        }
        Ok(bytes)
    }

    /// Restores a state whose checksum has been verified.
    pub(crate) fn restore_state(&mut self, seq: i32, bytes: &[u8]) -> Result<()> {
        let capture = log::capture();
        let mut read = 0;
        // SAFETY: `bytes` bounds all reads (llama_io_read_host), `seq` is within n_seq_max; guarded (smol.h).
        let status = unsafe {
            sys::smol_state_seq_set(self.as_ptr(), bytes.as_ptr(), bytes.len(), seq, &mut read)
        };
        if status == sys::SMOL_OK && read == bytes.len() {
            return Ok(());
        }
        let message = match status {
            sys::SMOL_OK => format!("{read} of {} bytes were used", bytes.len()),
            _ => call::last_error(),
        };
        let status = if status == sys::SMOL_OK { sys::SMOL_ERR_NULL } else { status };
        Err(call::failure(
            status,
            &message,
            ErrorKind::State,
            "loading the state",
            capture.finish(),
        ))
    }
}

fn flag_of(cancel: Option<&CancelToken>) -> *mut AtomicBool {
    cancel.map_or(ptr::null_mut(), |token| Arc::as_ptr(token.flag()).cast_mut())
}

//! Running a model: evaluating tokens and reading the results.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::ControlFlow;

use crate::batch::Batch;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::context::{DecodeOutcome, RawBatch, RawContext};
use crate::ffi::{engine, panics};
use crate::guard::Guard;
use crate::kv::{Kv, KvType};
use crate::memory::MemoryEstimate;
use crate::model::Model;
use crate::outputs::{Outputs, Rows};
use crate::token::{SeqId, Token};

/// The settings of a context that llama.cpp doesn't tell afterwards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) n_seq_max: u32,
    pub(crate) n_threads: u32,
    pub(crate) n_threads_batch: u32,
    pub(crate) type_k: KvType,
    pub(crate) type_v: KvType,
    pub(crate) kv_unified: bool,
    pub(crate) embeddings: bool,
    pub(crate) estimate: MemoryEstimate,
    /// No saved state of this context has more bytes.
    pub(crate) state_limit: u64,
}

/// A model with the memory to run it: the key-value cache, compute buffers and threads.
///
/// A context belongs to one thread at a time, but may move between threads; several contexts of one model run in
/// parallel. It keeps the model alive.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use llama_rs::{Model, SeqId};
///
/// let model = Model::load("model.gguf")?;
/// let mut context = model.context().n_ctx(2048).build()?;
/// let prompt = model.vocab().tokenize("The capital of France is", true)?;
/// let outputs = context.prefill(SeqId::FIRST, &prompt)?;
/// let logits = outputs.last_logits().unwrap();
/// assert_eq!(logits.len(), model.vocab().len());
/// # Ok(())
/// # }
/// ```
/// Sharing one between threads does not compile:
/// ```compile_fail
/// fn share(context: &llama_rs::Context) {
///     std::thread::scope(|scope| {
///         scope.spawn(|| context.outputs().len());
///     });
/// }
/// ```
pub struct Context {
    pub(crate) raw: RawContext,
    pub(crate) settings: Settings,
    rows: Rows,
    /// Whether the next decode first moves or copies cached data, which must not be interrupted: llama.cpp would
    /// repeat a half-done rotation (llama-kv-cache.cpp, update).
    pub(crate) update_pending: bool,
    not_sync: PhantomData<Cell<()>>,
}

impl Context {
    pub(crate) fn new(raw: RawContext, settings: Settings) -> Self {
        Self { raw, settings, rows: Rows::default(), update_pending: false, not_sync: PhantomData }
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        self.raw.model()
    }

    /// Returns the positions of the whole context, in tokens.
    pub fn n_ctx(&self) -> usize {
        self.raw.n_ctx() as usize
    }

    /// Returns the positions that one sequence may use, in tokens: all of them with a unified cache.
    pub fn n_ctx_seq(&self) -> usize {
        self.raw.n_ctx_seq() as usize
    }

    /// Returns the most tokens that one [`decode`](Self::decode) takes.
    pub fn n_batch(&self) -> usize {
        self.raw.n_batch() as usize
    }

    /// Returns the number of tokens that are computed at once.
    pub fn n_ubatch(&self) -> usize {
        self.raw.n_ubatch() as usize
    }

    /// Returns the number of sequences.
    pub fn n_seq_max(&self) -> usize {
        self.settings.n_seq_max as usize
    }

    /// Returns the number of threads for single tokens and for batches.
    pub fn threads(&self) -> (usize, usize) {
        (self.settings.n_threads as usize, self.settings.n_threads_batch as usize)
    }

    /// Returns the estimate of memory that the context was built with.
    pub fn memory_estimate(&self) -> MemoryEstimate {
        self.settings.estimate
    }

    /// Returns the token that stops this context's work, if it has one.
    pub fn cancel_token(&self) -> Option<&CancelToken> {
        self.raw.cancel_token()
    }

    /// Sets or removes the token that stops this context's work.
    pub fn set_cancel_token(&mut self, token: Option<CancelToken>) {
        self.raw.set_cancel_token(token);
    }

    /// Returns the operations on the context's memory.
    pub fn kv(&mut self) -> Kv<'_> {
        Kv::new(self)
    }

    /// Returns the results of the last decode or prefill again; empty after a failed one.
    pub fn outputs(&self) -> Outputs<'_> {
        Outputs::new(&self.raw, &self.rows, self.is_pooled())
    }

    /// Evaluates a batch and returns its results.
    ///
    /// Positions must continue each sequence: the first token of a sequence in the batch has the position after the
    /// last one in memory, and the others follow without a gap.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an empty batch, one above [`n_batch`](Self::n_batch), unknown tokens or
    /// sequences, wrong positions; [`ErrorKind::ContextFull`]; [`ErrorKind::Cancelled`]; [`ErrorKind::Decode`].
    /// The memory is as before the call, except that a sequence is emptied where llama.cpp cannot go back (recurrent
    /// models); the message says so.
    pub fn decode(&mut self, batch: &Batch) -> Result<Outputs<'_>> {
        self.evaluate(batch)?;
        Ok(self.outputs())
    }

    /// Evaluates tokens that continue a sequence, in chunks of [`n_batch`](Self::n_batch), and returns the results of
    /// the last chunk, which has the logits of the last token.
    ///
    /// The context's [`CancelToken`] stops it within and between chunks.
    ///
    /// # Errors
    /// As [`decode`](Self::decode), [`ErrorKind::PromptTooLong`] if the tokens exceed the context. The sequence is as
    /// before the call, or empty where llama.cpp cannot go back (recurrent models); the message says so.
    pub fn prefill(&mut self, seq: SeqId, tokens: &[Token]) -> Result<Outputs<'_>> {
        self.prefill_with(seq, tokens, |_, _| ControlFlow::Continue(()))
    }

    /// As [`prefill`](Self::prefill), and calls `progress` with the tokens done and the tokens in all after each chunk;
    /// the callback may stop it.
    ///
    /// # Errors
    /// As [`prefill`](Self::prefill).
    pub fn prefill_with(
        &mut self,
        seq: SeqId,
        tokens: &[Token],
        mut progress: impl FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Outputs<'_>> {
        self.check_seq(seq)?;
        if tokens.is_empty() {
            return Err(Error::invalid("there are no tokens to evaluate"));
        }
        let start = self.next_position(seq);
        self.check_room(start, tokens.len())?;
        let mut chunk_len = self.chunk_len();
        if self.update_pending {
            // This chunk cannot be interrupted: keep it short.
            chunk_len = chunk_len.min(self.n_ubatch());
        }
        let mut done = 0;
        let mut batch = Batch::new();
        while done < tokens.len() {
            let chunk = &tokens[done..tokens.len().min(done + chunk_len)];
            batch.clear();
            // In range: check_room has bounded the sum by the context's size.
            batch.extend(chunk, start + done as i32, seq);
            if done + chunk.len() == tokens.len() {
                batch.want_last();
            }
            if let Err(error) = self.evaluate(&batch) {
                return Err(self.roll_back(&[(seq.0, start - 1)], error));
            }
            done += chunk.len();
            chunk_len = self.chunk_len();
            if progress(done, tokens.len()).is_break() && done < tokens.len() {
                self.rows = Rows::default();
                let error = Error::cancelled("evaluating the prompt");
                return Err(self.roll_back(&[(seq.0, start - 1)], error));
            }
        }
        Ok(self.outputs())
    }

    /// The position after the last one of a sequence that has been checked.
    pub(crate) fn next_position(&self, seq: SeqId) -> i32 {
        self.raw.seq_pos_max(seq.0) + 1
    }

    pub(crate) fn check_seq(&self, seq: SeqId) -> Result<()> {
        if u32::try_from(seq.0).is_ok_and(|id| id < self.settings.n_seq_max) {
            return Ok(());
        }
        let last = self.settings.n_seq_max - 1;
        Err(Error::invalid(format!("sequence {seq} does not exist: the context has 0 to {last}")))
    }

    pub(crate) fn is_pooled(&self) -> bool {
        self.settings.embeddings && self.raw.pooling() > 0
    }

    /// Whether the memory keeps a state a sequence instead of one a token, wholly or in some layers.
    pub(crate) fn is_recurrent(&self) -> bool {
        self.model().is_recurrent() || self.model().is_hybrid()
    }

    /// Tokens that one decode takes: without causal attention, or memory, all must be computed at once.
    fn chunk_len(&self) -> usize {
        if self.needs_whole_sequence() { self.n_ubatch() } else { self.n_batch() }
    }

    pub(crate) fn needs_whole_sequence(&self) -> bool {
        !self.raw.is_causal() || !self.raw.has_memory() || self.is_pooled()
    }

    fn check_room(&self, start: i32, n_tokens: usize) -> Result<()> {
        let used = usize::try_from(start).unwrap_or(0);
        let needed = used.saturating_add(n_tokens);
        if self.needs_whole_sequence() && n_tokens > self.n_ubatch() {
            return Err(Error::new(
                ErrorKind::PromptTooLong { prompt: n_tokens, n_ctx: self.n_ubatch() },
                format!(
                    "{n_tokens} tokens must be computed at once but the context computes {} (n_ubatch)",
                    self.n_ubatch()
                ),
            ));
        }
        let n_ctx = self.n_ctx_seq();
        if needed <= n_ctx || (self.model().is_recurrent() && needed <= i32::MAX as usize) {
            return Ok(());
        }
        if used == 0 {
            return Err(Error::new(
                ErrorKind::PromptTooLong { prompt: n_tokens, n_ctx },
                format!("the prompt has {n_tokens} tokens but the context holds {n_ctx}"),
            ));
        }
        Err(Error::new(
            ErrorKind::ContextFull { needed, n_ctx },
            format!("{n_tokens} more tokens after {used} exceed the context of {n_ctx} tokens"),
        ))
    }

    /// Checks and runs a batch; keeps which rows it produced.
    fn evaluate(&mut self, batch: &Batch) -> Result<()> {
        self.rows = Rows::default();
        self.check_batch(batch)?;
        if self.cancel_token().is_some_and(CancelToken::is_cancelled) {
            return Err(Error::cancelled("decoding"));
        }
        if let Some(error) = self.model().guard().and_then(Guard::error) {
            return Err(error);
        }
        self.model().check_files_unchanged()?;
        let before = self.positions_before(batch);
        let sequences: Vec<_> = batch.sequences().collect();
        // With embeddings llama.cpp outputs every token and warns if not all are marked.
        let all;
        let outputs = if self.settings.embeddings {
            all = vec![1; batch.len()];
            &all[..]
        } else {
            batch.outputs()
        };
        let raw = RawBatch {
            tokens: batch.tokens(),
            positions: batch.positions(),
            sequences: &sequences,
            outputs,
        };
        let outcome = self.raw.decode(&raw, !self.update_pending);
        let failed_observer = engine::take_failure();
        match outcome {
            DecodeOutcome::Done => {
                self.update_pending = false;
                self.raw.synchronize()?;
                let lost = self.model().check_files_unchanged().err();
                if let Some(error) = failed_observer.or(lost) {
                    return Err(self.roll_back(&before, error));
                }
                self.rows.wanted.extend_from_slice(outputs);
                self.settle_rows();
                Ok(())
            }
            DecodeOutcome::NoSlot => Err(self.no_slot(batch)),
            DecodeOutcome::Aborted => {
                let error = failed_observer.unwrap_or_else(|| self.abort_reason());
                Err(self.roll_back(&before, error))
            }
            // -1: the batch was refused before anything was computed (llama.h, llama_decode).
            DecodeOutcome::Failed(Some(-1), error) => {
                Err(Error::invalid(error.message()).with_log(error.log().to_vec()))
            }
            DecodeOutcome::Failed(_, error) => {
                Err(self.roll_back(&before, failed_observer.unwrap_or(error)))
            }
        }
    }

    /// Why a decode was aborted that no observer of this context's own failed in.
    fn abort_reason(&self) -> Error {
        if self.cancel_token().is_some_and(CancelToken::is_cancelled) {
            return Error::cancelled("decoding");
        }
        if let Some(error) = self.model().guard().and_then(Guard::error) {
            return error;
        }
        match engine::has_observers() {
            // Observers watch all contexts: a panic stops whatever runs.
            true => panics::error("observer", "while another context was decoding"),
            // The token was reset since.
            false => Error::cancelled("decoding"),
        }
    }

    /// Makes llama.cpp bring the rows into the batch's order now, so that reading them changes nothing any more.
    fn settle_rows(&self) {
        let Some(first) = self.rows.wanted.iter().position(|wanted| *wanted != 0) else { return };
        if self.is_pooled() {
            return;
        }
        let _ = if self.settings.embeddings {
            self.raw.embedding(first)
        } else {
            self.raw.logits(first)
        };
    }

    fn no_slot(&self, batch: &Batch) -> Error {
        let n_ctx = self.n_ctx_seq();
        let highest = batch.positions().iter().copied().max().unwrap_or(0);
        let needed = usize::try_from(highest).unwrap_or(0).saturating_add(1);
        Error::new(
            ErrorKind::ContextFull { needed: needed.max(n_ctx + 1), n_ctx },
            format!(
                "the context of {n_ctx} tokens has no room for {} more; remove a part of the sequence or use a larger \
                 context",
                batch.len()
            ),
        )
    }

    /// The last position of each sequence of the batch.
    fn positions_before(&self, batch: &Batch) -> Vec<(i32, i32)> {
        let mut sequences: Vec<i32> = batch.sequences().flatten().copied().collect();
        sequences.sort_unstable();
        sequences.dedup();
        sequences.into_iter().map(|seq| (seq, self.raw.seq_pos_max(seq))).collect()
    }

    /// Brings sequences back to the last positions that they had, or empties them where that is impossible.
    fn roll_back(&mut self, before: &[(i32, i32)], error: Error) -> Error {
        if !self.raw.has_memory() {
            return error;
        }
        self.rows = Rows::default();
        let mut emptied = Vec::new();
        for (seq, last) in before.iter().copied() {
            let unchanged = self.raw.seq_pos_max(seq) == last && !self.is_recurrent();
            let kept = unchanged
                || (last >= 0
                    && self.kv().window_survives(seq, last + 1)
                    && self.raw.memory_remove(seq, last + 1, -1).unwrap_or(false));
            if !kept {
                let _ = self.raw.memory_remove(seq, -1, -1);
                if last >= 0 {
                    emptied.push(seq.to_string());
                }
            }
        }
        if emptied.is_empty() {
            return error;
        }
        let note = format!(
            "{}; sequence {} could not be brought back and is empty now",
            error.message(),
            emptied.join(", ")
        );
        let log = error.log().to_vec();
        Error::new(error.kind().clone(), note).with_log(log)
    }
}

impl Context {
    fn check_batch(&self, batch: &Batch) -> Result<()> {
        if batch.is_empty() {
            return Err(Error::invalid("the batch is empty"));
        }
        let most = self.chunk_len();
        if batch.len() > most {
            let len = batch.len();
            return Err(Error::invalid(format!("the batch has {len} tokens, at most {most} go")));
        }
        let n_vocab = self.model().raw().vocab_len();
        let known = |token: &&i32| !u32::try_from(**token).is_ok_and(|id| id < n_vocab);
        if let Some(token) = batch.tokens().iter().find(known) {
            return Err(Error::invalid(format!(
                "token {token} is not in the vocabulary of {n_vocab} tokens"
            )));
        }
        let shared = self.settings.kv_unified && !self.is_recurrent();
        for sequences in batch.sequences() {
            match sequences {
                [] => return Err(Error::invalid("a token of the batch belongs to no sequence")),
                [seq] => self.check_seq(SeqId(*seq))?,
                [_, ..] if !shared => {
                    let message =
                        "tokens of several sequences need a unified cache of attention layers";
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                several => {
                    several.iter().try_for_each(|seq| self.check_seq(SeqId(*seq)))?;
                    let repeated = (1..several.len()).any(|n| several[..n].contains(&several[n]));
                    if repeated {
                        return Err(Error::invalid("a token of the batch names a sequence twice"));
                    }
                }
            }
        }
        self.check_positions(batch)
    }

    fn check_positions(&self, batch: &Batch) -> Result<()> {
        let mut next: Vec<Option<i32>> = vec![None; self.n_seq_max()];
        for (sequences, position) in batch.sequences().zip(batch.positions().iter().copied()) {
            for seq in sequences.iter().copied() {
                let slot = &mut next[seq as usize]; // within n_seq_max: checked before
                // An empty sequence may start anywhere.
                let expected = slot.unwrap_or_else(|| match self.raw.seq_pos_max(seq) {
                    -1 => position,
                    last => last + 1,
                });
                if position < 0 || position != expected || position == i32::MAX {
                    return Err(Error::invalid(format!(
                        "sequence {seq} must go on at position {} but the batch has {position}",
                        expected.max(0)
                    )));
                }
                *slot = Some(position + 1);
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("n_ctx", &self.n_ctx())
            .field("n_batch", &self.n_batch())
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

//! The memory of a context: the key-value cache of attention layers and the states of recurrent ones.

use std::fmt;
use std::ops::{Bound, RangeBounds, RangeInclusive};

use ggml_sys as sys;

use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::token::SeqId;

/// The element type of cached keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum KvType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats, the default.
    #[default]
    F16,
    /// 16-bit floats with the exponent of 32-bit ones.
    Bf16,
    /// 8.5 bits an element.
    Q8_0,
    /// 5.5 bits an element, with an offset a block: 6 bits.
    Q5_1,
    /// 5.5 bits an element.
    Q5_0,
    /// 4.5 bits an element, with an offset a block: 5 bits.
    Q4_1,
    /// 4.5 bits an element.
    Q4_0,
    /// 4.5 bits an element, on a non-linear scale.
    Iq4Nl,
}

impl KvType {
    /// All types.
    pub const ALL: [Self; 9] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8_0,
        Self::Q5_1,
        Self::Q5_0,
        Self::Q4_1,
        Self::Q4_0,
        Self::Iq4Nl,
    ];

    /// Returns the name as llama.cpp spells it, such as `q8_0`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q5_1 => "q5_1",
            Self::Q5_0 => "q5_0",
            Self::Q4_1 => "q4_1",
            Self::Q4_0 => "q4_0",
            Self::Iq4Nl => "iq4_nl",
        }
    }

    /// Returns the type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.as_str() == name)
    }

    /// Returns the elements of a block and its bytes.
    pub(crate) fn block(self) -> (u64, u64) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q5_1 => (32, 24),
            Self::Q5_0 => (32, 22),
            Self::Q4_1 => (32, 20),
            Self::Q4_0 | Self::Iq4Nl => (32, 18),
        }
    }

    /// The number of the type in ggml.h.
    pub(crate) fn id(self) -> i32 {
        let id = match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Bf16 => sys::GGML_TYPE_BF16,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::Q5_1 => sys::GGML_TYPE_Q5_1,
            Self::Q5_0 => sys::GGML_TYPE_Q5_0,
            Self::Q4_1 => sys::GGML_TYPE_Q4_1,
            Self::Q4_0 => sys::GGML_TYPE_Q4_0,
            Self::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
        };
        id as i32
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The operations on a context's memory, from [`Context::kv`].
///
/// Positions are those of tokens in their sequence, from 0. Ranges are given as usual: `3..`, `..5`, `..`.
pub struct Kv<'a> {
    context: &'a mut Context,
}

impl<'a> Kv<'a> {
    pub(crate) fn new(context: &'a mut Context) -> Self {
        Self { context }
    }

    /// Returns the first and the last position of a sequence in memory, or `None` if it is empty.
    ///
    /// The first one is not 0 where old tokens have left a sliding window, and equals the last one in recurrent models.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a sequence that the context doesn't have.
    pub fn pos_range(&self, seq: SeqId) -> Result<Option<RangeInclusive<i32>>> {
        self.context.check_seq(seq)?;
        let last = self.context.raw.seq_pos_max(seq.0);
        Ok((last >= 0).then(|| self.context.raw.seq_pos_min(seq.0).max(0)..=last))
    }

    /// Removes the tokens of a sequence at some positions and tells whether it could.
    ///
    /// False means that nothing changed: recurrent and hybrid models can only remove whole sequences, and a cache with
    /// a sliding window cannot go back to where the window has been overwritten. Removing everything always works.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a sequence that the context doesn't have or a range that isn't one.
    pub fn remove(&mut self, seq: SeqId, positions: impl RangeBounds<i32>) -> Result<bool> {
        let (start, end) = self.checked(seq, &positions)?;
        let last = self.context.raw.seq_pos_max(seq.0);
        if last < 0 || start > last || start >= end {
            return Ok(true); // nothing is there
        }
        if start == 0 && end > last {
            return self.context.raw.memory_remove(seq.0, -1, -1);
        }
        let tail = end > last;
        if self.context.is_recurrent() && !tail {
            return Ok(false); // the state holds these tokens and keeps them
        }
        if tail && !self.window_survives(seq.0, start) {
            return Ok(false);
        }
        self.context.raw.memory_remove(seq.0, start, if tail { -1 } else { end })
    }

    /// Whether a sequence that ends before position `end` still has all tokens that its next one attends to.
    pub(crate) fn window_survives(&self, seq: i32, end: i32) -> bool {
        if self.context.is_recurrent() {
            return true; // its memory decides
        }
        match i32::try_from(self.context.model().raw().n_swa()) {
            Ok(window) if window > 0 => {
                self.context.raw.seq_pos_min(seq) <= end.saturating_sub(window).max(0)
            }
            _ => true,
        }
    }

    /// Copies the tokens of a sequence at some positions to another sequence.
    ///
    /// A whole sequence replaces what the other one had. With a unified cache copying costs nothing, as the tokens are
    /// shared, and parts can be added to another sequence; otherwise, and in recurrent and hybrid models, only whole
    /// sequences can be copied.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] as in [`remove`](Self::remove); [`ErrorKind::Unsupported`] for a part of a
    /// sequence where only whole ones go.
    pub fn copy(&mut self, from: SeqId, to: SeqId, positions: impl RangeBounds<i32>) -> Result<()> {
        self.context.check_seq(to)?;
        let (start, end) = self.checked(from, &positions)?;
        let last = self.context.raw.seq_pos_max(from.0);
        if from == to || last < 0 || start > last || start >= end {
            return Ok(());
        }
        let whole = start == 0 && end > last;
        let shares_cells = self.context.settings.kv_unified && !self.context.is_recurrent();
        if !whole && !shares_cells {
            let message = format!(
                "positions {start}..{end} of sequence {from} cannot be copied: this memory copies whole sequences"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if whole {
            // What the other one had would stay beside the copy.
            self.context.raw.memory_remove(to.0, -1, -1)?;
        }
        let (start, end) = if whole { (-1, -1) } else { (start, end) };
        self.context.raw.memory_copy(from.0, to.0, start, end)?;
        // Sequences with buffers of their own are copied by the next decode.
        self.context.update_pending |= !self.context.settings.kv_unified;
        Ok(())
    }

    /// Removes all sequences but one.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a sequence that the context doesn't have.
    pub fn keep(&mut self, seq: SeqId) -> Result<()> {
        self.context.check_seq(seq)?;
        // llama.cpp's own operation leaves sequences in other buffers alone (llama-kv-cache.cpp, seq_keep).
        for other in (0..self.context.settings.n_seq_max as i32).filter(|other| *other != seq.0) {
            self.context.raw.memory_remove(other, -1, -1)?;
        }
        Ok(())
    }

    /// Tells whether positions can be changed: not in models whose tokens have several positions, nor with a sliding
    /// window that is smaller than the context.
    pub fn can_shift(&self) -> bool {
        !self.context.model().raw().has_multi_axis_rope() && self.context.raw.can_shift()
    }

    /// Moves the tokens of a sequence at some positions by `delta`; the next decode rotates their keys.
    ///
    /// Tokens that would get a negative position are removed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] as in [`remove`](Self::remove) and for positions beyond `i32`;
    /// [`ErrorKind::Unsupported`] if [`can_shift`](Self::can_shift) is false.
    pub fn shift(
        &mut self,
        seq: SeqId,
        positions: impl RangeBounds<i32>,
        delta: i32,
    ) -> Result<()> {
        let (start, end) = self.checked(seq, &positions)?;
        self.check_shift()?;
        let last = self.context.raw.seq_pos_max(seq.0);
        if delta == 0 || last < 0 || start > last || start >= end {
            return Ok(());
        }
        if last.min(end - 1).checked_add(delta).is_none_or(|moved| moved == i32::MAX) {
            return Err(Error::invalid(format!("position {last} cannot move by {delta}")));
        }
        self.context.raw.memory_add(seq.0, start, end, delta)?;
        self.context.update_pending = true;
        Ok(())
    }

    /// Divides the positions of a sequence's tokens by `by`; the next decode rotates their keys.
    ///
    /// # Errors
    /// As [`shift`](Self::shift), and [`ErrorKind::InvalidArgument`] if `by` is less than 1.
    pub fn divide(&mut self, seq: SeqId, positions: impl RangeBounds<i32>, by: i32) -> Result<()> {
        let (start, end) = self.checked(seq, &positions)?;
        self.check_shift()?;
        if by < 1 {
            return Err(Error::invalid(format!("positions cannot be divided by {by}")));
        }
        if by > 1 && start < end {
            self.context.raw.memory_divide(seq.0, start, end, by)?;
            self.context.update_pending = true;
        }
        Ok(())
    }

    /// Removes everything.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if llama.cpp fails, which it has no reason to.
    pub fn clear(&mut self) -> Result<()> {
        self.context.raw.memory_clear()?;
        self.context.update_pending = false;
        Ok(())
    }

    fn check_shift(&self) -> Result<()> {
        if self.can_shift() {
            return Ok(());
        }
        let message = "the positions of this model's memory cannot be changed";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// A range as start and exclusive end, both at least 0.
    fn checked(&self, seq: SeqId, positions: &impl RangeBounds<i32>) -> Result<(i32, i32)> {
        self.context.check_seq(seq)?;
        let start = match positions.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match positions.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => i32::MAX,
        };
        if start < 0 || end < 0 {
            return Err(Error::invalid(format!("positions {start}..{end} are negative")));
        }
        Ok((start, end))
    }
}

impl fmt::Debug for Kv<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kv").field("context", &self.context).finish()
    }
}

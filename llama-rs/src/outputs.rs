//! The results of a decode.

use std::fmt;

use crate::ffi::context::RawContext;
use crate::token::SeqId;

/// Which rows the last successful decode produced.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// For each token of the batch, 1 if it has a row.
    pub(crate) wanted: Vec<i8>,
}

impl Rows {
    pub(crate) fn has(&self, index: usize) -> bool {
        self.wanted.get(index).is_some_and(|wanted| *wanted != 0)
    }

    pub(crate) fn last(&self) -> Option<usize> {
        self.wanted.iter().rposition(|wanted| *wanted != 0)
    }
}

/// The logits and embeddings of the last decode. They borrow the context: the next decode overwrites them.
///
/// # Examples
/// Reading results before the next decode compiles:
/// ```
/// use llama_rs::{Batch, Context, Result};
///
/// fn both(context: &mut Context, one: &Batch, other: &Batch) -> Result<(f32, f32)> {
///     let first = context.decode(one)?.last_logits().unwrap()[0];
///     let second = context.decode(other)?.last_logits().unwrap()[0];
///     Ok((first, second))
/// }
/// ```
/// Keeping them over it does not:
/// ```compile_fail
/// use llama_rs::{Batch, Context, Result};
///
/// fn both(context: &mut Context, one: &Batch, other: &Batch) -> Result<(f32, f32)> {
///     let first = context.decode(one)?.last_logits().unwrap();
///     let second = context.decode(other)?.last_logits().unwrap();
///     Ok((first[0], second[0]))
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Outputs<'a> {
    context: &'a RawContext,
    rows: &'a Rows,
    pooled: bool,
}

impl<'a> Outputs<'a> {
    pub(crate) fn new(context: &'a RawContext, rows: &'a Rows, pooled: bool) -> Self {
        Self { context, rows, pooled }
    }

    /// Returns the number of tokens in the batch, or of the last chunk after a prefill.
    pub fn len(&self) -> usize {
        self.rows.wanted.len()
    }

    /// Tells whether there are no results: nothing was decoded, or the last decode failed.
    pub fn is_empty(&self) -> bool {
        self.rows.wanted.is_empty()
    }

    /// Returns the logits of token `index` of the batch, one for each token of the vocabulary, or `None` if they were
    /// not asked for or the context only makes embeddings.
    pub fn logits(&self, index: usize) -> Option<&'a [f32]> {
        if !self.rows.has(index) || self.pooled {
            return None;
        }
        self.context.logits(index)
    }

    /// Returns the logits of the last token that has any.
    pub fn last_logits(&self) -> Option<&'a [f32]> {
        self.logits(self.rows.last()?)
    }

    /// Returns the embedding of token `index` of the batch, in a context that was built for embeddings without pooling.
    pub fn embedding(&self, index: usize) -> Option<&'a [f32]> {
        if !self.rows.has(index) || self.pooled {
            return None;
        }
        self.context.embedding(index)
    }

    /// Returns the pooled embedding of a sequence of the batch, in a context that was built for pooled embeddings.
    pub fn sequence_embedding(&self, seq: SeqId) -> Option<&'a [f32]> {
        if self.is_empty() || !self.pooled {
            return None;
        }
        self.context.sequence_embedding(seq.0)
    }
}

impl fmt::Debug for Outputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outputs").field("wanted", &self.rows.wanted).finish_non_exhaustive()
    }
}

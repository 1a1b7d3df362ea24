//! Identifiers of tokens and sequences.

use std::fmt;

/// A token id: an index into a model's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Token(pub i32);

impl Token {
    /// Returns the id as an index, or `None` for a negative id.
    pub fn index(self) -> Option<usize> {
        usize::try_from(self.0).ok()
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A sequence of a context, numbered from 0 up to the context's `n_seq_max`.
///
/// Each sequence has its own tokens and positions in the context's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct SeqId(pub i32);

impl SeqId {
    /// The first sequence, the only one of a context built with the defaults.
    pub const FIRST: Self = Self(0);
}

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

//! Tokens to evaluate together.

use crate::token::{SeqId, Token};

/// Tokens, each with its position, its sequences, and whether its logits are wanted.
///
/// A batch is plain data: it may hold anything, and [`Context::decode`](crate::Context::decode) checks it.
///
/// # Examples
/// ```
/// use llama_rs::{Batch, SeqId, Token};
///
/// let mut batch = Batch::new();
/// batch.push(Token(1), 0, SeqId(0), false);
/// batch.push(Token(5), 1, SeqId(0), true);
/// assert_eq!(batch.len(), 2);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    sequences: Vec<i32>,
    /// For each token, the end of its sequences in `sequences`.
    ends: Vec<usize>,
    outputs: Vec<i8>,
}

impl Batch {
    /// Makes an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a batch of consecutive tokens of one sequence, from `position`; only the last one's logits are wanted.
    pub fn sequence(tokens: &[Token], position: i32, seq: SeqId) -> Self {
        let mut batch = Self::new();
        batch.extend(tokens, position, seq);
        batch.want_last();
        batch
    }

    /// Adds a token at a position of one sequence.
    pub fn push(&mut self, token: Token, position: i32, seq: SeqId, output: bool) {
        self.push_shared(token, position, &[seq], output);
    }

    /// Adds a token that belongs to several sequences at the same position.
    ///
    /// Only contexts with a unified cache of attention layers evaluate such batches.
    pub fn push_shared(&mut self, token: Token, position: i32, seqs: &[SeqId], output: bool) {
        self.tokens.push(token.0);
        self.positions.push(position);
        self.sequences.extend(seqs.iter().map(|seq| seq.0));
        self.ends.push(self.sequences.len());
        self.outputs.push(output.into());
    }

    /// Adds consecutive tokens of one sequence, from `position`, without logits. Positions saturate at `i32::MAX`.
    pub fn extend(&mut self, tokens: &[Token], position: i32, seq: SeqId) {
        for (offset, token) in tokens.iter().enumerate() {
            let offset = i32::try_from(offset).unwrap_or(i32::MAX);
            self.push(*token, position.saturating_add(offset), seq, false);
        }
    }

    /// Asks for the logits of the last token. Does nothing in an empty batch.
    pub fn want_last(&mut self) {
        if let Some(last) = self.outputs.last_mut() {
            *last = 1;
        }
    }

    /// Asks for the logits of every token.
    pub fn want_all(&mut self) {
        self.outputs.fill(1);
    }

    /// Removes all tokens and keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.ends.clear();
        self.outputs.clear();
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Tells whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(crate) fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    pub(crate) fn positions(&self) -> &[i32] {
        &self.positions
    }

    pub(crate) fn outputs(&self) -> &[i8] {
        &self.outputs
    }

    /// The sequences of each token.
    pub(crate) fn sequences(&self) -> impl Iterator<Item = &[i32]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.sequences[start..*end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_wants_its_last_token() {
        let batch = Batch::sequence(&[Token(3), Token(4), Token(5)], 7, SeqId(2));
        assert_eq!(batch.tokens(), [3, 4, 5]);
        assert_eq!(batch.positions(), [7, 8, 9]);
        assert_eq!(batch.outputs(), [0, 0, 1]);
        assert!(batch.sequences().all(|seqs| seqs == [2]));
    }

    #[test]
    fn shared_tokens_keep_their_sequences_apart() {
        let mut batch = Batch::new();
        batch.push_shared(Token(1), 0, &[SeqId(0), SeqId(1)], false);
        batch.push_shared(Token(2), 1, &[], false);
        batch.push(Token(3), 1, SeqId(1), true);
        let sequences: Vec<_> = batch.sequences().collect();
        assert_eq!(sequences, [&[0, 1][..], &[], &[1]]);
        batch.clear();
        assert!(batch.is_empty() && batch.sequences().next().is_none());
    }

    #[test]
    fn positions_do_not_wrap() {
        let batch = Batch::sequence(&[Token(1), Token(2)], i32::MAX, SeqId(0));
        assert_eq!(batch.positions(), [i32::MAX, i32::MAX]);
    }
}

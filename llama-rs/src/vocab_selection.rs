//! Which tokens a model needs for some kind of text, for a vocabulary head without the others.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::token::Token;
use crate::vocab::Vocab;

/// Texts are tokenized in pieces of about this many bytes.
const PIECE: usize = 64 << 10;

/// How often each token occurs in some text.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use llama_rs::vocab_selection::{TokenCounts, select_tokens};
///
/// let vocab = llama_rs::Model::load("model.gguf")?.vocab();
/// let mut english = TokenCounts::new(&vocab);
/// english.add(&std::fs::read_to_string("english.txt")?)?;
/// let kept = select_tokens(&vocab, &[english.clone()], 16_384)?;
/// println!("{:.2} % outside", english.outside(&kept).share() * 100.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct TokenCounts {
    vocab: Vocab,
    counts: Vec<u64>,
}

/// How much of a text is written with tokens that are not among some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Outside {
    /// Tokens of the text that are not among them.
    pub tokens: u64,
    /// Tokens of the text.
    pub of_tokens: u64,
    /// Bytes of the tokens that are not among them.
    pub bytes: u64,
    /// Bytes of the text.
    pub of_bytes: u64,
}

impl Outside {
    /// Returns the tokens that are not among them as a share of all, 0 to 1.
    pub fn share(&self) -> f64 {
        self.tokens as f64 / self.of_tokens.max(1) as f64
    }
}

impl TokenCounts {
    /// Starts with no text.
    pub fn new(vocab: &Vocab) -> Self {
        Self { vocab: vocab.clone(), counts: vec![0; vocab.len()] }
    }

    /// Counts the tokens of a text.
    ///
    /// # Errors
    /// As [`Vocab::tokenize`].
    pub fn add(&mut self, text: &str) -> Result<()> {
        for piece in pieces(text) {
            for token in self.vocab.tokenize(piece, false)? {
                if let Some(count) = token.index().and_then(|id| self.counts.get_mut(id)) {
                    *count += 1;
                }
            }
        }
        Ok(())
    }

    /// Returns how many tokens were counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns how much of the text is written with tokens that are not among `kept`.
    pub fn outside(&self, kept: &[Token]) -> Outside {
        let kept: BTreeSet<usize> = kept.iter().filter_map(|token| token.index()).collect();
        let mut outside = Outside::default();
        for (id, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            // A token that was counted exists.
            let bytes = self.vocab.token_bytes(Token(id as i32), false).unwrap_or_default();
            let bytes = bytes.len() as u64 * count;
            outside.of_tokens += count;
            outside.of_bytes += bytes;
            if !kept.contains(&id) {
                outside.tokens += count;
                outside.bytes += bytes;
            }
        }
        outside
    }
}

/// Returns the tokens that no selection leaves out, by ascending id: those that control the model or end an answer, those
/// added by its makers, those of single bytes, from which any text can be made, and numbers of up to three digits.
pub fn required_tokens(vocab: &Vocab) -> Vec<Token> {
    let special = [vocab.bos(), vocab.eos(), vocab.eot(), vocab.sep(), vocab.nl(), vocab.pad()];
    let is_required = |token: Token| {
        let Some(is) = vocab.attributes(token) else { return false };
        if vocab.is_eog(token) || special.contains(&Some(token)) {
            return true;
        }
        if is.is_control() || is.is_user_defined() || is.is_unknown() || is.is_byte() {
            return !is.is_unused();
        }
        let bytes = vocab.token_bytes(token, false).unwrap_or_default();
        bytes.len() == 1 || (1..=3).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit)
    };
    let count = i32::try_from(vocab.len()).unwrap_or(i32::MAX);
    (0..count).map(Token).filter(|token| is_required(*token)).collect()
}

/// Returns the `keep` tokens that texts need most, by ascending id: the [required ones](required_tokens), then the most
/// frequent ones. Each of the texts weighs the same, however long it is; among equally frequent tokens those with the
/// lowest ids, which most tokenizers learn first, are kept.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when `keep` is less than the required tokens or more
/// than the vocabulary, or counts are of another vocabulary.
pub fn select_tokens(vocab: &Vocab, texts: &[TokenCounts], keep: usize) -> Result<Vec<Token>> {
    let required = required_tokens(vocab);
    if !(required.len()..=vocab.len()).contains(&keep) {
        return Err(Error::invalid(format!(
            "{keep} tokens cannot be kept: of this vocabulary {} to {} can, {} of which every selection has",
            required.len(),
            vocab.len(),
            required.len()
        )));
    }
    if texts.iter().any(|text| text.counts.len() != vocab.len()) {
        return Err(Error::invalid("the texts were counted with another vocabulary"));
    }
    let mut weights = vec![0.0; vocab.len()];
    for text in texts {
        let total = text.total().max(1) as f64;
        for (weight, &count) in weights.iter_mut().zip(&text.counts) {
            *weight += count as f64 / total;
        }
    }
    for id in required.iter().filter_map(|token| token.index()) {
        weights[id] = f64::INFINITY;
    }
    let mut ids: Vec<usize> = (0..vocab.len()).collect();
    ids.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
    ids.truncate(keep);
    ids.sort_unstable();
    Ok(ids.into_iter().map(|id| Token(id as i32)).collect())
}

/// Cuts a text between lines, where tokens end too, into pieces of [`PIECE`] bytes or a line more.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let from = (PIECE.min(rest.len())..).find(|&at| rest.is_char_boundary(at))?;
        // Line breaks in a row may be one token.
        let end = rest[from..].match_indices('\n').map(|(at, _)| from + at + 1);
        let end = { end }.find(|&end| !rest[end..].starts_with('\n')).unwrap_or(rest.len());
        let (piece, others) = rest.split_at(end);
        rest = others;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_with_lines_and_miss_nothing() {
        let line = "ä line of some words\n\n";
        let text = line.repeat(10_000) + "the end";
        let all: Vec<&str> = pieces(&text).collect();
        assert!(all.len() > 2);
        assert_eq!(all.concat(), text);
        for piece in &all[..all.len() - 1] {
            assert!(piece.ends_with("\n\n") && piece.len() <= PIECE + line.len());
        }
        assert_eq!(pieces("").count(), 0);
        assert_eq!(pieces(&"é".repeat(PIECE)).count(), 1);
    }
}

//! Small vocabularies: byte-pair merges learned from a few kilobytes of prose at first use.

use std::collections::{BTreeMap, HashSet};
use std::sync::OnceLock;

const PROSE: &str = include_str!("prose.txt");

/// The meaning of a token, as GGUF numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal = 1,
    /// Stands for text that no other token covers.
    Unknown = 2,
    /// Begins, ends or structures text; never printed.
    Control = 3,
    /// One byte, spelled `<0xNN>`.
    Byte = 6,
}

/// A token list with the order in which pairs merge.
#[derive(Debug, Clone, Default)]
pub struct Vocab {
    /// Spellings; the index is the token's id.
    pub tokens: Vec<String>,
    /// One kind a token.
    pub kinds: Vec<TokenKind>,
    /// Scores, for vocabularies that merge by score; empty for those with `merges`.
    pub scores: Vec<f32>,
    /// `left right` in order of rank, for byte-pair vocabularies; else empty.
    pub merges: Vec<String>,
}

impl Vocab {
    fn push(&mut self, token: &str, kind: TokenKind) {
        self.tokens.push(token.to_owned());
        self.kinds.push(kind);
    }

    /// Makes a byte-level vocabulary of exactly `size` tokens, `special` first.
    ///
    /// # Panics
    /// If `size` leaves no room for the special tokens and the 256 bytes.
    pub fn byte_level(special: &[&str], size: usize) -> Self {
        static LEARNED: OnceLock<Vec<(String, String)>> = OnceLock::new();
        let learned = LEARNED.get_or_init(|| {
            let words = words(PROSE).map(|word| {
                word.bytes().map(|byte| byte_symbol(byte).to_string()).collect::<Vec<_>>()
            });
            learn(words.collect())
        });
        let mut vocab = Self::default();
        special.iter().for_each(|token| vocab.push(token, TokenKind::Control));
        (0..=255).for_each(|b| vocab.push(&byte_symbol(b).to_string(), TokenKind::Normal));
        assert!(size >= vocab.tokens.len(), "{size} tokens are too few");
        let (merges, tokens) = extend(&vocab.tokens, learned, byte_symbol(b' '), size);
        tokens.iter().for_each(|token| vocab.push(token, TokenKind::Normal));
        vocab.merges = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
        vocab
    }

    /// Makes a vocabulary of exactly `size` tokens that merges by score, with bytes as a
    /// fallback: `<unk>`, then `special`, the 256 bytes, merged pieces, single characters.
    ///
    /// # Panics
    /// If `size` leaves no room for the special tokens, bytes and characters.
    pub fn scored(special: &[&str], size: usize) -> Self {
        static LEARNED: OnceLock<Vec<(String, String)>> = OnceLock::new();
        let learned = LEARNED.get_or_init(|| {
            let words = words(PROSE).filter(|word| !word.contains('\n'));
            learn(
                words
                    .map(|word| word.replace(' ', "▁").chars().map(String::from).collect())
                    .collect(),
            )
        });
        let mut characters: Vec<String> = PROSE
            .chars()
            .chain((' '..='~').filter(|c| *c != ' '))
            .filter(|c| !c.is_whitespace())
            .chain(['▁'])
            .map(String::from)
            .collect();
        characters.sort();
        characters.dedup();
        let mut vocab = Self::default();
        vocab.push("<unk>", TokenKind::Unknown);
        special.iter().for_each(|token| vocab.push(token, TokenKind::Control));
        (0..=255u8).for_each(|byte| vocab.push(&format!("<0x{byte:02X}>"), TokenKind::Byte));
        let fixed = vocab.tokens.len();
        let mut known = vocab.tokens.clone();
        known.extend(characters.iter().cloned());
        assert!(size >= known.len(), "{size} tokens are too few");
        let (_, pieces) = extend(&known, learned, '▁', size);
        vocab.scores = vec![0.0; fixed];
        for (rank, token) in pieces.iter().chain(&characters).enumerate() {
            vocab.push(token, TokenKind::Normal);
            vocab.scores.push(-(rank as f32) - 1.0);
        }
        vocab
    }

    /// Returns the id of a token.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().position(|known| known == token).map(|id| id as u32)
    }
}

/// Returns the printable character that stands for a byte in byte-level vocabularies.
///
/// Bytes that print keep their Latin-1 character; the others take the characters from U+0100 on.
pub fn byte_symbol(byte: u8) -> char {
    let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        char::from(byte)
    } else {
        let nth = (0..byte).filter(|b| !prints(*b)).count() as u32;
        char::from_u32(0x100 + nth).unwrap_or('\u{fffd}')
    }
}

/// Splits text as the pre-tokenizer of SmolLM2 does: a word takes the space before it, digits stand
/// alone, and so do English contractions.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (word, tail) = rest.split_at(first_word(rest)?);
        rest = tail;
        Some(word)
    })
}

#[derive(PartialEq, Clone, Copy)]
enum Class {
    Letter,
    Digit,
    Space,
    Other,
}

impl Class {
    fn of(c: char) -> Self {
        match c {
            c if c.is_alphabetic() => Self::Letter,
            c if c.is_numeric() => Self::Digit,
            c if c.is_whitespace() => Self::Space,
            _ => Self::Other,
        }
    }
}

/// Returns the length in bytes of the first word.
fn first_word(text: &str) -> Option<usize> {
    const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];
    let first = text.chars().next()?;
    if let Some(found) = CONTRACTIONS.iter().find(|part| text.starts_with(**part)) {
        return Some(found.len());
    }
    let run_of = |class, from: &str| -> usize {
        from.chars().take_while(|c| Class::of(*c) == class).map(char::len_utf8).sum()
    };
    let class = Class::of(first);
    if class == Class::Digit {
        return Some(first.len_utf8());
    }
    if class != Class::Space {
        return Some(run_of(class, text));
    }
    let after = text[first.len_utf8()..].chars().next();
    match after.map(Class::of) {
        Some(next @ (Class::Letter | Class::Other)) if first == ' ' => {
            Some(1 + run_of(next, &text[1..]))
        }
        Some(Class::Space) => {
            let run = run_of(Class::Space, text);
            // The last space of a run belongs to what follows.
            let last = text[..run].chars().next_back().map_or(0, char::len_utf8);
            Some(if run < text.len() { run - last } else { run })
        }
        _ => Some(first.len_utf8()),
    }
}

/// Learns merges by the pair that is most frequent, ties to the smaller spelling, until no pair
/// occurs twice.
fn learn(words: Vec<Vec<String>>) -> Vec<(String, String)> {
    let mut counted: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    for word in words {
        *counted.entry(word).or_default() += 1;
    }
    let mut counted: Vec<(Vec<String>, usize)> = counted.into_iter().collect();
    let mut merges = Vec::new();
    loop {
        let mut pairs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for (word, count) in &counted {
            for pair in word.windows(2) {
                *pairs.entry((&pair[0], &pair[1])).or_default() += count;
            }
        }
        let best = pairs.into_iter().max_by(|a, b| a.1.cmp(&b.1).then_with(|| b.0.cmp(&a.0)));
        let Some(((left, right), 2..)) = best else { return merges };
        let (left, right) = (left.to_owned(), right.to_owned());
        for (word, _) in &mut counted {
            let mut at = 0;
            while at + 1 < word.len() {
                if word[at] == left && word[at + 1] == right {
                    word[at].push_str(&right);
                    word.remove(at + 1);
                }
                at += 1;
            }
        }
        merges.push((left, right));
    }
}

/// Takes learned merges, then invented words of syllables, until the vocabulary has `size` tokens.
///
/// Returns the merges and the tokens that they add to `known`.
fn extend(
    known: &[String],
    learned: &[(String, String)],
    space: char,
    size: usize,
) -> (Vec<(String, String)>, Vec<String>) {
    let mut seen: HashSet<String> = known.iter().cloned().collect();
    let (mut merges, mut tokens) = (Vec::new(), Vec::new());
    let mut add = |left: &str, right: &str, tokens: &mut Vec<String>| {
        if known.len() + tokens.len() < size {
            let joined = format!("{left}{right}");
            if seen.insert(joined.clone()) {
                tokens.push(joined);
                merges.push((left.to_owned(), right.to_owned()));
            }
        }
        known.len() + tokens.len() < size
    };
    for (left, right) in learned.iter().cloned().chain(invented(space)) {
        if !add(&left, &right, &mut tokens) {
            break;
        }
    }
    (merges, tokens)
}

/// Invents merges: syllables, words of two, the same behind a space, words of three.
fn invented(space: char) -> impl Iterator<Item = (String, String)> {
    fn syllables() -> impl Iterator<Item = (char, char)> {
        "bdfghklmnprstvwz".chars().flat_map(|c| "aeiou".chars().map(move |v| (c, v)))
    }
    fn words(prefix: String) -> impl Iterator<Item = (String, String)> {
        syllables().flat_map(move |(c, v)| {
            let head = format!("{prefix}{c}{v}");
            syllables().map(move |(c, v)| (head.clone(), format!("{c}{v}")))
        })
    }
    let single = syllables().map(|(c, v)| (c.to_string(), v.to_string()));
    let spaced = syllables().map(move |(c, v)| (space.to_string(), format!("{c}{v}")));
    let long = syllables().flat_map(|(c, v)| words(format!("{c}{v}")));
    let short = words(String::new());
    single.chain(short).chain(spaced).chain(words(space.to_string())).chain(long)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distinct(vocab: &Vocab) -> bool {
        vocab.tokens.iter().collect::<HashSet<_>>().len() == vocab.tokens.len()
    }

    #[test]
    fn words_lose_nothing() {
        for text in [PROSE, "", " ", "  a  b\n\n c", "x1 22 ,, ..a\t\u{a0}é 🙂🙂"] {
            assert_eq!(words(text).collect::<String>(), text);
        }
        let split = |text| words(text).collect::<Vec<_>>();
        assert_eq!(split("a  bc 12"), ["a", " ", " bc", " ", "1", "2"]);
        assert_eq!(split("a\n\n\nb \n"), ["a", "\n\n", "\n", "b", " \n"]);
        assert_eq!(split("it's 'tis \"'sure'"), ["it", "'s", " '", "tis", " \"'", "sure", "'"]);
    }

    #[test]
    fn byte_level_has_the_size_asked_for_and_every_byte() {
        for size in [512, 1024, 2048, 49_152] {
            let vocab = Vocab::byte_level(&["<|endoftext|>", "<|im_start|>"], size);
            assert_eq!(vocab.tokens.len(), size);
            assert_eq!(vocab.kinds.len(), size);
            assert_eq!(vocab.merges.len(), size - 2 - 256);
            assert!(distinct(&vocab));
            for byte in 0..=255 {
                assert!(vocab.id(&byte_symbol(byte).to_string()).is_some());
            }
        }
        let vocab = Vocab::byte_level(&[], 1024);
        assert!(vocab.id("Ġthe").is_some());
    }

    #[test]
    fn every_merge_joins_known_tokens() {
        let vocab = Vocab::byte_level(&[], 20_000);
        let known: HashSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
        for merge in &vocab.merges {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(known.contains(left) && known.contains(right), "{merge}");
            assert!(known.contains(format!("{left}{right}").as_str()), "{merge}");
        }
    }

    #[test]
    fn scored_has_the_size_asked_for_and_every_byte() {
        for size in [700, 1024, 32_000] {
            let vocab = Vocab::scored(&["<s>", "</s>"], size);
            assert_eq!(vocab.tokens.len(), size);
            assert_eq!(vocab.scores.len(), size);
            assert!(distinct(&vocab));
            assert!(vocab.id("<0x0A>").is_some() && vocab.id("▁the").is_some());
        }
    }

    #[test]
    fn byte_symbols_are_distinct() {
        let symbols: HashSet<char> = (0..=255).map(byte_symbol).collect();
        assert_eq!(symbols.len(), 256);
        assert_eq!(byte_symbol(b' '), 'Ġ');
        assert_eq!(byte_symbol(b'\n'), 'Ċ');
    }
}

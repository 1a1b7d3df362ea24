//! Text from token bytes: UTF-8 across token boundaries, and stop strings across pieces.

use crate::error::{Error, Result};

/// Turns a stream of bytes into text, holding back only what may still become a character.
///
/// Tokens cut characters anywhere: an emoji often spans three or four of them. Bytes that can still be completed are
/// kept for the next [`push`](Self::push); bytes that can never be become U+FFFD, one for each maximal invalid part,
/// as `String::from_utf8_lossy` does over the whole stream. No valid byte is lost.
///
/// # Examples
/// ```
/// use llama_rs::text::Utf8Stream;
///
/// let mut stream = Utf8Stream::new();
/// let mut text = String::new();
/// stream.push(&[b'a', 0xF0, 0x9F], &mut text);
/// assert_eq!(text, "a");
/// stream.push(&[0x98, 0x80], &mut text);
/// assert_eq!(text, "a😀");
/// stream.push(&[0xE2], &mut text);
/// stream.finish(&mut text);
/// assert_eq!(text, "a😀\u{FFFD}");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    // At most three bytes: the start of a character that is not complete yet.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Makes an empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `out` the text that `bytes` completes.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty() {
            let rest = append_decodable(bytes, out);
            self.pending.extend_from_slice(rest);
        } else {
            self.pending.extend_from_slice(bytes);
            let joined = std::mem::take(&mut self.pending);
            let rest = append_decodable(&joined, out);
            self.pending.extend_from_slice(rest);
        }
    }

    /// Ends the stream: an unfinished character becomes one U+FFFD. The stream can be used again.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
            self.pending.clear();
        }
    }

    /// Returns the bytes held back, at most three.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }
}

/// Appends what can be decoded and returns the unfinished character at the end.
fn append_decodable<'a>(mut bytes: &'a [u8], out: &mut String) -> &'a [u8] {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return &[];
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                // Valid by the error's own word; lossy conversion keeps this free of unsafe and of panics.
                out.push_str(&String::from_utf8_lossy(valid));
                match error.error_len() {
                    None => return rest,
                    Some(invalid) => {
                        out.push(char::REPLACEMENT_CHARACTER);
                        bytes = &rest[invalid..];
                    }
                }
            }
        }
    }
}

/// Looks for stop strings in a stream of text pieces.
///
/// A match may span any number of pieces, so the end of the text that could still become a stop string is held back.
/// The match that ends first wins, and of those that end together the longest: the result does not depend on how the
/// text was cut into pieces.
///
/// # Examples
/// ```
/// use llama_rs::text::{StopMatcher, StopScan};
///
/// let mut stops = StopMatcher::new(["</s>", "\n\n"]).unwrap();
/// let mut text = String::new();
/// assert_eq!(stops.push("one<", &mut text), StopScan::Continue);
/// assert_eq!(text, "one");
/// assert_eq!(stops.push("/b> two </", &mut text), StopScan::Continue);
/// assert_eq!(stops.push("s> three", &mut text), StopScan::Stopped(0));
/// assert_eq!(text, "one</b> two ");
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
}

/// What [`StopMatcher::push`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopScan {
    /// No stop string yet.
    Continue,
    /// The stop string of this index; text from its start on was dropped.
    Stopped(usize),
}

impl StopMatcher {
    /// Makes a matcher for `stops`; with none it passes all text through.
    ///
    /// # Errors
    /// `InvalidArgument` if a stop string is empty, since it would match everywhere.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Self> {
        let stops: Vec<String> = stops.into_iter().map(Into::into).collect();
        if stops.iter().any(String::is_empty) {
            return Err(Error::invalid("a stop string is empty; it would match everywhere"));
        }
        Ok(Self { stops, held: String::new() })
    }

    /// Adds a piece, and appends to `out` the text that no stop string can claim any more.
    ///
    /// After [`StopScan::Stopped`] the matcher is empty and ready for another text.
    pub fn push(&mut self, piece: &str, out: &mut String) -> StopScan {
        if self.stops.is_empty() {
            out.push_str(piece);
            return StopScan::Continue;
        }
        self.held.push_str(piece);
        let found = self
            .stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| {
                self.held.find(stop.as_str()).map(|at| (at + stop.len(), at, i))
            })
            .min();
        if let Some((_, at, index)) = found {
            out.push_str(&self.held[..at]);
            self.held.clear();
            return StopScan::Stopped(index);
        }
        let keep = self.held.len() - self.held_back();
        out.extend(self.held.drain(..keep));
        StopScan::Continue
    }

    /// Ends the text: what was held back is appended to `out`.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// Returns the stop strings, in the order given.
    pub fn stops(&self) -> &[String] {
        &self.stops
    }

    /// Length in bytes of the longest end of the text that begins a stop string.
    fn held_back(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0).saturating_sub(1);
        let text = self.held.as_bytes();
        (1..=longest.min(text.len()))
            .rev()
            .find(|&n| {
                let end = &text[text.len() - n..];
                self.stops.iter().any(|stop| stop.as_bytes().starts_with(end))
            })
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(chunks: &[&[u8]]) -> String {
        let mut stream = Utf8Stream::new();
        let mut out = String::new();
        for chunk in chunks {
            stream.push(chunk, &mut out);
            assert!(stream.pending().len() <= 3);
        }
        stream.finish(&mut out);
        out
    }

    #[test]
    fn holds_back_only_what_may_be_completed() {
        let mut stream = Utf8Stream::new();
        let mut out = String::new();
        stream.push(&[0xE6, 0xAD], &mut out);
        assert_eq!(out, "");
        // 'x' proves that the two bytes never become a character
        stream.push(b"x", &mut out);
        assert_eq!(out, "\u{FFFD}x");
        assert!(stream.pending().is_empty());
    }

    #[test]
    fn surrogates_and_overlong_forms_are_replaced_at_once() {
        let mut stream = Utf8Stream::new();
        let mut out = String::new();
        stream.push(&[0xED, 0xA0], &mut out);
        assert!(!out.is_empty());
        assert_eq!(decode(&[&[0xC0, 0x80]]), String::from_utf8_lossy(&[0xC0, 0x80]));
    }

    #[test]
    fn an_earlier_end_wins_over_an_earlier_start() {
        for cut in 0..=4 {
            let mut stops = StopMatcher::new(["abcd", "bc"]).unwrap();
            let mut out = String::new();
            let text = "abcd";
            let mut scan = stops.push(&text[..cut], &mut out);
            if scan == StopScan::Continue {
                scan = stops.push(&text[cut..], &mut out);
            }
            assert_eq!((scan, out.as_str()), (StopScan::Stopped(1), "a"), "cut at {cut}");
        }
    }

    #[test]
    fn of_two_that_end_together_the_longest_wins() {
        let mut stops = StopMatcher::new(["b", "ab"]).unwrap();
        let mut out = String::new();
        assert_eq!(stops.push("xab", &mut out), StopScan::Stopped(1));
        assert_eq!(out, "x");
    }

    #[test]
    fn a_false_start_is_released() {
        let mut stops = StopMatcher::new(["aab"]).unwrap();
        let mut out = String::new();
        for piece in ["a", "a", "a", "a"] {
            assert_eq!(stops.push(piece, &mut out), StopScan::Continue);
        }
        assert_eq!(out, "aa");
        assert_eq!(stops.push("b!", &mut out), StopScan::Stopped(0));
        assert_eq!(out, "aa");
    }

    #[test]
    fn an_empty_stop_string_is_refused() {
        assert!(StopMatcher::new(["ok", ""]).is_err());
    }

    #[test]
    fn finish_releases_the_held_text() {
        let mut stops = StopMatcher::new(["日本"]).unwrap();
        let mut out = String::new();
        assert_eq!(stops.push("今日", &mut out), StopScan::Continue);
        assert_eq!(out, "今");
        stops.finish(&mut out);
        assert_eq!(out, "今日");
    }

    /// The definition, written naively over the whole text.
    fn first_stop(text: &str, stops: &[String]) -> Option<(usize, usize)> {
        stops
            .iter()
            .enumerate()
            .filter_map(|(i, stop)| text.find(stop.as_str()).map(|at| (at + stop.len(), at, i)))
            .min()
            .map(|(_, at, i)| (at, i))
    }

    proptest! {
        #[test]
        fn chunking_never_changes_the_decoded_text(bytes: Vec<u8>, cuts: Vec<prop::sample::Index>) {
            let mut at: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            at.sort_unstable();
            let mut chunks = Vec::new();
            let mut last = 0;
            for cut in at {
                chunks.push(&bytes[last..cut]);
                last = cut;
            }
            chunks.push(&bytes[last..]);
            prop_assert_eq!(decode(&chunks), String::from_utf8_lossy(&bytes).into_owned());
        }

        #[test]
        fn valid_text_comes_through_byte_by_byte(text: String) {
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            prop_assert_eq!(decode(&chunks), text);
        }

        #[test]
        fn stops_do_not_depend_on_the_cuts(
            chars in prop::collection::vec(prop::sample::select(vec!['a', 'b', 'é', '😀']), 0..24),
            stops in prop::collection::vec("[abé😀]{1,4}", 0..4),
            piece in 1usize..5,
        ) {
            let text: String = chars.iter().collect();
            let mut matcher = StopMatcher::new(stops.clone()).unwrap();
            let mut out = String::new();
            let mut hit = None;
            for part in chars.chunks(piece) {
                let part: String = part.iter().collect();
                if let StopScan::Stopped(i) = matcher.push(&part, &mut out) {
                    hit = Some(i);
                    break;
                }
            }
            if hit.is_none() {
                matcher.finish(&mut out);
            }
            match first_stop(&text, &stops) {
                None => {
                    prop_assert_eq!(hit, None);
                    prop_assert_eq!(out, text);
                }
                Some((at, index)) => {
                    prop_assert_eq!(hit.map(|i| &stops[i]), Some(&stops[index]));
                    prop_assert_eq!(out.as_str(), &text[..at]);
                }
            }
        }
    }
}

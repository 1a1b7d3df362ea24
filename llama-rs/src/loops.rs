//! A detector for answers that repeat themselves for ever.

use std::collections::VecDeque;

use crate::error::{Error, Result};
use crate::token::Token;

/// When a repetition counts as degenerate.
///
/// # Examples
/// ```
/// use llama_rs::loops::LoopOptions;
/// let strict = LoopOptions { min_repeats: 3, ..LoopOptions::default() };
/// assert!(strict.min_tokens > strict.min_repeats);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Longest period looked for, in tokens.
    pub max_period: usize,
    /// How often the period must occur in a row.
    pub min_repeats: usize,
    /// How many tokens the repetition must cover: short periods such as `----` occur in good text.
    pub min_tokens: usize,
}

impl Default for LoopOptions {
    /// Periods of up to 128 tokens, at least 4 times, over at least 96 tokens.
    fn default() -> Self {
        Self { max_period: 128, min_repeats: 4, min_tokens: 96 }
    }
}

/// A repetition that a [`LoopDetector`] found at the end of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetition {
    /// Tokens in one round.
    pub period: usize,
    /// Tokens that the repetition covers so far.
    pub tokens: usize,
}

/// Watches a stream of tokens for an end that repeats with a fixed period.
///
/// Costs one comparison for each period and token, and memory for `max_period` tokens.
///
/// # Examples
/// ```
/// use llama_rs::Token;
/// use llama_rs::loops::{LoopDetector, LoopOptions};
///
/// let options = LoopOptions { max_period: 8, min_repeats: 4, min_tokens: 12 };
/// let mut detector = LoopDetector::new(options).unwrap();
/// let tokens = [9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3];
/// let found = tokens.iter().find_map(|&id| detector.push(Token(id))).unwrap();
/// assert_eq!((found.period, found.tokens), (3, 12));
/// ```
#[derive(Debug, Clone)]
pub struct LoopDetector {
    options: LoopOptions,
    // The last `max_period` tokens, newest first.
    recent: VecDeque<Token>,
    // matched[p - 1]: how many of the newest tokens equal the one p places before them.
    matched: Vec<usize>,
}

impl LoopDetector {
    /// Makes a detector.
    ///
    /// # Errors
    /// `InvalidArgument` if `max_period` is not in 1..=4096 or `min_repeats` is below 2.
    pub fn new(options: LoopOptions) -> Result<Self> {
        if !(1..=4096).contains(&options.max_period) {
            return Err(Error::invalid(format!(
                "loop detector: max_period is {}, allowed are 1 to 4096 tokens",
                options.max_period
            )));
        }
        if options.min_repeats < 2 {
            return Err(Error::invalid(format!(
                "loop detector: min_repeats is {}, allowed are 2 or more",
                options.min_repeats
            )));
        }
        Ok(Self {
            options,
            recent: VecDeque::with_capacity(options.max_period),
            matched: vec![0; options.max_period],
        })
    }

    /// Adds a token and returns the repetition with the shortest period that the tokens now end in.
    pub fn push(&mut self, token: Token) -> Option<Repetition> {
        for (matched, &earlier) in self.matched.iter_mut().zip(&self.recent) {
            *matched = if earlier == token { *matched + 1 } else { 0 };
        }
        self.recent.truncate(self.options.max_period - 1);
        self.recent.push_front(token);
        self.matched.iter().enumerate().find_map(|(i, &matched)| {
            let period = i + 1;
            let tokens = matched + period;
            let enough = tokens >= period.saturating_mul(self.options.min_repeats)
                && tokens >= self.options.min_tokens;
            (matched > 0 && enough).then_some(Repetition { period, tokens })
        })
    }

    /// Forgets all tokens.
    pub fn reset(&mut self) {
        self.recent.clear();
        self.matched.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn detector(max_period: usize, min_repeats: usize, min_tokens: usize) -> LoopDetector {
        LoopDetector::new(LoopOptions { max_period, min_repeats, min_tokens }).unwrap()
    }

    #[test]
    fn a_single_repeated_token_has_period_one() {
        let mut found = detector(16, 4, 10);
        let hits: Vec<_> = (0..12).map(|_| found.push(Token(7))).collect();
        assert_eq!(hits.iter().position(Option::is_some), Some(9));
        assert_eq!(hits[11], Some(Repetition { period: 1, tokens: 12 }));
    }

    #[test]
    fn counting_up_is_no_loop() {
        let mut found = detector(32, 2, 4);
        assert!((0..1000).all(|i| found.push(Token(i)).is_none()));
    }

    #[test]
    fn a_change_starts_the_count_again() {
        let mut found = detector(4, 3, 6);
        for id in [1, 2, 1, 2, 1, 9, 1, 2, 1, 2, 1] {
            assert_eq!(found.push(Token(id)), None);
        }
        assert_eq!(found.push(Token(2)), Some(Repetition { period: 2, tokens: 6 }));
        found.reset();
        assert_eq!(found.push(Token(1)), None);
    }

    #[test]
    fn options_are_checked() {
        let base = LoopOptions::default();
        assert!(LoopDetector::new(LoopOptions { max_period: 0, ..base }).is_err());
        assert!(LoopDetector::new(LoopOptions { min_repeats: 1, ..base }).is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(ids in prop::collection::vec(0..3i32, 0..60)) {
            let (max_period, repeats, least) = (7, 3, 8);
            let mut found = detector(max_period, repeats, least);
            for end in 1..=ids.len() {
                let text = &ids[..end];
                let expected = (1..=max_period).find_map(|p| {
                    let run = (p..end).rev().take_while(|&i| text[i] == text[i - p]).count();
                    let tokens = run + p;
                    (run > 0 && tokens >= p * repeats && tokens >= least)
                        .then_some(Repetition { period: p, tokens })
                });
                prop_assert_eq!(found.push(Token(ids[end - 1])), expected);
            }
        }
    }
}

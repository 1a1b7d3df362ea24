//! Repetition, frequency and presence penalties over the last tokens.

use std::collections::{BTreeMap, VecDeque};

use crate::token::Token;

/// The strengths of the penalties and the window that they look at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PenaltyParams {
    pub(crate) last_n: usize,
    pub(crate) repeat: f32,
    pub(crate) frequency: f32,
    pub(crate) presence: f32,
}

impl PenaltyParams {
    pub(crate) fn is_disabled(&self) -> bool {
        self.last_n == 0 || (self.repeat == 1.0 && self.frequency == 0.0 && self.presence == 0.0)
    }

    /// The penalised logit of a token that occurs `count` times in the window.
    pub(crate) fn apply(&self, logit: f32, count: u32) -> f32 {
        // Dividing a negative logit would make the token more likely.
        let scaled = if logit <= 0.0 { logit * self.repeat } else { logit / self.repeat };
        scaled - (count as f32 * self.frequency + self.presence)
    }
}

/// The last tokens, and how often each occurs among them.
#[derive(Debug, Clone)]
pub(crate) struct Penalties {
    params: PenaltyParams,
    window: VecDeque<Token>,
    counts: BTreeMap<usize, u32>,
}

impl Penalties {
    pub(crate) fn new(params: PenaltyParams) -> Self {
        Self { params, window: VecDeque::new(), counts: BTreeMap::new() }
    }

    pub(crate) fn params(&self) -> &PenaltyParams {
        &self.params
    }

    /// Adds a token to the window. Ids below zero are no tokens and are left out.
    pub(crate) fn accept(&mut self, token: Token) {
        let Some(id) = token.index() else { return };
        if self.params.is_disabled() {
            return;
        }
        if self.window.len() == self.params.last_n
            && let Some(oldest) = self.window.pop_front().and_then(Token::index)
            && let Some(count) = self.counts.get_mut(&oldest)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&oldest);
            }
        }
        self.window.push_back(token);
        *self.counts.entry(id).or_insert(0) += 1;
    }

    /// The distinct tokens of the window with their counts, by ascending id.
    pub(crate) fn counts(&self) -> &BTreeMap<usize, u32> {
        &self.counts
    }

    pub(crate) fn reset(&mut self) {
        self.window.clear();
        self.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ON: PenaltyParams =
        PenaltyParams { last_n: 3, repeat: 2.0, frequency: 0.5, presence: 0.25 };

    #[test]
    fn the_window_forgets_the_oldest() {
        let mut penalties = Penalties::new(ON);
        for id in [5, 5, 7, 9, 5] {
            penalties.accept(Token(id));
        }
        let counts: Vec<_> = penalties.counts().iter().map(|(&id, &n)| (id, n)).collect();
        assert_eq!(counts, [(5, 1), (7, 1), (9, 1)]);
        penalties.reset();
        assert!(penalties.counts().is_empty());
    }

    #[test]
    fn signs_follow_upstream() {
        assert_eq!(ON.apply(4.0, 2), 2.0 - (1.0 + 0.25));
        assert_eq!(ON.apply(-4.0, 1), -8.0 - 0.75);
        assert_eq!(ON.apply(0.0, 1), -0.75);
    }

    #[test]
    fn disabled_penalties_keep_no_history() {
        for params in [
            PenaltyParams { last_n: 0, ..ON },
            PenaltyParams { repeat: 1.0, frequency: 0.0, presence: 0.0, ..ON },
        ] {
            let mut penalties = Penalties::new(params);
            penalties.accept(Token(1));
            assert!(params.is_disabled() && penalties.counts().is_empty());
        }
    }

    #[test]
    fn negative_ids_are_left_out() {
        let mut penalties = Penalties::new(ON);
        penalties.accept(Token(-1));
        assert!(penalties.counts().is_empty());
    }
}

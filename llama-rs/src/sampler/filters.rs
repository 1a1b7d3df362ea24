//! The stages after the selection: top-p, min-p, temperature and the distribution.

use crate::token::Token;

/// A token that may be sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: Token,
    /// Its logit after penalties, bias and temperature.
    pub logit: f32,
    /// Its probability among the candidates.
    pub p: f32,
}

/// The tokens still in play.
#[derive(Debug, Clone, Default)]
pub(crate) struct Candidates {
    pub(crate) list: Vec<Candidate>,
    /// Best first; ties by ascending id.
    pub(crate) sorted: bool,
}

fn best_first(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

impl Candidates {
    fn max_logit(&self) -> f32 {
        if self.sorted {
            self.list.first().map_or(f32::NEG_INFINITY, |best| best.logit)
        } else {
            self.list.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit))
        }
    }

    /// Keeps the fewest best tokens whose probabilities add up to `top_p`.
    pub(crate) fn top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 || self.list.is_empty() {
            return;
        }
        let max = self.max_logit();
        let mut sum = 0.0f64;
        for c in &mut self.list {
            c.p = (c.logit - max).exp();
            sum += f64::from(c.p);
        }
        for c in &mut self.list {
            c.p = (f64::from(c.p) / sum) as f32;
        }
        // The head of the distribution is usually short: sort it piece by piece until the sum is reached.
        let mut sorted = if self.sorted { self.list.len() } else { 0 };
        let mut cumulative = 0.0f32;
        let mut kept = 0;
        while kept < self.list.len() {
            if kept == sorted {
                let tail = &mut self.list[sorted..];
                let step = (sorted * 7).clamp(256, tail.len().max(256)).min(tail.len());
                if step < tail.len() {
                    tail.select_nth_unstable_by(step - 1, best_first);
                }
                tail[..step].sort_unstable_by(best_first);
                sorted += step;
            }
            cumulative += self.list[kept].p;
            kept += 1;
            if cumulative >= top_p {
                break;
            }
        }
        self.list.truncate(kept);
        self.sorted = true;
    }

    /// Keeps the tokens that are at least `min_p` times as probable as the best one.
    pub(crate) fn min_p(&mut self, min_p: f32) {
        if min_p <= 0.0 {
            return;
        }
        let min_logit = self.max_logit() + min_p.ln();
        if self.sorted {
            // the best one stays whatever rounding says
            let kept = self.list.iter().skip(1).take_while(|c| c.logit >= min_logit).count();
            self.list.truncate(kept + 1);
        } else {
            self.list.retain(|c| c.logit >= min_logit);
        }
    }

    /// Divides the logits by a temperature above zero.
    pub(crate) fn temperature(&mut self, temp: f32) {
        let max = self.max_logit();
        // A tiny temperature overflows; distances from the maximum do not lose their meaning then.
        let shift = if (max / temp).is_finite() { 0.0 } else { max };
        for c in &mut self.list {
            c.logit = (c.logit - shift) / temp;
        }
    }

    /// Sets the probabilities and returns the index of the token at `uniform` in [0, 1) of their sum.
    pub(crate) fn draw(&mut self, uniform: f64) -> Option<usize> {
        let max = self.max_logit();
        let mut sum = 0.0f64;
        for c in &mut self.list {
            c.p = (c.logit - max).exp();
            sum += f64::from(c.p);
        }
        let target = sum * uniform;
        let mut run = 0.0f64;
        let mut drawn = None;
        for (i, c) in self.list.iter_mut().enumerate() {
            run += f64::from(c.p);
            if drawn.is_none() && c.p > 0.0 && run >= target {
                drawn = Some(i);
            }
            c.p = (f64::from(c.p) / sum) as f32;
        }
        drawn.or_else(|| self.list.iter().rposition(|c| c.p > 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(logits: &[f32], sorted: bool) -> Candidates {
        let list = logits
            .iter()
            .enumerate()
            .map(|(i, &logit)| Candidate { token: Token(i as i32), logit, p: 0.0 })
            .collect();
        Candidates { list, sorted }
    }

    fn ids(c: &Candidates) -> Vec<i32> {
        c.list.iter().map(|c| c.token.0).collect()
    }

    fn probs(ps: &[f32]) -> Vec<f32> {
        ps.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn top_p_includes_the_token_that_reaches_it() {
        let mut c = candidates(&probs(&[0.4, 0.3, 0.2, 0.1]), true);
        c.top_p(0.6);
        assert_eq!(ids(&c), [0, 1]);
        let mut c = candidates(&probs(&[0.1, 0.4, 0.2, 0.3]), false);
        c.top_p(0.6);
        assert_eq!(ids(&c), [1, 3]);
        let mut c = candidates(&probs(&[0.5, 0.5]), true);
        c.top_p(0.0);
        assert_eq!(ids(&c), [0]);
    }

    #[test]
    fn top_p_sorts_as_far_as_it_needs() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5000) as f32 * 1e-4).collect();
        let mut partial = candidates(&logits, false);
        partial.top_p(0.9);
        let mut full = candidates(&logits, false);
        full.list.sort_by(best_first);
        full.sorted = true;
        full.top_p(0.9);
        assert!(full.list.len() > 4000 && full.list.len() < 5000);
        // the sums run in different order, so the cut may differ by a token
        assert!(partial.list.len().abs_diff(full.list.len()) <= 1);
        let n = partial.list.len().min(full.list.len());
        assert_eq!(ids(&partial)[..n], ids(&full)[..n]);
    }

    #[test]
    fn min_p_is_relative_to_the_best() {
        for sorted in [true, false] {
            let mut c = candidates(&probs(&[0.5, 0.3, 0.15, 0.05]), sorted);
            c.min_p(0.29);
            assert_eq!(ids(&c), [0, 1, 2]);
            let mut c = candidates(&probs(&[0.5, 0.3]), sorted);
            c.min_p(1.0);
            assert_eq!(ids(&c), [0]);
        }
    }

    #[test]
    fn a_tiny_temperature_is_almost_greedy_and_never_nan() {
        let mut c = candidates(&[30.0, 29.0, 1.0], true);
        c.temperature(1e-40);
        assert_eq!(c.draw(0.999), Some(0));
        assert_eq!(c.list.iter().map(|c| c.p).collect::<Vec<_>>(), [1.0, 0.0, 0.0]);
    }

    #[test]
    fn draw_follows_the_cumulative_sum() {
        let logits = probs(&[0.5, 0.25, 0.25]);
        for (u, expected) in [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.9999, 2)] {
            assert_eq!(candidates(&logits, true).draw(u), Some(expected), "{u}");
        }
        assert_eq!(candidates(&[], true).draw(0.5), None);
    }
}

//! The order in which a router prefers experts, with or without regard to what is in memory.
//!
//! [`CacheBias::order`] stands in for the sort of the selection scores in the graph. The weights
//! of the chosen experts come from the scores themselves, which stay as they are: a bias changes
//! who is chosen, not how much each counts.

#[cfg(test)]
mod tests;

/// What a router makes of its logits before experts are chosen by them.
///
/// What counts is the value that *selects*. It is not always the one that weighs the experts:
/// Llama 4 selects by raw logits and weighs by their sigmoid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// The logits as they are; a softmax over the chosen ones weighs them.
    SoftmaxWeight,
    /// Square root of softplus, `sqrt(ln(1 + e^x))`.
    SqrtSoftplus,
}

/// Logits that a bias of 1 adds: the inverse of the steepest slope of the sigmoid, so that there
/// it adds 1 to the score.
const LOGITS: f32 = 4.0;

/// Steepest slope of `sqrt(ln(1 + e^x))`: at x = 0.92142, where its second derivative is 0.
const SQRT_SOFTPLUS_SLOPE: f32 = 0.319_086_34;

/// Largest bias that differs from smaller ones: 64 logits decide against any router.
const LARGEST: f32 = 16.0;

impl Gating {
    /// Returns the gating of a model by its metadata, or `None` for a function that is not known.
    ///
    /// `function` is `{architecture}.expert_gating_func` where the file has it. Architectures
    /// that pay no regard to the key are known by name, as are the defaults of those whose
    /// older files lack it.
    ///
    /// ```
    /// use smol_engine::expert::routing::Gating;
    ///
    /// assert_eq!(Gating::from_metadata("qwen3moe", None), Some(Gating::Softmax));
    /// assert_eq!(Gating::from_metadata("bailingmoe2", Some(2)), Some(Gating::Sigmoid));
    /// assert_eq!(Gating::from_metadata("gpt-oss", None), Some(Gating::SoftmaxWeight));
    /// assert_eq!(Gating::from_metadata("qwen3moe", Some(99)), None);
    /// ```
    pub fn from_metadata(architecture: &str, function: Option<u32>) -> Option<Self> {
        match architecture {
            "llama4" | "gpt-oss" => return Some(Self::SoftmaxWeight),
            "grovemoe" | "mimo2" | "nemotron_h" | "nemotron_h_moe" => return Some(Self::Sigmoid),
            _ => {}
        }
        match function.unwrap_or(0) {
            0 => Some(match architecture {
                "afmoe" | "beam" | "cohere2moe" | "glm-dsa" | "glm4moe" | "glm5-next" | "hy_v3"
                | "k2-horizon" | "laguna" | "step35" => Self::Sigmoid,
                _ => Self::Softmax,
            }),
            1 => Some(Self::Softmax),
            2 => Some(Self::Sigmoid),
            3 => Some(Self::SoftmaxWeight),
            4 => Some(Self::SqrtSoftplus),
            _ => None,
        }
    }

    /// Turns the logits of all experts into scores, in place.
    ///
    /// ```
    /// use smol_engine::expert::routing::Gating;
    ///
    /// let mut scores = [1.0, 1.0, f32::NEG_INFINITY];
    /// Gating::Softmax.apply(&mut scores);
    /// assert_eq!(scores, [0.5, 0.5, 0.0]);
    /// ```
    pub fn apply(self, logits: &mut [f32]) {
        match self {
            Self::Softmax => {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut sum = 0.0;
                for x in logits.iter_mut() {
                    *x = (*x - most).exp();
                    sum += *x;
                }
                for x in logits {
                    *x /= sum;
                }
            }
            Self::Sigmoid => {
                for x in logits {
                    *x = 1.0 / (1.0 + (-*x).exp());
                }
            }
            Self::SoftmaxWeight => {}
            Self::SqrtSoftplus => {
                for x in logits {
                    // As the graph's kernel: ln(1 + e^x) is x from 20 on.
                    let softplus = if *x > 20.0 { *x } else { x.exp().ln_1p() };
                    *x = softplus.sqrt();
                }
            }
        }
    }
}

/// Preference for experts that are in memory.
///
/// # Scale
///
/// A bias of `b` is worth about `4 b` logits whatever the gating:
///
/// | gating | an expert in memory is ranked by |
/// |---|---|
/// | softmax | score x e^(4b), which is exactly that shift |
/// | sigmoid | score + b: the sigmoid is nowhere steeper than 1/4 |
/// | raw logits | score + 4b |
/// | sqrt-softplus | score + 1.276 b: it is nowhere steeper than 0.319 |
///
/// Sigmoid and sqrt-softplus add a constant, not the shift of each logit, because models with
/// these gatings add a correction per expert to the score: addition does not mind it.
///
/// # Examples
///
/// ```
/// use smol_engine::expert::routing::{CacheBias, Gating};
///
/// let scores = [0.9, 0.5, 0.45, f32::NEG_INFINITY];
/// let mut order = [0; 4];
/// let bias = CacheBias { bias: 0.1, keep_top: 1 };
/// bias.order(Gating::Sigmoid, &scores, |expert| expert >= 2, &mut order);
/// assert_eq!(order, [0, 2, 1, 3]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct CacheBias {
    /// Strength. 0 is off, as are negative values and NaN; from 16 on, it decides alone.
    pub bias: f32,
    /// Experts with the best scores that are chosen first, in memory or not.
    pub keep_top: usize,
}

/// Scores are sorted as integers: the rank in the upper half, the expert in the lower.
type Key = u64;

/// Experts for which the stack holds the keys.
const ON_STACK: usize = 512;

impl CacheBias {
    /// No preference.
    pub const OFF: Self = Self { bias: 0.0, keep_top: 0 };

    /// Returns whether the order can differ from that of the scores.
    pub fn is_active(&self) -> bool {
        self.bias > 0.0
    }

    /// Fills `order` with the experts, best first; `scores[expert]` is what the graph sorts.
    ///
    /// - Experts with equal rank come in the order of their numbers. The graph's own sort says
    ///   nothing about equals: it is `std::sort` by `>`, where libstdc++ keeps their order up to
    ///   16 experts and may change it beyond.
    /// - Without a bias the order is that of the scores, so the same as the graph's but for
    ///   equals. -0 and 0 are equal, subnormal numbers are told apart.
    /// - Masked experts (-inf) stay behind all others, in memory or not; NaN, for which the
    ///   graph's sort is undefined, comes last.
    ///
    /// An `order` shorter than `scores` gets the best ones; what a longer one has beyond is left
    /// as it is.
    pub fn order(
        &self,
        gating: Gating,
        scores: &[f32],
        resident: impl Fn(u32) -> bool,
        order: &mut [i32],
    ) {
        self.order_corrected(gating, scores, None, resident, order);
    }

    /// Does the same for scores to which the model has added a `correction` per expert
    /// (`exp_probs_b`).
    ///
    /// Only softmax needs to know: its bias multiplies the score without the correction. An
    /// expert whose corrected score is not positive would else get none.
    pub fn order_corrected(
        &self,
        gating: Gating,
        scores: &[f32],
        correction: Option<&[f32]>,
        resident: impl Fn(u32) -> bool,
        order: &mut [i32],
    ) {
        if scores.len() <= ON_STACK {
            let mut keys = [0; ON_STACK];
            self.sort(gating, scores, correction, resident, &mut keys[..scores.len()]);
            write(&keys[..scores.len()], order);
        } else {
            let mut keys = vec![0; scores.len()];
            self.sort(gating, scores, correction, resident, &mut keys);
            write(&keys, order);
        }
    }

    fn sort(
        &self,
        gating: Gating,
        scores: &[f32],
        correction: Option<&[f32]>,
        resident: impl Fn(u32) -> bool,
        keys: &mut [Key],
    ) {
        for (expert, (key, score)) in keys.iter_mut().zip(scores).enumerate() {
            *key = rank(*score) | expert as Key;
        }
        if !self.is_active() {
            keys.sort_unstable();
            return;
        }
        let keep = self.keep_top.min(keys.len());
        if 0 < keep && keep < keys.len() {
            keys.select_nth_unstable(keep - 1);
        }
        let (kept, rest) = keys.split_at_mut(keep);
        kept.sort_unstable();
        let raise = Raise::new(gating, self.bias);
        for key in rest.iter_mut() {
            let expert = *key as u32;
            if resident(expert) {
                let score = scores[expert as usize];
                let added = correction.and_then(|all| all.get(expert as usize)).copied();
                *key = rank(raise.apply(score, added)) | Key::from(expert);
            }
        }
        rest.sort_unstable();
    }
}

/// What a bias makes of the score of an expert in memory.
enum Raise {
    /// Multiply what is not the correction.
    Factor(f32),
    /// Add.
    Term(f32),
}

impl Raise {
    fn new(gating: Gating, bias: f32) -> Self {
        let logits = LOGITS * bias.min(LARGEST);
        match gating {
            Gating::Softmax => Self::Factor(logits.exp()),
            Gating::Sigmoid => Self::Term(logits * 0.25),
            Gating::SoftmaxWeight => Self::Term(logits),
            Gating::SqrtSoftplus => Self::Term(logits * SQRT_SOFTPLUS_SLOPE),
        }
    }

    fn apply(&self, score: f32, correction: Option<f32>) -> f32 {
        match (self, correction) {
            // -inf x factor is -inf, but less its correction it would be a NaN or worse.
            (Self::Factor(factor), Some(added)) if score.is_finite() => {
                (score - added).max(0.0) * factor + added
            }
            (Self::Factor(factor), _) if score > 0.0 => score * factor,
            (Self::Factor(_), _) => score,
            (Self::Term(term), _) => score + term,
        }
    }
}

/// Maps scores so that the better one has the smaller rank, and NaN the largest.
fn rank(score: f32) -> Key {
    if score.is_nan() {
        return Key::from(u32::MAX) << 32;
    }
    // -0 becomes 0. Bits of positive floats are in their order, those of negative ones reversed.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    Key::from(!ascending) << 32
}

fn write(keys: &[Key], order: &mut [i32]) {
    for (slot, key) in order.iter_mut().zip(keys) {
        *slot = *key as u32 as i32;
    }
}

//! A layer's router: the matrix that scores experts, and how they are chosen by their scores.

use super::dot::{dot_bf16, dot_f32};
use crate::expert::routing::{CacheBias, Gating};

/// What a router gets and makes of it, as the model's own graph does.
///
/// Scores are what the graph sorts: logits, gated, corrected, and masked to the best groups of
/// experts.
///
/// # Examples
///
/// ```
/// use smol_engine::expert::predict::Router;
/// use smol_engine::expert::routing::{CacheBias, Gating};
///
/// // Three experts of which two are used; hidden states have two values.
/// let router = Router::new(vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 3, 2, Gating::Sigmoid)?;
/// let mut scores = Vec::new();
/// router.scores(&[2.0, -1.0], &mut scores);
/// let mut chosen = Vec::new();
/// router.select(&scores, CacheBias::OFF, |_| false, &mut chosen);
/// assert_eq!(chosen, [0, 2]);
/// # Ok::<(), smol_engine::expert::predict::RouterError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Router {
    weights: Weights,
    experts: usize,
    width: usize,
    used: usize,
    gating: Gating,
    logit_bias: Option<Vec<f32>>,
    selection_bias: Option<Vec<f32>>,
    /// Groups and how many of them are used.
    groups: Option<(usize, usize)>,
    norm: Option<Vec<f32>>,
}

/// The matrix, row after row.
#[derive(Debug, Clone)]
enum Weights {
    F32(Vec<f32>),
    /// Routers are trained in bfloat16 for the most part: the same values in half the memory.
    Bf16(Vec<u16>),
}

/// A router that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouterError {
    /// The matrix has no rows of equal length.
    #[error("{weights} weights are no matrix of {experts} rows")]
    Shape {
        /// Number of weights.
        weights: usize,
        /// Number of experts.
        experts: u32,
    },
    /// More experts are used than there are, or none.
    #[error("{used} of {experts} experts cannot be chosen")]
    Used {
        /// Experts chosen for a token.
        used: u32,
        /// Number of experts.
        experts: u32,
    },
    /// A vector has not as many values as it should.
    #[error("{what} has {len} values, and must have {expected}")]
    Length {
        /// Which vector.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The length it must have.
        expected: usize,
    },
    /// The experts cannot be divided like that.
    #[error(
        "{used} of {groups} groups of {experts} experts cannot be chosen: groups must be equal, \
         of two experts or more, and fewer must be used than there are"
    )]
    Groups {
        /// Groups of experts.
        groups: u32,
        /// Groups of which experts may be chosen.
        used: u32,
        /// Number of experts.
        experts: u32,
    },
}

impl Router {
    /// Creates a router from the matrix `[experts][n_embd]`, of which `used` experts are chosen.
    ///
    /// Weights that are bfloat16 in disguise are kept as such.
    ///
    /// # Errors
    ///
    /// [`RouterError::Shape`] and [`RouterError::Used`].
    pub fn new(
        weights: Vec<f32>,
        experts: u32,
        used: u32,
        gating: Gating,
    ) -> Result<Self, RouterError> {
        let rows = experts as usize;
        if rows == 0 || weights.is_empty() || !weights.len().is_multiple_of(rows) {
            return Err(RouterError::Shape { weights: weights.len(), experts });
        }
        if used == 0 || used > experts {
            return Err(RouterError::Used { used, experts });
        }
        let width = weights.len() / rows;
        let weights = if weights.iter().all(|weight| weight.to_bits() & 0xffff == 0) {
            Weights::Bf16(weights.iter().map(|weight| (weight.to_bits() >> 16) as u16).collect())
        } else {
            Weights::F32(weights)
        };
        Ok(Self {
            weights,
            experts: rows,
            width,
            used: used as usize,
            gating,
            logit_bias: None,
            selection_bias: None,
            groups: None,
            norm: None,
        })
    }

    /// Adds `bias` to the logits (`ffn_gate_inp.bias`).
    ///
    /// # Errors
    ///
    /// [`RouterError::Length`]: there must be a value for each expert.
    pub fn with_logit_bias(mut self, bias: Vec<f32>) -> Result<Self, RouterError> {
        check("the bias of the logits", &bias, self.experts)?;
        self.logit_bias = Some(bias);
        Ok(self)
    }

    /// Adds `bias` to what experts are chosen by, after the gating (`exp_probs_b`).
    ///
    /// # Errors
    ///
    /// [`RouterError::Length`]: there must be a value for each expert.
    pub fn with_selection_bias(mut self, bias: Vec<f32>) -> Result<Self, RouterError> {
        check("the selection bias", &bias, self.experts)?;
        self.selection_bias = Some(bias);
        Ok(self)
    }

    /// Chooses among the experts of the `used` best of `groups` equal groups only.
    ///
    /// A group is as good as its two best experts together. 0 or 1 groups are none.
    ///
    /// # Errors
    ///
    /// [`RouterError::Groups`].
    pub fn with_groups(mut self, groups: u32, used: u32) -> Result<Self, RouterError> {
        if groups <= 1 {
            self.groups = None;
            return Ok(self);
        }
        let count = groups as usize;
        if !self.experts.is_multiple_of(count)
            || self.experts / count < 2
            || used == 0
            || used >= groups
        {
            return Err(RouterError::Groups { groups, used, experts: self.experts as u32 });
        }
        self.groups = Some((count, used as usize));
        Ok(self)
    }

    /// Tells the weights of the RMS norm whose output is the router's input (`ffn_norm`).
    ///
    /// With those of both layers, the input of one layer's router can be taken for that of
    /// another: [`renormalize`](Self::renormalize).
    ///
    /// # Errors
    ///
    /// [`RouterError::Length`]: there must be a value for each of the input's.
    pub fn with_norm(mut self, norm: Vec<f32>) -> Result<Self, RouterError> {
        check("the norm", &norm, self.width)?;
        self.norm = Some(norm);
        Ok(self)
    }

    /// Returns the number of experts.
    pub fn experts(&self) -> u32 {
        self.experts as u32
    }

    /// Returns the length of a hidden state.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of experts chosen for a token.
    pub fn used(&self) -> u32 {
        self.used as u32
    }

    /// Returns the bytes of its weights in memory.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::F32(weights) => size_of_val(weights.as_slice()),
            Weights::Bf16(weights) => size_of_val(weights.as_slice()),
        }
    }

    /// Makes of an input of `source` one of this router, if the norms of both are known.
    ///
    /// Both are the hidden state, which differs little, times the weights of the layer's norm.
    pub fn renormalize(&self, source: &Self, x: &mut [f32]) {
        let (Some(from), Some(to)) = (&source.norm, &self.norm) else { return };
        for ((x, from), to) in x.iter_mut().zip(from).zip(to) {
            let ratio = to / from;
            // A weight of 0 has left nothing to tell of.
            *x = if ratio.is_finite() { *x * ratio } else { 0.0 };
        }
    }

    /// Fills `scores` with what the graph sorts for the hidden state `x`.
    ///
    /// Values that `x` lacks count as 0, and those beyond [`width`](Self::width) not at all.
    pub fn scores(&self, x: &[f32], scores: &mut Vec<f32>) {
        scores.clear();
        match &self.weights {
            Weights::F32(weights) => {
                scores.extend(weights.chunks_exact(self.width).map(|row| dot_f32(row, x)));
            }
            Weights::Bf16(weights) => {
                scores.extend(weights.chunks_exact(self.width).map(|row| dot_bf16(row, x)));
            }
        }
        self.scores_of_logits(scores);
    }

    /// Turns logits, in place, into what the graph sorts.
    fn scores_of_logits(&self, scores: &mut [f32]) {
        add(scores, self.logit_bias.as_deref());
        self.gating.apply(scores);
        add(scores, self.selection_bias.as_deref());
        if let Some((groups, used)) = self.groups {
            mask_groups(scores, groups, used);
        }
    }

    /// Fills `chosen` with the experts that `scores` choose, best first.
    ///
    /// `bias` and `resident` change the order as [`CacheBias::order`] tells. Experts that cannot
    /// be chosen with sense, masked or NaN, are left out.
    pub fn select(
        &self,
        scores: &[f32],
        bias: CacheBias,
        resident: impl Fn(u32) -> bool,
        chosen: &mut Vec<u32>,
    ) {
        let mut best = [0; MOST_ON_STACK];
        let mut more = Vec::new();
        let used = self.used.min(scores.len());
        let best = if used <= MOST_ON_STACK {
            &mut best[..used]
        } else {
            more.resize(used, 0);
            &mut more[..]
        };
        let correction = self.selection_bias.as_deref();
        bias.order_corrected(self.gating, scores, correction, resident, best);
        chosen.clear();
        chosen.extend(
            best.iter()
                .map(|expert| *expert as u32)
                .filter(|expert| scores[*expert as usize] > f32::NEG_INFINITY),
        );
    }
}

/// Chosen experts for which no memory is asked.
const MOST_ON_STACK: usize = 64;

fn check(what: &'static str, values: &[f32], expected: usize) -> Result<(), RouterError> {
    if values.len() == expected {
        Ok(())
    } else {
        Err(RouterError::Length { what, len: values.len(), expected })
    }
}

fn add(scores: &mut [f32], bias: Option<&[f32]>) {
    for (score, bias) in scores.iter_mut().zip(bias.unwrap_or_default()) {
        *score += bias;
    }
}

/// Leaves the scores of the `used` best groups, and makes the others -inf.
fn mask_groups(scores: &mut [f32], groups: usize, used: usize) {
    let size = scores.len() / groups;
    let sums: Vec<f32> = scores.chunks_exact(size).map(sum_of_best_two).collect();
    let mut order = vec![0; groups];
    // Plain order: the same rule for equals and NaN as for experts.
    CacheBias::OFF.order(Gating::SoftmaxWeight, &sums, |_| false, &mut order);
    for group in &order[used..] {
        scores[*group as usize * size..][..size].fill(f32::NEG_INFINITY);
    }
}

fn sum_of_best_two(scores: &[f32]) -> f32 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for score in scores {
        if *score > first {
            second = first;
            first = *score;
        } else if *score > second {
            second = *score;
        }
    }
    first + second
}

#[cfg(test)]
mod tests;

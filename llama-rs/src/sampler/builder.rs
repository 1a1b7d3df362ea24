//! Sampling settings and their validation.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::model::Model;
use crate::sampler::penalties::{Penalties, PenaltyParams};
use crate::sampler::rng::{Rng, random_seed};
use crate::sampler::{Sampler, bitset::BitSet, filters::Candidates};
use crate::token::Token;

/// Settings of a [`Sampler`]; consuming setters, checked when built.
///
/// The stages run in llama.cpp's order: logit bias, penalties, grammar, top-k, top-p, min-p, temperature,
/// distribution. The defaults are llama.cpp's: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalties.
///
/// # Examples
/// ```
/// use llama_rs::sampler::SamplerBuilder;
///
/// let mut sampler = SamplerBuilder::new().top_k(2).temp(0.7).seed(1).build_for_vocab(4)?;
/// let token = sampler.sample(&[0.0, 3.0, f32::NEG_INFINITY, 2.5])?;
/// assert!(token.0 == 1 || token.0 == 3);
///
/// let error = SamplerBuilder::new().temp(f32::NAN).build_for_vocab(4).unwrap_err();
/// assert!(error.to_string().contains("temperature is NaN, allowed are 0 to 100"));
/// # Ok::<(), llama_rs::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until built"]
pub struct SamplerBuilder {
    top_k: usize,
    top_p: f32,
    min_p: f32,
    temp: f32,
    seed: Option<u64>,
    penalties: PenaltyParams,
    logit_bias: Vec<(Token, f32)>,
    grammar: Option<Grammar>,
}

impl Default for SamplerBuilder {
    fn default() -> Self {
        Self {
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            temp: 0.8,
            seed: None,
            penalties: PenaltyParams { last_n: 64, repeat: 1.0, frequency: 0.0, presence: 0.0 },
            logit_bias: Vec::new(),
            grammar: None,
        }
    }
}

impl SamplerBuilder {
    /// Starts from the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts from settings that always take the most probable token, without penalties.
    pub fn greedy() -> Self {
        Self::default().temp(0.0)
    }

    /// Keeps the `k` most probable tokens; 0 keeps all.
    pub fn top_k(mut self, k: usize) -> Self {
        self.top_k = k;
        self
    }

    /// Keeps the fewest tokens whose probabilities add up to `p`; 0 to 1, 1 keeps all.
    pub fn top_p(mut self, p: f32) -> Self {
        self.top_p = p;
        self
    }

    /// Keeps tokens at least `p` times as probable as the best one; 0 to 1, 0 keeps all.
    pub fn min_p(mut self, p: f32) -> Self {
        self.min_p = p;
        self
    }

    /// Divides the logits by this temperature, 0 to 100. At 0 the most probable token is taken; of equal ones the
    /// first.
    pub fn temp(mut self, temp: f32) -> Self {
        self.temp = temp;
        self
    }

    /// Seeds the random numbers: the same seed and logits give the same tokens on every platform. Without it each
    /// sampler is seeded at random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Divides positive logits of recent tokens by this, and multiplies negative ones; 0.1 to 10, 1 turns it off.
    pub fn repeat_penalty(mut self, penalty: f32) -> Self {
        self.penalties.repeat = penalty;
        self
    }

    /// Subtracts this from the logits of recent tokens once for each time they occur; -10 to 10, 0 turns it off.
    pub fn frequency_penalty(mut self, penalty: f32) -> Self {
        self.penalties.frequency = penalty;
        self
    }

    /// Subtracts this from the logits of recent tokens; -10 to 10, 0 turns it off.
    pub fn presence_penalty(mut self, penalty: f32) -> Self {
        self.penalties.presence = penalty;
        self
    }

    /// Sets how many of the last tokens the penalties look at; 0 turns them off.
    pub fn repeat_last_n(mut self, n: usize) -> Self {
        self.penalties.last_n = n;
        self
    }

    /// Adds `bias` to a token's logit; -inf bans the token. Several for one token add up.
    pub fn logit_bias(mut self, token: Token, bias: f32) -> Self {
        self.logit_bias.push((token, bias));
        self
    }

    /// Lets only texts of this grammar be sampled.
    pub fn grammar(mut self, grammar: Grammar) -> Self {
        self.grammar = Some(grammar);
        self
    }

    /// Builds a sampler for a model.
    ///
    /// # Errors
    /// `InvalidArgument` that names the setting, its value and the allowed range; `Grammar` if the grammar names
    /// tokens that the model does not have.
    pub fn build(mut self, model: &Model) -> Result<Sampler> {
        let grammar = self.grammar.take();
        let mut sampler = self.build_for_vocab(model.vocab().len())?;
        if let Some(grammar) = grammar {
            sampler.set_constraint(Some(grammar.start(model)?));
        }
        Ok(sampler)
    }

    /// Builds a sampler for logits of any origin: a vocabulary of `n_vocab` tokens, without a model.
    ///
    /// # Errors
    /// `InvalidArgument` that names the setting, its value and the allowed range, or if a grammar is set: it needs a
    /// model.
    pub fn build_for_vocab(self, n_vocab: usize) -> Result<Sampler> {
        if self.grammar.is_some() {
            return Err(Error::invalid(
                "a grammar needs a model: use build instead of build_for_vocab",
            ));
        }
        if n_vocab == 0 || n_vocab > i32::MAX as usize {
            return Err(Error::invalid(format!(
                "the vocabulary has {n_vocab} tokens, allowed are 1 to {}",
                i32::MAX
            )));
        }
        check("temperature", self.temp, 0.0..=100.0)?;
        check("top-p", self.top_p, 0.0..=1.0)?;
        check("min-p", self.min_p, 0.0..=1.0)?;
        check("repetition penalty", self.penalties.repeat, 0.1..=10.0)?;
        check("frequency penalty", self.penalties.frequency, -10.0..=10.0)?;
        check("presence penalty", self.penalties.presence, -10.0..=10.0)?;
        let seed = self.seed.unwrap_or_else(random_seed);
        Ok(Sampler {
            n_vocab,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            temp: self.temp,
            seed,
            rng: Rng::new(seed),
            penalties: Penalties::new(self.penalties),
            bias: checked_bias(&self.logit_bias, n_vocab)?,
            constraint: None,
            ended_by_grammar: false,
            changed: Vec::new(),
            changed_ids: BitSet::new(n_vocab),
            keys: Vec::new(),
            candidates: Candidates::default(),
        })
    }
}

fn check(what: &str, value: f32, range: RangeInclusive<f32>) -> Result<()> {
    // NaN is in no range
    if range.contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the {what} is {value}, allowed are {} to {}",
        range.start(),
        range.end()
    )))
}

fn checked_bias(list: &[(Token, f32)], n_vocab: usize) -> Result<BTreeMap<usize, f32>> {
    let mut bias = BTreeMap::new();
    for &(token, value) in list {
        let id = token.index().filter(|&id| id < n_vocab).ok_or_else(|| {
            Error::invalid(format!(
                "logit bias on token {token}: the vocabulary has tokens 0 to {}",
                n_vocab - 1
            ))
        })?;
        if value.is_nan() || value > 1e6 || (value < -1e6 && value != f32::NEG_INFINITY) {
            return Err(Error::invalid(format!(
                "the logit bias of token {token} is {value}, allowed are -1000000 to 1000000, and -inf to ban it"
            )));
        }
        *bias.entry(id).or_insert(0.0) += value;
    }
    Ok(bias)
}

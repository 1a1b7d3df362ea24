//! Choosing the next token from the model's logits, in one pass and without `unsafe`.

pub(crate) mod bitset;
mod builder;
mod filters;
mod logprob;
mod penalties;
mod rng;
mod select;

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::grammar::Constraint;
use crate::token::Token;

use bitset::BitSet;
use filters::Candidates;
use penalties::Penalties;
use rng::Rng;
use select::{Key, Selection};

pub use builder::SamplerBuilder;
pub use filters::Candidate;
pub use logprob::{log_softmax, top_log_probs};

/// Chooses tokens: penalties, grammar, top-k, top-p, min-p, temperature and a seeded distribution.
///
/// Made by a [`SamplerBuilder`]. It reads the logits where they are: penalties touch only the tokens of the window,
/// and top-k costs one pass. A grammar is asked about the one token that was drawn; only when it refuses is the whole
/// vocabulary masked and the token drawn again. `Send`, so that it can move to a worker thread.
///
/// # Examples
/// ```
/// use llama_rs::Token;
/// use llama_rs::sampler::SamplerBuilder;
///
/// let mut sampler = SamplerBuilder::greedy().repeat_penalty(1.5).build_for_vocab(3)?;
/// let logits = [1.0, 2.0, 1.9];
/// assert_eq!(sampler.sample(&logits)?, Token(1));
/// sampler.accept(Token(1))?;
/// assert_eq!(sampler.sample(&logits)?, Token(2));
/// # Ok::<(), llama_rs::Error>(())
/// ```
pub struct Sampler {
    n_vocab: usize,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    temp: f32,
    seed: u64,
    rng: Rng,
    penalties: Penalties,
    bias: BTreeMap<usize, f32>,
    constraint: Option<Box<dyn Constraint>>,
    ended_by_grammar: bool,
    // Scratch space, kept so that sampling does not allocate.
    changed: Vec<(usize, f32)>,
    changed_ids: BitSet,
    keys: Vec<Key>,
    candidates: Candidates,
}

impl Sampler {
    /// Chooses a token from the logits of one position, without adding it to the history: call
    /// [`accept`](Self::accept) with the token that is used.
    ///
    /// # Errors
    /// `InvalidArgument` if there is not one logit for each token of the vocabulary; `NonFinite` if a logit is NaN or
    /// +inf, or all are -inf; `Grammar` if the grammar leaves no token.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Token> {
        if logits.len() != self.n_vocab {
            return Err(Error::invalid(format!(
                "{} logits for a vocabulary of {} tokens",
                logits.len(),
                self.n_vocab
            )));
        }
        self.ended_by_grammar = false;
        self.collect_changed(logits);
        let chosen = self.choose(logits);
        // Emptied through its members: cheaper than clearing the whole set.
        for &(id, _) in &self.changed {
            self.changed_ids.remove(id);
        }
        chosen
    }

    /// Adds a token to the history that penalties look at, and advances the grammar.
    ///
    /// # Errors
    /// `InvalidArgument` for a token outside the vocabulary; `Grammar` if the grammar does not allow it; the grammar
    /// then stays where it was.
    pub fn accept(&mut self, token: Token) -> Result<()> {
        self.check_token(token)?;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        self.penalties.accept(token);
        Ok(())
    }

    /// Adds a token of the prompt: penalties see it, the grammar does not.
    ///
    /// # Errors
    /// `InvalidArgument` for a token outside the vocabulary.
    pub fn accept_prompt(&mut self, token: Token) -> Result<()> {
        self.check_token(token)?;
        self.penalties.accept(token);
        Ok(())
    }

    fn check_token(&self, token: Token) -> Result<()> {
        if token.index().is_none_or(|id| id >= self.n_vocab) {
            return Err(Error::invalid(format!(
                "token {token} is outside the vocabulary, 0 to {}",
                self.n_vocab - 1
            )));
        }
        Ok(())
    }

    /// Forgets the history, puts the grammar at its start and the random numbers at their seed.
    ///
    /// # Errors
    /// `Grammar` if the grammar cannot be started again.
    pub fn reset(&mut self) -> Result<()> {
        self.rng = Rng::new(self.seed);
        self.reset_text()
    }

    /// Forgets the history and puts the grammar at its start; random numbers go on, so that the next answer differs.
    ///
    /// # Errors
    /// `Grammar` if the grammar cannot be started again.
    pub fn reset_text(&mut self) -> Result<()> {
        self.penalties.reset();
        self.ended_by_grammar = false;
        match &mut self.constraint {
            Some(constraint) => constraint.reset(),
            None => Ok(()),
        }
    }

    /// Returns the seed in use, also where none was set.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns how many tokens the vocabulary has.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Returns the tokens that the last [`sample`](Self::sample) chose from, with their probabilities. Best first,
    /// unless top-k and top-p are both off.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates.list
    }

    /// Tells whether a grammar constrains this sampler.
    pub fn has_grammar(&self) -> bool {
        self.constraint.is_some()
    }

    /// Tells whether the last sampled token ends the text because the grammar allows nothing else.
    pub fn ended_by_grammar(&self) -> bool {
        self.ended_by_grammar
    }

    pub(crate) fn set_constraint(&mut self, constraint: Option<Box<dyn Constraint>>) {
        self.constraint = constraint;
        self.ended_by_grammar = false;
    }

    /// How many of the last tokens the penalties look at.
    pub(crate) fn window(&self) -> usize {
        let params = self.penalties.params();
        if params.is_disabled() { 0 } else { params.last_n }
    }

    /// Whether the text so far is a complete sentence of the grammar that cannot go on.
    pub(crate) fn grammar_is_done(&self) -> bool {
        self.constraint.as_ref().is_some_and(|constraint| constraint.is_done())
    }

    /// Finds the tokens whose logit differs from the raw one.
    fn collect_changed(&mut self, logits: &[f32]) {
        self.changed.clear();
        let params = *self.penalties.params();
        let counts = self.penalties.counts();
        for (&id, &count) in counts {
            let biased = logits[id] + self.bias.get(&id).copied().unwrap_or(0.0);
            self.changed.push((id, params.apply(biased, count)));
        }
        for (&id, &bias) in &self.bias {
            if !counts.contains_key(&id) {
                self.changed.push((id, logits[id] + bias));
            }
        }
        for &(id, _) in &self.changed {
            self.changed_ids.insert(id);
        }
    }

    fn choose(&mut self, logits: &[f32]) -> Result<Token> {
        let drawn = self.draw(logits, None)?;
        let Some(mut constraint) = self.constraint.take() else {
            return drawn.ok_or_else(nothing_left);
        };
        let token = self.choose_constrained(logits, drawn, &mut *constraint);
        self.constraint = Some(constraint);
        token
    }

    fn choose_constrained(
        &mut self,
        logits: &[f32],
        drawn: Option<Token>,
        constraint: &mut dyn Constraint,
    ) -> Result<Token> {
        if let Some(token) = drawn
            && constraint.allows(token)?
        {
            return Ok(token);
        }
        if let Some(allowed) = self.few_allowed(logits, constraint)?
            && let Some(token) = self.draw(logits, Some(&allowed))?
            && !constraint.is_end(token)
        {
            return Ok(token);
        }
        let mask = constraint.mask(self.n_vocab)?;
        let token = self.draw(logits, Some(&mask.allowed))?.ok_or_else(grammar_exhausted)?;
        self.ended_by_grammar = mask.only_end;
        Ok(token)
    }

    /// The allowed tokens among the best ones, if they are as many as top-k keeps: then no other can be drawn, and the
    /// rest of the vocabulary need not be asked.
    fn few_allowed(
        &mut self,
        logits: &[f32],
        constraint: &mut dyn Constraint,
    ) -> Result<Option<BitSet>> {
        const FEW: usize = 512;
        let wanted = if self.temp == 0.0 { 1 } else { self.top_k };
        if !(1..=FEW / 2).contains(&wanted) || self.n_vocab <= 2 * FEW {
            return Ok(None);
        }
        let selection = Selection {
            logits,
            changed: &self.changed,
            changed_ids: &self.changed_ids,
            allowed: None,
        };
        selection.select(FEW, &mut self.keys)?;
        let best: Vec<Token> = self.keys.iter().map(|key| Token(key.id() as i32)).collect();
        let found = constraint.mask_of(&best, self.n_vocab)?;
        Ok(found.and_then(|(allowed, count)| (count >= wanted).then_some(allowed)))
    }

    fn draw(&mut self, logits: &[f32], allowed: Option<&BitSet>) -> Result<Option<Token>> {
        let greedy = self.temp == 0.0;
        let selection =
            Selection { logits, changed: &self.changed, changed_ids: &self.changed_ids, allowed };
        let sorted = selection.select(if greedy { 1 } else { self.top_k }, &mut self.keys)?;
        let candidates = &mut self.candidates;
        candidates.sorted = sorted;
        candidates.list.clear();
        candidates.list.extend(self.keys.iter().map(|key| Candidate {
            token: Token(key.id() as i32),
            logit: key.logit(),
            p: 1.0,
        }));
        if candidates.list.is_empty() {
            return Ok(None);
        }
        if greedy {
            return Ok(Some(candidates.list[0].token));
        }
        candidates.top_p(self.top_p);
        candidates.min_p(self.min_p);
        candidates.temperature(self.temp);
        // One number a draw, also when a single candidate is left: the sequence does not depend on the logits.
        let uniform = self.rng.next_f64();
        Ok(candidates.draw(uniform).map(|index| candidates.list[index].token))
    }
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler")
            .field("n_vocab", &self.n_vocab)
            .field("top_k", &self.top_k)
            .field("top_p", &self.top_p)
            .field("min_p", &self.min_p)
            .field("temp", &self.temp)
            .field("seed", &self.seed)
            .field("penalties", self.penalties.params())
            .field("logit_bias", &self.bias)
            .field("has_grammar", &self.constraint.is_some())
            .finish_non_exhaustive()
    }
}

fn nothing_left() -> Error {
    Error::new(
        ErrorKind::NonFinite,
        "no token can be sampled: every logit is -inf, from the model or through the logit bias",
    )
}

fn grammar_exhausted() -> Error {
    Error::new(
        ErrorKind::Grammar,
        "the grammar leaves no token to choose: no token of the vocabulary continues the text, or those that do are \
         banned by the logit bias or left out of the model's pruned vocabulary head",
    )
}

#[cfg(test)]
mod tests;

//! A GBNF grammar at one place of a text, kept by llama.cpp.

use ggml_sys as sys;

use crate::error::{Error, ErrorKind, Result};
use crate::ffi::grammar::RawGrammar;
use crate::grammar::{Constraint, Mask};
use crate::model::Model;
use crate::sampler::bitset::BitSet;
use crate::token::Token;

pub(crate) struct LlamaGrammar {
    model: Model,
    source: std::sync::Arc<str>,
    // None after an error: llama.cpp asserts when it goes on with a grammar that has run dry.
    raw: Option<RawGrammar>,
    ends: Vec<Token>,
    done: bool,
    scratch: Vec<sys::llama_token_data>,
}

impl LlamaGrammar {
    pub(crate) fn new(model: &Model, source: &std::sync::Arc<str>) -> Result<Self> {
        Ok(Self {
            raw: Some(RawGrammar::new(model, source)?),
            model: model.clone(),
            source: source.clone(),
            ends: model.vocab().eog_tokens(),
            done: false,
            scratch: Vec::new(),
        })
    }

    /// Marks the candidates in `scratch`.
    fn apply(&mut self) -> Result<()> {
        let raw = self.raw.as_mut().ok_or_else(|| {
            Error::new(ErrorKind::Grammar, "the grammar failed before; reset the sampler to use it again")
        })?;
        let applied = raw.apply(&mut self.scratch);
        if applied.is_err() {
            self.raw = None;
        }
        applied
    }
}

impl Constraint for LlamaGrammar {
    fn allows(&mut self, token: Token) -> Result<bool> {
        if self.done || !self.model.raw().has_token(token) {
            return Ok(false);
        }
        self.scratch.clear();
        self.scratch.push(sys::llama_token_data { id: token.0, logit: 0.0, p: 0.0 });
        self.apply()?;
        Ok(self.scratch[0].logit != f32::NEG_INFINITY)
    }

    fn mask(&mut self, n_vocab: usize) -> Result<Mask> {
        let mut allowed = BitSet::new(n_vocab);
        if self.done {
            return Ok(Mask { allowed, only_end: true });
        }
        self.scratch.clear();
        let ids = 0..n_vocab as i32;
        self.scratch.extend(ids.map(|id| sys::llama_token_data { id, logit: 0.0, p: 0.0 }));
        self.apply()?;
        let mut only_end = true;
        for candidate in self.scratch.iter().filter(|c| c.logit != f32::NEG_INFINITY) {
            allowed.insert(candidate.id as usize);
            only_end &= self.ends.contains(&Token(candidate.id));
        }
        Ok(Mask { allowed, only_end })
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        if !self.allows(token)? {
            return Err(Error::new(
                ErrorKind::Grammar,
                format!("token {token} does not continue a text that the grammar allows"),
            ));
        }
        if let Some(raw) = &mut self.raw
            && let Err(error) = raw.accept(token)
        {
            self.raw = None;
            return Err(error);
        }
        if self.ends.contains(&token) {
            self.done = true;
        } else if self.ends.is_empty() {
            // Without an end token, a text is complete when nothing can follow.
            let n_vocab = self.model.raw().vocab_len() as usize;
            self.done = self.mask(n_vocab)?.allowed.is_empty();
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn reset(&mut self) -> Result<()> {
        self.done = false;
        self.raw = None;
        self.raw = Some(RawGrammar::new(&self.model, &self.source)?);
        Ok(())
    }
}

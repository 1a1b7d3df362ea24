//! A GBNF grammar at one place of a text, kept by llama.cpp.

use std::sync::Arc;

use ggml_sys as sys;

use crate::error::{Error, ErrorKind, Result};
use crate::ffi::grammar::RawGrammar;
use crate::grammar::{Constraint, Gbnf, Mask};
use crate::model::Model;
use crate::sampler::bitset::BitSet;
use crate::token::Token;
use crate::vocab::TokenizeOptions;

pub(crate) struct LlamaGrammar {
    model: Model,
    source: Arc<Gbnf>,
    // None after an error: llama.cpp asserts when it goes on with a grammar that has run dry.
    raw: Option<RawGrammar>,
    ends: Vec<Token>,
    done: bool,
    scratch: Vec<sys::llama_token_data>,
}

impl LlamaGrammar {
    pub(crate) fn new(model: &Model, source: &Arc<Gbnf>) -> Result<Self> {
        let vocab = model.vocab();
        let options = TokenizeOptions { add_special: false, parse_special: true };
        for name in &source.tokens {
            let count = vocab.tokenize_with(name, options)?.len();
            if count != 1 {
                return Err(Error::new(
                    ErrorKind::Grammar,
                    format!(
                        "the grammar names the token {name}, which is not one token of this model but {count}"
                    ),
                ));
            }
        }
        Ok(Self {
            raw: Some(RawGrammar::new(model, &source.text)?),
            model: model.clone(),
            source: Arc::clone(source),
            ends: vocab.eog_tokens(),
            done: false,
            scratch: Vec::new(),
        })
    }

    /// Marks the candidates in `scratch`.
    fn apply(&mut self) -> Result<()> {
        let raw = self.raw.as_mut().ok_or_else(|| {
            Error::new(
                ErrorKind::Grammar,
                "the grammar failed before; reset the sampler to use it again",
            )
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

    fn mask_of(&mut self, tokens: &[Token], n_vocab: usize) -> Result<Option<(BitSet, usize)>> {
        let mut allowed = BitSet::new(n_vocab);
        let mut count = 0;
        if !self.done {
            self.scratch.clear();
            let data = tokens.iter().map(|t| sys::llama_token_data { id: t.0, logit: 0.0, p: 0.0 });
            self.scratch.extend(data);
            self.apply()?;
            for candidate in self.scratch.iter().filter(|c| c.logit != f32::NEG_INFINITY) {
                allowed.insert(candidate.id as usize);
                count += 1;
            }
        }
        Ok(Some((allowed, count)))
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

    fn is_end(&self, token: Token) -> bool {
        self.ends.contains(&token)
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn reset(&mut self) -> Result<()> {
        self.done = false;
        self.raw = None;
        self.raw = Some(RawGrammar::new(&self.model, &self.source.text)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar::gbnf;
    use crate::model_builder::LoadMode;
    use proptest::prelude::*;
    use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
    use testkit::tiny::{self, Arch, TinyOptions};

    fn model() -> Model {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
        Model::builder(&path).load_mode(LoadMode::Read).load().unwrap()
    }

    /// What the checker lets through, llama.cpp must parse: it reports faults to standard error only.
    #[test]
    fn llama_cpp_parses_what_passes_the_check() {
        let model = model();
        let atom = prop::sample::select(vec![
            "\"a\"",
            "\"\"",
            "\"\\x41é\"",
            "[a-z]",
            "[^\\n]",
            "[\\]-]",
            "[a-]",
            ".",
            "x ",
            "y ",
            "root ",
            "<[3]>",
            "!<[3]>",
            "(\"b\" | x)",
            "(\"c\"?)",
            "(\n y )",
            "# c\n",
        ]);
        let suffix =
            prop::sample::select(vec!["", "", "", "*", "+", "?", "{2}", "{0,3}", "{1,}", " | "]);
        let good = (atom, suffix).prop_map(|(atom, suffix)| format!("{atom}{suffix}"));
        let junk =
            prop::sample::select(vec!["{,2}", "(", ")", "[]-a]", "\\", "\n", "\"", "é", "<"]);
        let item = prop_oneof![12 => good, 1 => junk.prop_map(str::to_owned)];
        let body = prop::collection::vec(item, 0..5);
        let passed = std::cell::Cell::new(0);
        let config =
            ProptestConfig { cases: 1500, failure_persistence: None, ..Default::default() };
        let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        TestRunner::new_with_rng(config, random)
            .run(&(body.clone(), body), |(root, x)| {
                let text =
                    format!("root ::= {}\nx ::= {}\ny ::= \"1\" y?", root.concat(), x.concat());
                // named tokens are looked up apart
                if gbnf::check(&text).is_ok_and(|tokens| tokens.is_empty()) {
                    passed.set(passed.get() + 1);
                    prop_assert!(RawGrammar::new(&model, &text).is_ok(), "{text}");
                }
                Ok(())
            })
            .unwrap();
        assert!(passed.get() > 200, "{passed:?}");
    }

    #[test]
    fn a_failed_grammar_stays_closed() {
        let model = model();
        let gbnf = Gbnf { text: "root ::= \"a\"".into(), tokens: Vec::new() };
        let mut grammar = LlamaGrammar::new(&model, &Arc::new(gbnf)).unwrap();
        grammar.raw = None;
        assert!(grammar.mask(10).is_err());
        assert!(grammar.allows(Token(300)).is_err());
        grammar.reset().unwrap();
        assert!(grammar.mask(10).is_ok());
    }
}

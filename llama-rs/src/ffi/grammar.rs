//! llama.cpp's grammar sampler.

use std::ffi::CString;
use std::ptr::{self, NonNull};

use ggml_sys as sys;

use super::call;
use crate::error::{Error, ErrorKind, Result};
use crate::model::Model;
use crate::token::Token;

/// Owns a `llama_sampler` that follows a grammar, and keeps the model whose vocabulary it points to.
pub(crate) struct RawGrammar {
    sampler: NonNull<sys::llama_sampler>,
    // Dropped after the sampler (`drop` runs before the fields go).
    _model: Model,
}

// SAFETY: the sampler owns its grammar and shares nothing but the vocabulary, which is read only
// (llama-sampler.cpp:2633); no thread-local state is involved.
unsafe impl Send for RawGrammar {}

impl RawGrammar {
    /// Parses a grammar whose start symbol is `root`.
    pub(crate) fn new(model: &Model, gbnf: &str) -> Result<Self> {
        let text = CString::new(gbnf)
            .map_err(|_| Error::new(ErrorKind::Grammar, "the grammar holds a zero byte"))?;
        let mut sampler = ptr::null_mut();
        call::guarded(ErrorKind::Grammar, "parsing the grammar", || {
            // SAFETY: the vocabulary belongs to the model, of which a clone is kept; both strings end in NUL and are
            // copied (llama-sampler.cpp:2797); guarded (smol.h).
            unsafe {
                sys::smol_grammar_new(
                    model.raw().vocab(),
                    text.as_ptr(),
                    c"root".as_ptr(),
                    &mut sampler,
                )
            }
        })?;
        let sampler = NonNull::new(sampler)
            .ok_or_else(|| Error::new(ErrorKind::Grammar, "llama.cpp refused the grammar"))?;
        Ok(Self { sampler, _model: model.clone() })
    }

    /// Sets the logits of candidates that may not come next to -inf.
    pub(crate) fn apply(&mut self, candidates: &mut [sys::llama_token_data]) -> Result<()> {
        let mut array = sys::llama_token_data_array {
            data: candidates.as_mut_ptr(),
            size: candidates.len(),
            selected: -1,
            sorted: false,
        };
        call::guarded(ErrorKind::Grammar, "applying the grammar", || {
            // SAFETY: `array` describes a live, exclusive slice and its size is not changed (llama-grammar.cpp:1431);
            // unknown ids throw, which is guarded (smol.h).
            unsafe { sys::smol_sampler_apply(self.sampler.as_ptr(), &mut array) }
        })
    }

    /// Advances the grammar. The token must have passed [`apply`](Self::apply): a wrong end token aborts
    /// (llama-grammar.cpp:1527).
    pub(crate) fn accept(&mut self, token: Token) -> Result<()> {
        call::guarded(ErrorKind::Grammar, "advancing the grammar", || {
            // SAFETY: the sampler is alive; other wrong tokens throw, which is guarded (smol.h).
            unsafe { sys::smol_sampler_accept(self.sampler.as_ptr(), token.0) }
        })
    }
}

impl Drop for RawGrammar {
    fn drop(&mut self) {
        // SAFETY: made by smol_grammar_new and freed once.
        unsafe { sys::smol_sampler_free(self.sampler.as_ptr()) }
    }
}

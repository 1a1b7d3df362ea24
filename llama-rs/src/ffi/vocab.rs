//! Calls on the vocabulary of a model.

use std::ffi::{CStr, c_char};

use ggml_sys as sys;

use super::call;
use super::model::RawModel;
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;

/// A special token that a vocabulary may define.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Bos,
    Eos,
    Eot,
    Sep,
    Nl,
    Pad,
    Mask,
}

impl RawModel {
    pub(crate) fn vocab_len(&self) -> u32 {
        // SAFETY: the vocabulary lives as long as the model; returns a size (llama-vocab.cpp:4719).
        unsafe { sys::llama_vocab_n_tokens(self.vocab()) }.cast_unsigned()
    }

    /// The kind of tokenizer, as numbered in llama.h; 0 for a model without one.
    pub(crate) fn vocab_type(&self) -> u32 {
        // SAFETY: as above; returns a member (llama-vocab.cpp:4728).
        unsafe { sys::llama_vocab_type(self.vocab()) }
    }

    pub(crate) fn special_token(&self, which: Special) -> Option<Token> {
        let vocab = self.vocab();
        let token = match which {
            // SAFETY: returns a member (llama-vocab.cpp:4752).
            Special::Bos => unsafe { sys::llama_vocab_bos(vocab) },
            // SAFETY: returns a member (llama-vocab.cpp:4756).
            Special::Eos => unsafe { sys::llama_vocab_eos(vocab) },
            // SAFETY: returns a member (llama-vocab.cpp:4760).
            Special::Eot => unsafe { sys::llama_vocab_eot(vocab) },
            // SAFETY: returns a member (llama-vocab.cpp:4769).
            Special::Sep => unsafe { sys::llama_vocab_sep(vocab) },
            // SAFETY: returns a member (llama-vocab.cpp:4773).
            Special::Nl => unsafe { sys::llama_vocab_nl(vocab) },
            // SAFETY: returns a member (llama-vocab.cpp:4777).
            Special::Pad => unsafe { sys::llama_vocab_pad(vocab) },
            // SAFETY: returns a member (llama-vocab.cpp:4825).
            Special::Mask => unsafe { sys::llama_vocab_mask(vocab) },
        };
        u32::try_from(token).ok().filter(|token| *token < self.vocab_len()).map(|_| Token(token))
    }

    pub(crate) fn adds_bos(&self) -> bool {
        // SAFETY: returns a member (llama-vocab.cpp:4781).
        unsafe { sys::llama_vocab_get_add_bos(self.vocab()) }
    }

    pub(crate) fn adds_eos(&self) -> bool {
        // SAFETY: returns a member (llama-vocab.cpp:4785).
        unsafe { sys::llama_vocab_get_add_eos(self.vocab()) }
    }

    pub(crate) fn is_eog(&self, token: Token) -> bool {
        // SAFETY: a look-up in a set, for any number (llama-vocab.cpp:3574).
        unsafe { sys::llama_vocab_is_eog(self.vocab(), token.0) }
    }

    /// Whether `token` can be looked up: in range, and of a vocabulary with a tokenizer (others assert,
    /// llama-vocab.cpp:3602).
    pub(crate) fn has_token(&self, token: Token) -> bool {
        self.vocab_type() != sys::LLAMA_VOCAB_TYPE_NONE
            && u32::try_from(token.0).is_ok_and(|id| id < self.vocab_len())
    }

    /// The attribute bits of a token, as in llama.h; 0 for a token that doesn't exist.
    pub(crate) fn token_attributes(&self, token: Token) -> u32 {
        if !self.has_token(token) {
            return 0;
        }
        // SAFETY: the token is in range and the vocabulary has a type, so neither `at` throws nor the assertion fails
        // (llama-vocab.cpp:3601).
        unsafe { sys::llama_vocab_get_attr(self.vocab(), token.0) }
    }

    pub(crate) fn token_score(&self, token: Token) -> Option<f32> {
        // SAFETY: checked to be in range, as above (llama-vocab.cpp:4482).
        self.has_token(token).then(|| unsafe { sys::llama_vocab_get_score(self.vocab(), token.0) })
    }

    /// The token as the vocabulary writes it, up to a NUL if it has one.
    pub(crate) fn token_text(&self, token: Token) -> Option<String> {
        if !self.has_token(token) {
            return None;
        }
        // SAFETY: checked to be in range, as above (llama-vocab.cpp:4477).
        let text = unsafe { sys::llama_vocab_get_text(self.vocab(), token.0) };
        // SAFETY: `std::string::c_str` of a string that lives as long as the model.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Tokenizes bytes, which may hold NULs; `tokens` is cleared first.
    pub(crate) fn tokenize(
        &self,
        text: &[u8],
        add_special: bool,
        parse_special: bool,
        tokens: &mut Vec<Token>,
    ) -> Result<()> {
        if self.vocab_type() == sys::LLAMA_VOCAB_TYPE_NONE {
            return Err(Error::new(ErrorKind::Tokenize, "the model has no tokenizer"));
        }
        let length = i32::try_from(text.len()).map_err(|_| {
            Error::new(ErrorKind::Tokenize, format!("a text of {} bytes is too long", text.len()))
        })?;
        tokens.clear();
        // Few tokens are shorter than two bytes; where there are more, the call tells how many.
        let mut capacity = text.len() / 2 + 8;
        for _ in 0..2 {
            tokens.resize(capacity, Token(0));
            let mut count = 0;
            call::guarded(ErrorKind::Tokenize, "tokenizing", || {
                // SAFETY: `text` has `length` bytes and `tokens` room for `capacity` ids (Token is a transparent i32);
                // guarded (smol.h).
                unsafe {
                    sys::smol_tokenize(
                        self.vocab(),
                        text.as_ptr().cast::<c_char>(),
                        length,
                        tokens.as_mut_ptr().cast::<sys::llama_token>(),
                        i32::try_from(capacity).unwrap_or(i32::MAX),
                        add_special,
                        parse_special,
                        &mut count,
                    )
                }
            })?;
            if let Ok(count) = usize::try_from(count) {
                tokens.truncate(count);
                return Ok(());
            }
            if count == i32::MIN {
                break; // more tokens than an i32 counts (llama.h, llama_tokenize)
            }
            capacity = count.unsigned_abs() as usize;
        }
        tokens.clear();
        Err(Error::new(ErrorKind::Tokenize, "the text has too many tokens"))
    }

    /// Appends the bytes of a token to `bytes`; special tokens have none unless `special`.
    pub(crate) fn append_token_bytes(
        &self,
        token: Token,
        special: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        if !self.has_token(token) {
            return Err(Error::invalid(format!(
                "token {token} is not in the vocabulary of {} tokens",
                self.vocab_len()
            )));
        }
        let start = bytes.len();
        let mut capacity = 32;
        for _ in 0..2 {
            bytes.resize(start + capacity, 0);
            let mut count = 0;
            let outcome = call::guarded(ErrorKind::Tokenize, "turning a token into text", || {
                let room = &mut bytes[start..];
                // SAFETY: `room` has `capacity` bytes; the token is in range; guarded (smol.h).
                unsafe {
                    sys::smol_token_to_piece(
                        self.vocab(),
                        token.0,
                        room.as_mut_ptr().cast::<c_char>(),
                        i32::try_from(room.len()).unwrap_or(i32::MAX),
                        special,
                        &mut count,
                    )
                }
            });
            bytes.truncate(start + usize::try_from(count).unwrap_or(0));
            outcome?;
            if count >= 0 {
                return Ok(());
            }
            capacity = count.unsigned_abs() as usize;
        }
        bytes.truncate(start);
        Err(Error::new(ErrorKind::Tokenize, format!("token {token} has no text of a fixed length")))
    }
}

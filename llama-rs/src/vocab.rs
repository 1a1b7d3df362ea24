//! The vocabulary of a model: text to tokens and back.

use std::fmt;

use crate::error::Result;
use crate::ffi::vocab::Special;
use crate::model::Model;
use crate::token::Token;

/// How a text is tokenized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenizeOptions {
    /// Whether to add the tokens that the model wants around a text, such as the one that begins it.
    pub add_special: bool,
    /// Whether the text of special tokens, such as `<|im_end|>`, becomes these tokens. Leave it off for text of others.
    pub parse_special: bool,
}

impl TokenizeOptions {
    /// For a whole text of a user: special tokens around it, none read from it.
    pub const TEXT: Self = Self { add_special: true, parse_special: false };
    /// For the output of a chat template, which writes all special tokens itself.
    pub const TEMPLATE: Self = Self { add_special: false, parse_special: true };
    /// For a piece of a text: nothing is added or parsed.
    pub const PIECE: Self = Self { add_special: false, parse_special: false };
}

/// What a token is, as the vocabulary says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenAttributes(u32);

impl TokenAttributes {
    /// Returns the bits as llama.h defines them (`enum llama_token_attr`).
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Tells whether the token stands for unknown text.
    pub fn is_unknown(self) -> bool {
        self.0 & 1 != 0
    }

    /// Tells whether the vocabulary has the token without using it.
    pub fn is_unused(self) -> bool {
        self.0 & 2 != 0
    }

    /// Tells whether the token is ordinary text.
    pub fn is_normal(self) -> bool {
        self.0 & 4 != 0
    }

    /// Tells whether the token controls the model and is no text.
    pub fn is_control(self) -> bool {
        self.0 & 8 != 0
    }

    /// Tells whether the token was added by the model's makers and is matched before others.
    pub fn is_user_defined(self) -> bool {
        self.0 & 16 != 0
    }

    /// Tells whether the token stands for one byte.
    pub fn is_byte(self) -> bool {
        self.0 & 32 != 0
    }
}

/// The vocabulary of a model. It keeps the model alive; clones are cheap.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// let vocab = llama_rs::Model::load("model.gguf")?.vocab();
/// let tokens = vocab.tokenize("Hello", true)?;
/// let bytes = vocab.detokenize(&tokens, false)?;
/// assert!(String::from_utf8_lossy(&bytes).contains("Hello"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Vocab {
    model: Model,
}

impl Vocab {
    pub(crate) fn new(model: Model) -> Self {
        Self { model }
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the number of tokens, which is also the number of logits.
    pub fn len(&self) -> usize {
        self.model.raw().vocab_len() as usize
    }

    /// Tells whether the model has no vocabulary.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tells whether the model has a tokenizer; without one it only takes token ids.
    pub fn has_tokenizer(&self) -> bool {
        self.model.raw().vocab_type() != 0
    }

    /// Turns a text into tokens. `add_special` adds the tokens that the model wants around a text; special tokens are
    /// not read from the text.
    ///
    /// # Errors
    /// [`ErrorKind::Tokenize`](crate::ErrorKind::Tokenize) if the model has no tokenizer, the text is too long or the
    /// tokenizer cannot express it.
    pub fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>> {
        self.tokenize_with(text, TokenizeOptions { add_special, parse_special: false })
    }

    /// Turns a text into tokens as the options say.
    ///
    /// # Errors
    /// As [`tokenize`](Self::tokenize).
    pub fn tokenize_with(&self, text: &str, options: TokenizeOptions) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        let TokenizeOptions { add_special, parse_special } = options;
        self.model.raw().tokenize(text.as_bytes(), add_special, parse_special, &mut tokens)?;
        Ok(tokens)
    }

    /// Returns the bytes of a token. They may be a part of a UTF-8 character. Special tokens have none unless `special`,
    /// which gives them as the vocabulary writes them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a token that isn't in the vocabulary.
    pub fn token_bytes(&self, token: Token, special: bool) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.append_token_bytes(token, special, &mut bytes)?;
        Ok(bytes)
    }

    /// Appends the bytes of a token, as [`token_bytes`](Self::token_bytes), without a new buffer.
    ///
    /// # Errors
    /// As [`token_bytes`](Self::token_bytes).
    pub fn append_token_bytes(
        &self,
        token: Token,
        special: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        self.model.raw().append_token_bytes(token, special, bytes)
    }

    /// Returns the bytes of tokens one after the other.
    ///
    /// # Errors
    /// As [`token_bytes`](Self::token_bytes).
    pub fn detokenize(&self, tokens: &[Token], special: bool) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        tokens.iter().try_for_each(|token| self.append_token_bytes(*token, special, &mut bytes))?;
        Ok(bytes)
    }

    /// Returns a token as the vocabulary writes it, for example `ĠHello`; `None` for a token that doesn't exist.
    pub fn text(&self, token: Token) -> Option<String> {
        self.model.raw().token_text(token)
    }

    /// Returns the score of a token, which only some tokenizers use; `None` for a token that doesn't exist.
    pub fn score(&self, token: Token) -> Option<f32> {
        self.model.raw().token_score(token)
    }

    /// Returns what a token is; `None` for a token that doesn't exist.
    pub fn attributes(&self, token: Token) -> Option<TokenAttributes> {
        let raw = self.model.raw();
        raw.has_token(token).then(|| TokenAttributes(raw.token_attributes(token)))
    }

    /// Tells whether a token ends an answer, such as the end of a text or of a turn.
    pub fn is_eog(&self, token: Token) -> bool {
        self.model.raw().is_eog(token)
    }

    /// Returns all tokens that end an answer.
    pub fn eog_tokens(&self) -> Vec<Token> {
        let count = i32::try_from(self.len()).unwrap_or(i32::MAX);
        (0..count).map(Token).filter(|token| self.is_eog(*token)).collect()
    }

    /// Returns the token that begins a text.
    pub fn bos(&self) -> Option<Token> {
        self.model.raw().special_token(Special::Bos)
    }

    /// Returns the token that ends a text.
    pub fn eos(&self) -> Option<Token> {
        self.model.raw().special_token(Special::Eos)
    }

    /// Returns the token that ends a turn of a chat.
    pub fn eot(&self) -> Option<Token> {
        self.model.raw().special_token(Special::Eot)
    }

    /// Returns the token that separates sentences.
    pub fn sep(&self) -> Option<Token> {
        self.model.raw().special_token(Special::Sep)
    }

    /// Returns the token of a line break.
    pub fn nl(&self) -> Option<Token> {
        self.model.raw().special_token(Special::Nl)
    }

    /// Returns the token that fills up batches.
    pub fn pad(&self) -> Option<Token> {
        self.model.raw().special_token(Special::Pad)
    }

    /// Returns the token that stands for text to guess.
    pub fn mask(&self) -> Option<Token> {
        self.model.raw().special_token(Special::Mask)
    }

    /// Tells whether the model wants [`bos`](Self::bos) before a text.
    pub fn add_bos(&self) -> bool {
        self.model.raw().adds_bos()
    }

    /// Tells whether the model wants [`eos`](Self::eos) after a text.
    pub fn add_eos(&self) -> bool {
        self.model.raw().adds_eos()
    }
}

impl fmt::Debug for Vocab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocab").field("len", &self.len()).finish_non_exhaustive()
    }
}

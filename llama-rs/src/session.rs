//! A conversation with a model: what has been evaluated, what can be reused, and answers.

use std::fmt;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use crate::chat::{ChatTemplate, Message, RenderOptions};
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{GenerateOptions, Generation, PromptStats};
use crate::model::Model;
use crate::sampler::Sampler;
use crate::token::{SeqId, Token};
use crate::vocab::{TokenizeOptions, Vocab};

/// What to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prompt {
    /// A text, tokenized as a whole one: with the token that begins it, if the model wants one, and no special tokens
    /// read from it.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<Token>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&[Token]> for Prompt {
    fn from(tokens: &[Token]) -> Self {
        Self::Tokens(tokens.to_vec())
    }
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Self {
        Self::Tokens(tokens)
    }
}

/// How to answer a conversation.
#[derive(Debug, Clone, Default)]
pub struct ChatOptions {
    /// How the conversation becomes a prompt.
    pub render: RenderOptions,
    /// How the answer is generated.
    pub generate: GenerateOptions,
}

/// A context with a sampler and the text so far.
///
/// A prompt that begins like the text so far is evaluated only from where it differs: in a chat, each turn costs its
/// own tokens. Where the model's memory cannot go back (recurrent and hybrid models, or a sliding window that has moved
/// on), a prompt that does not continue the text exactly is evaluated from its start.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use llama_rs::chat::Message;
/// use llama_rs::sampler::SamplerBuilder;
/// use llama_rs::session::{ChatOptions, Session};
///
/// let model = llama_rs::Model::load("model.gguf")?;
/// let context = model.context().n_ctx(2048).build()?;
/// let sampler = SamplerBuilder::new().build(&model)?;
/// let mut session = Session::new(context, sampler)?;
/// for piece in session.chat(&[Message::user("Why is the sky blue?")], &ChatOptions::default())? {
///     print!("{}", piece?.text);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Session {
    pub(crate) context: Context,
    pub(crate) sampler: Sampler,
    pub(crate) vocab: Vocab,
    /// The text so far. All but the last tokens are in the context's memory.
    pub(crate) history: Vec<Token>,
    /// How many tokens of `history` the memory holds.
    pub(crate) evaluated: usize,
    template: Option<ChatTemplate>,
}

impl Session {
    /// The sequence of the context that sessions use.
    pub(crate) const SEQ: SeqId = SeqId::FIRST;

    /// Makes a session; the context's first sequence is emptied.
    ///
    /// # Errors
    /// `InvalidArgument` if the sampler was built for another vocabulary; `Unsupported` for models that do not
    /// generate text, or encode their prompt apart.
    pub fn new(mut context: Context, sampler: Sampler) -> Result<Self> {
        let vocab = context.model().vocab();
        check_sampler(&sampler, &vocab)?;
        if context.model().has_encoder() || !context.model().has_decoder() {
            let message = "a session needs a model with a decoder only";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        context.kv().remove(Self::SEQ, ..)?;
        Ok(Self { context, sampler, vocab, history: Vec::new(), evaluated: 0, template: None })
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        self.context.model()
    }

    /// Returns the context.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the sampler.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Replaces the sampler, for example to change the temperature or the grammar.
    ///
    /// # Errors
    /// `InvalidArgument` if it was built for another vocabulary.
    pub fn set_sampler(&mut self, sampler: Sampler) -> Result<()> {
        check_sampler(&sampler, &self.vocab)?;
        self.sampler = sampler;
        Ok(())
    }

    /// Returns the text so far: the last prompt and its answer.
    pub fn tokens(&self) -> &[Token] {
        &self.history
    }

    /// Returns the chat template: the one that was set, or the model's.
    pub fn chat_template(&mut self) -> &ChatTemplate {
        let model = self.context.model();
        self.template.get_or_insert_with(|| ChatTemplate::for_model(model))
    }

    /// Sets the chat template.
    pub fn set_chat_template(&mut self, template: ChatTemplate) {
        self.template = Some(template);
    }

    /// Forgets the text so far.
    ///
    /// # Errors
    /// `Internal` if llama.cpp cannot empty its memory, which it has no reason to.
    pub fn clear(&mut self) -> Result<()> {
        self.history.clear();
        self.evaluated = 0;
        self.context.kv().remove(Self::SEQ, ..).map(drop)
    }

    /// Gives back what the session was made of.
    pub fn into_parts(self) -> (Context, Sampler) {
        (self.context, self.sampler)
    }

    /// Evaluates a prompt and returns the iterator over its answer. The prompt replaces the text so far; what both begin
    /// with is reused. To go on where an answer stopped, pass [`tokens`](Self::tokens).
    ///
    /// # Errors
    /// `PromptTooLong` with both counts; `InvalidArgument` for a prompt without tokens and settings out of range;
    /// `Tokenize`; errors of the evaluation. Cancellation is no error: the answer is empty and
    /// [`finish_reason`](Generation::finish_reason) says so.
    pub fn generate(
        &mut self,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
    ) -> Result<Generation<'_>> {
        let tokens = match prompt.into() {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => self.vocab.tokenize_with(&text, TokenizeOptions::TEXT)?,
        };
        Generation::start(self, tokens, options)
    }

    /// Answers a conversation: renders it with the chat template, and generates.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and `Template` if the template refuses the messages.
    pub fn chat(&mut self, messages: &[Message], options: &ChatOptions) -> Result<Generation<'_>> {
        let vocab = self.vocab.clone();
        let template = self.chat_template();
        let tokens = template.tokenize(&vocab, messages, &options.render)?;
        let stops = template.stop_strings();
        if stops.is_empty() {
            return Generation::start(self, tokens, &options.generate);
        }
        let mut generate = options.generate.clone();
        generate.stop.extend(stops.iter().map(|&stop| stop.to_owned()));
        Generation::start(self, tokens, &generate)
    }

    /// Makes the memory hold exactly `prompt`.
    pub(crate) fn evaluate_prompt(&mut self, prompt: Vec<Token>) -> Result<PromptStats> {
        self.check_prompt(&prompt)?;
        let keep = reusable(&self.history[..self.evaluated], &prompt);
        let reused = self.cut_back(keep)?;
        let started = Instant::now();
        let outcome = self.context.prefill(Self::SEQ, &prompt[reused..]).map(drop);
        if let Err(error) = outcome {
            self.resynchronize();
            return Err(error);
        }
        let time = started.elapsed();
        self.evaluated = prompt.len();
        self.history = prompt;
        Ok(PromptStats { reused, time })
    }

    /// Tokens of the text that are in memory.
    pub(crate) fn evaluated_tokens(&self) -> usize {
        self.evaluated
    }

    /// Evaluates the last token of the text, if it is not in memory yet.
    pub(crate) fn evaluate_last(&mut self) -> Result<()> {
        if self.evaluated == self.history.len() {
            return Ok(());
        }
        let outcome = self.context.prefill(Self::SEQ, &self.history[self.evaluated..]).map(drop);
        match &outcome {
            Ok(()) => self.evaluated = self.history.len(),
            Err(_) => self.resynchronize(),
        }
        outcome
    }

    /// Whether one more token can be evaluated after the text so far.
    pub(crate) fn has_room(&self) -> bool {
        self.model().is_recurrent() || self.history.len() <= self.context.n_ctx_seq()
    }

    fn check_prompt(&self, prompt: &[Token]) -> Result<()> {
        if prompt.is_empty() {
            return Err(Error::invalid("the prompt has no tokens"));
        }
        let n_vocab = self.vocab.len();
        if let Some(token) = prompt.iter().find(|t| t.index().is_none_or(|id| id >= n_vocab)) {
            return Err(Error::invalid(format!(
                "token {token} of the prompt is outside the vocabulary, 0 to {}",
                n_vocab - 1
            )));
        }
        let n_ctx = self.context.n_ctx_seq();
        if prompt.len() > n_ctx && !self.model().is_recurrent() {
            return Err(Error::new(
                ErrorKind::PromptTooLong { prompt: prompt.len(), n_ctx },
                format!(
                    "the prompt has {} tokens but the context holds {n_ctx}; shorten it or use a larger context",
                    prompt.len()
                ),
            ));
        }
        Ok(())
    }

    /// Cuts the memory back to the first `keep` tokens, or empties it where that is impossible; returns what is left.
    fn cut_back(&mut self, keep: usize) -> Result<usize> {
        let mut left = self.evaluated;
        if keep < self.evaluated {
            // Positions fit: they come from the context.
            let removed = self.context.kv().remove(Self::SEQ, keep as i32..);
            left = if matches!(removed, Ok(true)) { keep } else { 0 };
            if left == 0 {
                self.context.kv().remove(Self::SEQ, ..)?;
            }
        }
        self.evaluated = left;
        self.history.truncate(left);
        Ok(left)
    }

    /// Takes over what the memory holds after a failure: a beginning of the text, or nothing.
    fn resynchronize(&mut self) {
        let range = self.context.kv().pos_range(Self::SEQ);
        let held = range.ok().flatten().map_or(0, |range| *range.end() as usize + 1);
        if held != self.evaluated {
            self.evaluated = 0;
            self.history.clear();
            // A failure leaves the memory as it was or empty; anything else is thrown away.
            let _ = self.context.kv().remove(Self::SEQ, ..);
        }
        self.history.truncate(self.evaluated);
    }
}

/// How many tokens of the memory a prompt can use: all that both begin with, but not the whole prompt, since the last
/// token has to be evaluated for its logits.
fn reusable(evaluated: &[Token], prompt: &[Token]) -> usize {
    let common = evaluated.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    common.min(prompt.len().saturating_sub(1))
}

fn check_sampler(sampler: &Sampler, vocab: &Vocab) -> Result<()> {
    if sampler.n_vocab() == vocab.len() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the sampler was built for {} tokens but the model has {}",
        sampler.n_vocab(),
        vocab.len()
    )))
}

const MAGIC: [u8; 8] = *b"SMOLSES\0";
const VERSION: u32 = 1;

impl Session {
    /// Writes the text so far and the memory that goes with it.
    ///
    /// # Errors
    /// `Io` from the writer, and those of [`Context::save_seq`]. `State` if there is no text yet.
    pub fn save(&mut self, mut writer: impl Write) -> Result<()> {
        let tokens = &self.history[..self.evaluated];
        if tokens.is_empty() {
            return Err(Error::new(ErrorKind::State, "there is no text to save yet"));
        }
        let mut bytes = Vec::with_capacity(28 + tokens.len() * 4);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((tokens.len() as u64).to_le_bytes());
        let body: Vec<u8> = tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect();
        bytes.extend(checksum(&body).to_le_bytes());
        bytes.extend(body);
        writer.write_all(&bytes).map_err(|e| Error::io(e, "saving the session failed", None))?;
        self.context.save_seq(Self::SEQ, writer)
    }

    /// Replaces the text and memory by those that [`save`](Self::save) wrote, and returns the number of tokens.
    ///
    /// # Errors
    /// `State` if the bytes are damaged, cut short, or belong to another model, build or cache type; `Io` from the
    /// reader. After any error the session is empty.
    pub fn load(&mut self, reader: impl Read) -> Result<usize> {
        self.clear()?;
        let loaded = self.try_load(reader);
        if loaded.is_err() {
            self.clear()?;
        }
        loaded
    }

    fn try_load(&mut self, mut reader: impl Read) -> Result<usize> {
        let damaged = |what: String| Error::new(ErrorKind::State, what);
        let read_failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::new(ErrorKind::State, "the session file is cut short")
            }
            _ => Error::io(error, "loading the session failed", None),
        };
        let mut magic = [0; 8];
        reader.read_exact(&mut magic).map_err(read_failed)?;
        if magic != MAGIC {
            return Err(damaged("this is not a saved session".into()));
        }
        let mut version = [0; 4];
        reader.read_exact(&mut version).map_err(read_failed)?;
        let version = u32::from_le_bytes(version);
        if version != VERSION {
            return Err(damaged(format!(
                "the session has format {version} but this version reads {VERSION}"
            )));
        }
        let mut numbers = [0; 16];
        reader.read_exact(&mut numbers).map_err(read_failed)?;
        let (count, sum) = numbers.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        let (count, sum) = (number(count), number(sum));
        if count > i32::MAX as u64 {
            return Err(damaged(format!("the session claims {count} tokens")));
        }
        let mut body = Vec::new();
        // Grows with what is there, not with what is claimed.
        reader.by_ref().take(count * 4).read_to_end(&mut body).map_err(read_failed)?;
        if body.len() as u64 != count * 4 {
            return Err(damaged("the session file is cut short".into()));
        }
        if checksum(&body) != sum {
            return Err(damaged("the session is damaged: its checksum is wrong".into()));
        }
        let tokens: Vec<Token> = body
            .chunks_exact(4)
            .map(|bytes| Token(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
            .collect();
        let n_vocab = self.vocab.len();
        if tokens.iter().any(|token| token.index().is_none_or(|id| id >= n_vocab)) {
            return Err(damaged("the session belongs to another model".into()));
        }
        let held = self.context.load_seq(Self::SEQ, reader)?;
        if held != tokens.len() {
            return Err(damaged(format!(
                "the session has {} tokens but the memory of {held}",
                tokens.len()
            )));
        }
        self.history = tokens;
        self.evaluated = held;
        Ok(held)
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(bytes);
    hash.digest()
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("context", &self.context)
            .field("sampler", &self.sampler)
            .field("tokens", &self.history.len())
            .field("evaluated", &self.evaluated)
            .finish_non_exhaustive()
    }
}

/// Tokens a second, 0 where no time was measured.
pub(crate) fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(ids: &[i32]) -> Vec<Token> {
        ids.iter().map(|&id| Token(id)).collect()
    }

    #[test]
    fn the_common_beginning_is_reused_but_never_the_whole_prompt() {
        for (evaluated, prompt, expected) in [
            (&[][..], &[1, 2, 3][..], 0),
            (&[1, 2], &[1, 2, 3], 2),
            (&[1, 2, 3], &[1, 2, 3], 2),
            (&[1, 2, 3, 4], &[1, 2, 3], 2),
            (&[1, 9, 3], &[1, 2, 3], 1),
            (&[9], &[1], 0),
            (&[1], &[1], 0),
        ] {
            assert_eq!(reusable(&tokens(evaluated), &tokens(prompt)), expected);
        }
    }

    #[test]
    fn rates_need_time() {
        assert_eq!(rate(10, Duration::ZERO), 0.0);
        assert_eq!(rate(10, Duration::from_secs(2)), 5.0);
    }
}

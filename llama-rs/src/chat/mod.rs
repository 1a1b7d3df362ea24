//! Chat templates: from messages to the prompt that a model was trained on.

mod engine;
mod message;
mod python_json;
mod strftime;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::model::Model;
use crate::token::Token;
use crate::vocab::{TokenizeOptions, Vocab};
use engine::Engine;

pub use message::{Message, Role};

/// Turns messages into a prompt: the template of a model's file, or ChatML where there is none that works.
///
/// Templates are Jinja as Hugging Face runs it: `trim_blocks`, `lstrip_blocks`, loop controls, Python's string and
/// dict methods, `raise_exception`, `strftime_now` (in UTC), `tojson` with Python's separators. They come with files
/// from anywhere, so they can neither read files nor run without end. Clones share the compiled template.
///
/// # Examples
/// ```
/// use llama_rs::chat::{ChatTemplate, Message, RenderOptions};
///
/// let template = ChatTemplate::chatml();
/// let messages = [Message::system("Be brief."), Message::user("Hello")];
/// assert_eq!(
///     template.render(&messages, &RenderOptions::default())?,
///     "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
/// );
/// # Ok::<(), llama_rs::Error>(())
/// ```
#[derive(Clone)]
pub struct ChatTemplate {
    kind: Kind,
    warning: Option<Arc<str>>,
    // The text that starts a text, which tokenizers may add as well.
    bos: Arc<str>,
}

#[derive(Clone)]
enum Kind {
    Jinja(Arc<Engine>),
    ChatMl,
}

/// What else a rendering depends on.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// Ends the prompt with the start of the assistant's turn. On by default.
    pub add_generation_prompt: bool,
    /// Further variables for the template, for example `enable_thinking`.
    pub variables: Map<String, Value>,
    /// The list of tools offered to the model, in the form its template expects.
    pub tools: Option<Value>,
    /// The time that `strftime_now` shows; the current time if not set.
    pub now: Option<SystemTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, variables: Map::new(), tools: None, now: None }
    }
}

/// The texts of the tokens that templates name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTexts {
    /// Text of the token that starts a text; empty if the model has none.
    pub bos: String,
    /// Text of the token that ends a text; empty if the model has none.
    pub eos: String,
}

impl ChatTemplate {
    /// Compiles a Jinja template and tries it on a short conversation.
    ///
    /// # Errors
    /// `Template` with the line, if it does not compile or fails on a plain conversation. A template that only refuses
    /// certain conversations with `raise_exception` is fine.
    pub fn from_source(source: &str, special: &SpecialTexts) -> Result<Self> {
        let engine = Engine::new(source, special)?;
        engine.probe()?;
        let kind = Kind::Jinja(Arc::new(engine));
        Ok(Self { kind, warning: None, bos: special.bos.as_str().into() })
    }

    /// Takes the template of a model's file, or ChatML if there is none or it does not work: the model stays usable.
    /// [`warning`](Self::warning) tells of the fallback; it is logged as well.
    pub fn from_source_or_chatml(source: Option<&str>, special: &SpecialTexts) -> Self {
        let why = match source.filter(|text| !text.trim().is_empty()) {
            None => {
                "the model has no chat template; using ChatML, which it may not know".to_owned()
            }
            Some(source) => match Self::from_source(source, special) {
                Ok(template) => return template,
                Err(error) => format!("{}; using ChatML instead", error.message()),
            },
        };
        tracing::warn!("{why}");
        Self { warning: Some(why.into()), ..Self::chatml() }
    }

    /// Takes the template of a model's file as [`from_source_or_chatml`](Self::from_source_or_chatml) does.
    pub fn for_model(model: &Model) -> Self {
        let vocab = model.vocab();
        let text = |token: Option<Token>| {
            let bytes = token.and_then(|token| vocab.token_bytes(token, true).ok());
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        let special = SpecialTexts { bos: text(vocab.bos()), eos: text(vocab.eos()) };
        let mut template = Self::from_source_or_chatml(model.chat_template(), &special);
        template.bos = special.bos.into();
        template
    }

    /// The ChatML format, which many models know.
    pub fn chatml() -> Self {
        Self { kind: Kind::ChatMl, warning: None, bos: "".into() }
    }

    /// Returns why the model's own template is not used, if it is not.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Returns stop strings that end an answer where the model has no token for it: those of the built-in ChatML.
    pub fn stop_strings(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Jinja(_) => &[],
            Kind::ChatMl => &["<|im_end|>"],
        }
    }

    /// Renders a conversation.
    ///
    /// The text may start with the beginning-of-text token; tokenize it with
    /// [`tokenize`](Self::tokenize) so that it is not doubled.
    ///
    /// # Errors
    /// `Template` with the template's own words if it refuses the conversation, or with the line where it fails.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        match &self.kind {
            Kind::Jinja(engine) => engine.render(messages, options),
            Kind::ChatMl => Ok(render_chatml(messages, options.add_generation_prompt)),
        }
    }

    /// Renders a conversation and turns it into tokens: special tokens are read from the text, and the
    /// beginning-of-text token comes once, whether the template or the tokenizer adds it.
    ///
    /// # Errors
    /// As [`render`](Self::render), and `Tokenize`.
    pub fn tokenize(
        &self,
        vocab: &Vocab,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<Token>> {
        let text = self.render(messages, options)?;
        let prompt = without_bos(&text, &self.bos, vocab.add_bos());
        vocab.tokenize_with(prompt, TokenizeOptions { add_special: true, parse_special: true })
    }
}

/// The prompt without the beginning-of-text token that the tokenizer is going to add.
fn without_bos<'a>(prompt: &'a str, bos: &str, tokenizer_adds_bos: bool) -> &'a str {
    if !tokenizer_adds_bos || bos.is_empty() {
        return prompt;
    }
    prompt.strip_prefix(bos).unwrap_or(prompt)
}

fn render_chatml(messages: &[Message], add_generation_prompt: bool) -> String {
    let mut text = String::new();
    for message in messages {
        text.push_str("<|im_start|>");
        text.push_str(message.role().as_str());
        text.push('\n');
        text.push_str(message.content());
        text.push_str("<|im_end|>\n");
    }
    if add_generation_prompt {
        text.push_str("<|im_start|>assistant\n");
    }
    text
}

fn template_error(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Template, format!("the chat template {what}"))
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::Jinja(_) => "Jinja",
            Kind::ChatMl => "ChatMl",
        };
        f.debug_struct("ChatTemplate").field("kind", &kind).field("warning", &self.warning).finish()
    }
}

#[cfg(test)]
mod tests;

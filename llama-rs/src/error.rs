//! The error type of the crate: a kind to match on, a message for people, and llama.cpp's own words.

use std::error::Error as StdError;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::log::LogLine;

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for programs to match on.
///
/// The message for people is the [`Error`]'s `Display`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A model could not be loaded although its file passed validation.
    Load,
    /// A file is not GGUF, is damaged, or holds values that no model can have.
    Gguf,
    /// A shard of a split model is missing.
    MissingShards(Vec<PathBuf>),
    /// A file shrank or was replaced while it was in use.
    FileChanged,
    /// An argument is outside its allowed range.
    InvalidArgument,
    /// A configuration is invalid, or asks for what this build or this CPU does not have.
    Config,
    /// The context has no room for what was asked.
    ContextFull {
        /// Positions that the request needs.
        needed: usize,
        /// Positions that a sequence of the context holds.
        n_ctx: usize,
    },
    /// A prompt has more tokens than the context holds.
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Positions that a sequence of the context holds.
        n_ctx: usize,
    },
    /// llama.cpp could not create a context.
    Context,
    /// llama.cpp could not evaluate a batch.
    Decode,
    /// A text could not be tokenized, or a token could not be turned into text.
    Tokenize,
    /// A grammar or JSON schema is invalid, or leaves no token to choose.
    Grammar,
    /// A chat template is invalid or failed while rendering.
    Template,
    /// A saved state is damaged, cut short, or belongs to another model, setting or build.
    State,
    /// The call was stopped through a [`CancelToken`](crate::CancelToken) or by its callback.
    Cancelled,
    /// Memory is not sufficient.
    OutOfMemory {
        /// Bytes that the request needs, where known.
        needed: Option<u64>,
        /// Bytes that the system has available, where known.
        available: Option<u64>,
    },
    /// A file could not be read or written.
    Io(std::io::ErrorKind),
    /// The CPU lacks instructions that the library was built with.
    Cpu,
    /// The model produced logits or embeddings that are not finite numbers.
    NonFinite,
    /// The model or memory type does not support what was asked.
    Unsupported,
    /// A callback of the application panicked; the panic was contained.
    CallbackPanicked,
    /// A fault that should not occur: a C++ exception or a broken invariant, reported and contained.
    Internal,
}

/// An error of this crate.
///
/// `Display` gives one line that names the cause and, where there is one, the file; [`Error::log`] has the lines that
/// llama.cpp printed during the failing call.
#[non_exhaustive]
pub struct Error {
    inner: Box<Inner>,
}

struct Inner {
    kind: ErrorKind,
    message: String,
    path: Option<PathBuf>,
    log: Vec<LogLine>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// Makes an error from its kind and its message, which should name the cause and the way out.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                message: message.into(),
                path: None,
                log: Vec::new(),
                source: None,
            }),
        }
    }

    /// An [`ErrorKind::InvalidArgument`].
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// An [`ErrorKind::Cancelled`].
    pub(crate) fn cancelled(what: &str) -> Self {
        Self::new(ErrorKind::Cancelled, format!("{what} was cancelled"))
    }

    /// An [`ErrorKind::Io`] about `path`.
    pub(crate) fn io(error: std::io::Error, what: &str, path: Option<&Path>) -> Self {
        let kind = ErrorKind::Io(error.kind());
        let mut made = Self::new(kind, format!("{what}: {error}"));
        made.inner.path = path.map(Path::to_path_buf);
        made.inner.source = Some(Box::new(error));
        made
    }

    /// Adds the file that the error is about; `Display` puts it in front.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.inner.path = Some(path.into());
        self
    }

    /// Adds the file that the error is about, if it names none.
    pub(crate) fn or_path(self, path: impl Into<PathBuf>) -> Self {
        match self.path() {
            None => self.with_path(path),
            Some(_) => self,
        }
    }

    /// Adds the lines that llama.cpp printed during the failing call.
    #[must_use]
    pub fn with_log(mut self, log: Vec<LogLine>) -> Self {
        self.inner.log = log;
        self
    }

    /// Adds the error underneath.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.inner.kind
    }

    /// Returns the message without the file's name.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// Returns the file that the error is about, if it is about one.
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }

    /// Returns the lines that llama.cpp printed during the failing call, oldest first.
    pub fn log(&self) -> &[LogLine] {
        &self.inner.log
    }

    /// Tells whether the call was stopped on purpose, by a token or a callback.
    pub fn is_cancelled(&self) -> bool {
        self.inner.kind == ErrorKind::Cancelled
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.inner.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("message", &self.inner.message)
            .field("path", &self.inner.path)
            .field("log", &self.inner.log)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::io(error, "reading or writing failed", None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_the_file_first() {
        let error = Error::new(ErrorKind::Gguf, "not a GGUF file").with_path("a/b.gguf");
        assert_eq!(error.to_string(), "a/b.gguf: not a GGUF file");
        assert_eq!(error.path(), Some(Path::new("a/b.gguf")));
    }

    #[test]
    fn io_errors_keep_their_kind_and_source() {
        let error = Error::from(std::io::Error::from(std::io::ErrorKind::NotFound));
        assert_eq!(error.kind(), &ErrorKind::Io(std::io::ErrorKind::NotFound));
        assert!(StdError::source(&error).is_some());
        assert!(!error.is_cancelled());
    }
}

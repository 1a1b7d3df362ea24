//! What llama.cpp and ggml print: where it goes, and the lines that errors carry.

use std::fmt;

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// Details for developers.
    Debug,
    /// Ordinary progress.
    Info,
    /// Something unexpected that was handled.
    Warn,
    /// The cause of a failure.
    Error,
}

/// One line printed by llama.cpp or ggml, without its line break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Its severity.
    pub level: LogLevel,
    /// Its text.
    pub text: String,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

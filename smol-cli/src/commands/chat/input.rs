//! Lines from the user: edited on a terminal, plain otherwise.

use crate::arguments::MAX_TEXT;
use crate::cli::Global;
use crate::failure::notice;
use crate::interrupt::Idle;
use anyhow::{Context as _, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::PathBuf;

/// What came from the user.
pub enum Line {
    Text(String),
    End,
}

/// The user's lines.
pub enum Input {
    Terminal { editor: Box<DefaultEditor>, history: PathBuf, idle: Idle },
    Pipe { idle: Idle },
}

impl Input {
    /// Opens standard input, and the history of earlier chats if that is a terminal.
    pub fn new(global: &Global, idle: Idle) -> Result<Self> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe { idle });
        }
        let mut editor =
            Box::new(DefaultEditor::new().context("cannot use the terminal for input")?);
        let history = global.cache()?.folder().join("chat-history");
        // There is none the first time, and no chat should fail for it later.
        let _ = editor.load_history(&history);
        Ok(Self::Terminal { editor, history, idle })
    }

    /// Whether a person sits at the other end.
    pub fn is_interactive(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Reads the next line; Ctrl-D on a terminal ends the input.
    pub fn next(&mut self) -> Result<Line> {
        match self {
            Self::Terminal { editor, idle, .. } => {
                match idle.during_terminal(|| editor.readline("> ")) {
                    Ok(line) => {
                        if !line.trim().is_empty() {
                            editor.add_history_entry(&line).context("cannot keep the history")?;
                        }
                        Ok(Line::Text(line))
                    }
                    Err(ReadlineError::Eof) => Ok(Line::End),
                    // It may have been meant for the answer that has just ended.
                    Err(ReadlineError::Interrupted) => {
                        notice("Ctrl-D or /quit leaves the chat");
                        Ok(Line::Text(String::new()))
                    }
                    Err(error) => Err(error).context("cannot read from the terminal"),
                }
            }
            Self::Pipe { idle } => {
                let mut bytes = Vec::new();
                let read =
                    idle.during(|| io::stdin().lock().take(MAX_TEXT).read_until(b'\n', &mut bytes));
                match read.context("cannot read standard input")? {
                    0 => Ok(Line::End),
                    _ => {
                        let line = String::from_utf8(bytes)
                            .context("a line of standard input is not UTF-8 text")?;
                        Ok(Line::Text(line))
                    }
                }
            }
        }
    }

    /// Keeps the lines for later chats.
    pub fn save_history(&mut self) {
        if let Self::Terminal { editor, history, .. } = self {
            // The chat is over: nothing is lost but comfort.
            if let Some(folder) = history.parent() {
                let _ = std::fs::create_dir_all(folder);
            }
            let _ = editor.save_history(history);
        }
    }
}

//! The prompt: from the command line, a file, or standard input.

use crate::failure::Failure;
use anyhow::{Context as _, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

/// Most bytes of a text: far above what any context holds, and far below what fills memory.
pub const MAX_TEXT: u64 = 64 << 20;

/// Where the prompt comes from.
#[derive(Debug, clap::Args)]
pub struct PromptArgs {
    /// Prompt; without -p and -f it is read from standard input
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file", allow_hyphen_values = true)]
    prompt: Option<OsString>,
    /// Read the prompt from a file (`-` is standard input)
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl PromptArgs {
    /// Reads the prompt.
    pub fn read(&self) -> Result<String> {
        let text = match (&self.prompt, &self.file) {
            (Some(prompt), _) => text(prompt.as_encoded_bytes().to_vec(), "the prompt of -p")?,
            (None, Some(file)) if file.as_os_str() != "-" => read_text(file)?,
            (None, file) => from_stdin(file.is_some())?,
        };
        if text.is_empty() {
            let advice = "give one with -p TEXT or -f FILE, or on standard input";
            return Err(Failure::usage("the prompt is empty").advice(advice).into());
        }
        Ok(text)
    }
}

/// Reads a text file.
pub fn read_text(path: &Path) -> Result<String> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let bytes = read_bounded(file).with_context(|| format!("cannot read {shown}"))?;
    text(bytes, &shown.to_string())
}

/// Reads to the end, unless that is beyond [`MAX_TEXT`].
fn read_bounded(reader: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MAX_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_TEXT {
        let message = format!("it is longer than {MAX_TEXT} bytes, the most that a text may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn from_stdin(asked_for: bool) -> Result<String> {
    let advice = "give one with -p TEXT or -f FILE";
    let stdin = io::stdin();
    if stdin.is_terminal() && !asked_for {
        let message = "there is no prompt, and standard input is a terminal";
        return Err(Failure::usage(message).advice(advice).into());
    }
    let bytes = read_bounded(stdin.lock()).with_context(|| {
        Failure::new("cannot read the prompt from standard input").advice(advice)
    })?;
    if bytes.is_empty() {
        let message = "there is no prompt: standard input is closed or empty";
        return Err(Failure::usage(message).advice(advice).into());
    }
    text(bytes, "standard input")
}

/// Takes bytes as text, or says where they stop to be that.
fn text(bytes: Vec<u8>, what: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[at];
        let message = format!("{what} is not UTF-8 text: byte {byte:#04x} at position {at}");
        Failure::usage(message).advice("convert it to UTF-8").into()
    })
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn bytes_that_are_no_text_are_named() {
        assert_eq!(text("naïve".into(), "x").unwrap(), "naïve");
        let error = text(vec![b'a', 0xe6, 0xad], "the prompt of -p").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the prompt of -p is not UTF-8 text: byte 0xe6 at position 1"
        );
    }
}

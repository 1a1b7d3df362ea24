//! How `smol` fails: messages on standard error, what to do next, exit codes.

use crate::interrupt;
use smolmaxxing::log::{LogLevel, LogLine};
use smolmaxxing::{ErrorKind, gguf};
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Exit code of a command that was used wrongly.
const USAGE: u8 = 2;
/// Most lines of llama.cpp that are told with an error.
const MAX_LOG_LINES: usize = 6;

/// A failure with advice, and whose fault it is.
#[derive(Debug)]
pub struct Failure {
    message: String,
    advice: Option<String>,
    code: u8,
}

impl Failure {
    /// Something went wrong: exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), advice: None, code: 1 }
    }

    /// The command was used wrongly: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), advice: None, code: USAGE }
    }

    /// A signal ended the work: the exit code says so.
    pub fn stopped(message: impl Into<String>) -> Self {
        Self { message: message.into(), advice: None, code: interrupt::exit_code() }
    }

    /// Says what to do next.
    pub fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Tells the error on standard error and returns the exit code for it.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read our output has seen enough: `smol models | head -1`.
        return ExitCode::SUCCESS;
    }
    print_error(error);
    ExitCode::from(exit_code(error))
}

/// Tells the error on standard error.
pub fn print_error(error: &anyhow::Error) {
    // If standard error is gone too there is nobody left to tell.
    let _ = write!(io::stderr().lock(), "{}", text(error));
}

fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(failure) = failure(error) {
        return failure.code;
    }
    match library_error(error).map(smolmaxxing::Error::kind) {
        Some(ErrorKind::InvalidArgument) => USAGE,
        Some(ErrorKind::Cancelled) => interrupt::exit_code(),
        _ => 1,
    }
}

/// Prints a warning or a notice on standard error.
pub fn notice(message: impl fmt::Display) {
    let _ = writeln!(io::stderr().lock(), "smol: {message}");
}

/// The error, its causes a line each, and the advice.
fn text(error: &anyhow::Error) -> String {
    let mut text = format!("smol: error: {error}\n");
    if is_bare_io(error) {
        // Only output is written without a word about where.
        text = format!("smol: error: cannot write the output: {error}\n");
    }
    let mut last = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Some libraries repeat the cause in their own message.
        if !last.contains(&cause) {
            text += &format!("  cause: {}\n", cause.trim_end());
        }
        last = cause;
    }
    for line in log_lines(error) {
        if !text.contains(said(&line.text)) {
            text += &format!("  {}: {}\n", line.source.as_str(), line.text.trim_end());
        }
    }
    let advice = failure(error).and_then(|failure| failure.advice.as_deref());
    if let Some(advice) = advice.or_else(|| advice_by_kind(error)) {
        text += &format!("  help: {advice}\n");
    }
    text
}

/// What to do next about errors of the library, which knows no command line.
fn advice_by_kind(error: &anyhow::Error) -> Option<&'static str> {
    if let Some(error) = error.chain().find_map(|e| e.downcast_ref::<gguf::Error>()) {
        use gguf::ErrorKind;
        return match error.kind() {
            ErrorKind::Empty
            | ErrorKind::NotGguf { .. }
            | ErrorKind::HeaderTruncated { .. }
            | ErrorKind::Count { .. }
            | ErrorKind::EmptyKey { .. }
            | ErrorKind::Length { .. }
            | ErrorKind::DataTruncated { .. } => Some("fetch or copy the file again"),
            ErrorKind::MissingShards { .. } => Some("put all files of the model into one folder"),
            ErrorKind::ShardName { .. } => Some("give the files of the model these names"),
            _ => None,
        };
    }
    let advice = match library_error(error)?.kind() {
        ErrorKind::Gguf => {
            "`smol inspect --check FILE` lists all faults; if the file was fetched or copied, do that again"
        }
        ErrorKind::Load => {
            "-v shows all that llama.cpp says; `smol doctor` names its version, which may be older than the model"
        }
        ErrorKind::MissingShards(_) => "put all files of the model into one folder",
        ErrorKind::FileChanged => "start again, and leave the file alone while a model uses it",
        ErrorKind::ContextFull { .. } | ErrorKind::PromptTooLong { .. } => {
            "-c sets the size of the context"
        }
        ErrorKind::OutOfMemory { .. } => {
            "`smol plan` shows what takes memory; a smaller context (-c) takes less, and with --ram SIZE weights that do not \
             fit are read when they are needed"
        }
        ErrorKind::Cpu => "this program was built for another CPU; `smol doctor` shows both",
        ErrorKind::NonFinite => "`smol inspect --check FILE` finds weights that are no numbers",
        ErrorKind::Internal => {
            "this is a fault of smol; please report it with what -v and `smol doctor` print"
        }
        _ => return None,
    };
    Some(advice)
}

/// What a line of llama.cpp says: without the function's name, which it starts with.
fn said(line: &str) -> &str {
    let line = line.trim();
    match line.split_once(": ") {
        Some((function, said)) if !function.contains(char::is_whitespace) => said,
        _ => line,
    }
}

/// Whether there is nothing but an error of the system, without a context.
fn is_bare_io(error: &anyhow::Error) -> bool {
    let error: &(dyn std::error::Error + 'static) = error.as_ref();
    let json = error.downcast_ref::<serde_json::Error>();
    error.is::<io::Error>() || json.is_some_and(|error| error.io_error_kind().is_some())
}

fn failure(error: &anyhow::Error) -> Option<&Failure> {
    error.downcast_ref::<Failure>().or_else(|| error.chain().find_map(|e| e.downcast_ref()))
}

/// The last warnings and errors that llama.cpp printed in the call that failed.
fn log_lines(error: &anyhow::Error) -> Vec<&LogLine> {
    let log = library_error(error).map(smolmaxxing::Error::log).unwrap_or_default();
    let mut lines: Vec<_> = log
        .iter()
        .rev()
        .filter(|line| matches!(line.level, LogLevel::Warn | LogLevel::Error))
        .take(MAX_LOG_LINES)
        .collect();
    lines.reverse();
    lines
}

fn library_error(error: &anyhow::Error) -> Option<&smolmaxxing::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        let json = cause.downcast_ref::<serde_json::Error>();
        io.map(io::Error::kind) == Some(io::ErrorKind::BrokenPipe)
            || json.and_then(serde_json::Error::io_error_kind) == Some(io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn chain_and_advice_a_line_each() {
        let error = Err::<(), _>(io::Error::other("disk on fire"))
            .context(Failure::usage("cannot read x.gguf").advice("put it out"))
            .unwrap_err();
        assert_eq!(
            text(&error),
            "smol: error: cannot read x.gguf\n  cause: disk on fire\n  help: put it out\n"
        );
        assert_eq!(failure(&error).unwrap().code, 2);
    }

    #[test]
    fn errors_of_the_library_get_advice_too() {
        let error = |kind| smolmaxxing::Error::new(kind, "no");
        let full = error(ErrorKind::PromptTooLong { prompt: 2, n_ctx: 1 });
        let expected = "smol: error: no\n  help: -c sets the size of the context\n";
        assert_eq!(text(&full.into()), expected);
        let advised = anyhow::Error::new(error(ErrorKind::Gguf))
            .context(Failure::new("x").advice("do something else"));
        assert!(text(&advised).ends_with("cause: no\n  help: do something else\n"));
        assert_eq!(text(&error(ErrorKind::Cancelled).into()), "smol: error: no\n");
    }

    #[test]
    fn repeated_causes_are_told_once() {
        let error = anyhow::anyhow!("no space left").context("writing x: no space left");
        assert_eq!(text(&error), "smol: error: writing x: no space left\n");
    }

    #[test]
    fn errors_of_output_say_that() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for error in [anyhow::Error::new(full()), serde_json::Error::io(full()).into()] {
            assert_eq!(text(&error), "smol: error: cannot write the output: no storage space\n");
        }
    }

    #[test]
    fn a_line_is_known_without_its_functions_name() {
        assert_eq!(said("load_model: error: no file\n"), "error: no file");
        assert_eq!(said("no function: no file"), "no function: no file");
    }

    #[test]
    fn broken_pipes_are_found_in_the_chain() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::new(pipe()).context("printing")));
        assert!(is_broken_pipe(&anyhow::Error::new(serde_json::Error::io(pipe()))));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}

//! What the four programs share: the options of our own, and the call of upstream's function.
//!
//! Each program is upstream's tool with all of its options and, before an argument `--`, two more: `--smol-config FILE`
//! and `--smol-help`. Without `--smol-config` nothing of ours is installed.

mod arguments;

use std::ffi::{CString, OsString};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use arguments::Arguments;
use llama_rs::tools::{self, Tool};
use llama_rs::{EngineOptions, ErrorKind};

/// Exit code for a configuration or an option of ours that is refused; upstream's tools use 1 for all errors.
const USAGE: u8 = 2;

/// Runs a tool with the arguments of this process.
pub fn main(tool: Tool) -> ExitCode {
    let (code, message) = match run(tool) {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    let _ = writeln!(std::io::stderr(), "{tool}: {message}");
    ExitCode::from(code)
}

fn run(tool: Tool) -> Result<ExitCode, (u8, String)> {
    let refused = |message: String| (USAGE, message);
    let Arguments { config, help, rest } =
        arguments::split(std::env::args_os()).map_err(refused)?;
    if help {
        // A reader that has gone is no error.
        let _ = std::io::stdout().write_all(arguments::help(tool).as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    let arguments =
        rest.into_iter().map(c_string).collect::<Result<Vec<_>, _>>().map_err(refused)?;
    let failed = |error: llama_rs::Error| {
        let usage = matches!(error.kind(), ErrorKind::Config | ErrorKind::Io(_));
        (if usage { USAGE } else { 1 }, error.to_string())
    };
    let options =
        config.map(|path: PathBuf| EngineOptions::from_file(path)).transpose().map_err(failed)?;
    let code = tools::run(tool, &arguments, options.as_ref()).map_err(failed)?;
    // As the system does with what a C program's main returns.
    Ok(ExitCode::from((code & 0xff) as u8))
}

/// The argument as C gets it.
fn c_string(argument: OsString) -> Result<CString, String> {
    #[cfg(unix)]
    let bytes = std::os::unix::ffi::OsStringExt::into_vec(argument);
    #[cfg(not(unix))]
    let bytes = argument
        .into_string()
        .map_err(|argument| format!("{} is not valid Unicode", argument.display()))?
        .into_bytes();
    CString::new(bytes).map_err(|_| "an argument contains a NUL".to_owned())
}

//! What the command line's tests share.

#![allow(dead_code, reason = "each test file uses a part of it")]

use assert_cmd::Command;
use std::path::Path;

/// `smol` with its models in `folder`, away from the user's own.
pub fn smol(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_smol"));
    command.env("HOME", folder).env("XDG_CACHE_HOME", folder);
    command.timeout(std::time::Duration::from_secs(120));
    command
}

/// Runs the command, which must exit with `code`, and returns standard output and error.
pub fn output(command: &mut Command, code: i32) -> (String, String) {
    let output = command.output().expect("the command starts");
    let stdout = String::from_utf8(output.stdout).expect("output is UTF-8");
    let stderr = String::from_utf8(output.stderr).expect("messages are UTF-8");
    assert_eq!(output.status.code(), Some(code), "stdout: {stdout}\nstderr: {stderr}");
    (stdout, stderr)
}

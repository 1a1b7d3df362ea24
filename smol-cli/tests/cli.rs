//! The command line itself: help, usage errors, output that nobody reads.

mod common;

use common::{output, smol};
use std::process::{Command, Stdio};

const COMMANDS: [&[&str]; 21] = [
    &["run"],
    &["chat"],
    &["perplexity"],
    &["bench"],
    &["plan"],
    &["inspect"],
    &["kernels"],
    &["tokenize"],
    &["trace"],
    &["trace", "record"],
    &["trace", "sim"],
    &["vocab"],
    &["vocab", "select"],
    &["pull"],
    &["recut"],
    &["models"],
    &["cache"],
    &["cache", "list"],
    &["cache", "clear"],
    &["doctor"],
    &["completions"],
];

fn run(args: &[&str], code: i32) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    output(smol(folder.path()).args(args), code)
}

#[test]
fn help_texts() {
    let (top, _) = run(&["--help"], 0);
    insta::assert_snapshot!("help", top);
    for command in COMMANDS {
        let (text, _) = run(&[command, &["--help"]].concat(), 0);
        insta::assert_snapshot!(format!("help_{}", command.join("_")), text);
    }
}

#[test]
fn version() {
    let (stdout, _) = run(&["--version"], 0);
    assert_eq!(stdout, format!("smol {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn usage_errors_exit_with_2() {
    for args in [&[][..], &["no-such-command"], &["pull"], &["models", "--no-such-flag"]] {
        let (stdout, stderr) = run(args, 2);
        assert_eq!(stdout, "");
        assert!(!stderr.is_empty());
    }
    let (_, stderr) = run(&["modles"], 2);
    assert!(stderr.contains("models"), "{stderr}");
}

#[test]
fn completions_for_each_shell() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let (stdout, _) = run(&["completions", shell], 0);
        assert!(stdout.contains("doctor"), "{shell}");
    }
}

#[test]
fn models_as_text_and_json() {
    let (text, _) = run(&["models"], 0);
    assert!(text.lines().any(|line| line.starts_with("smollm2-135m") && line.contains("98.4 MB")));
    let (json, _) = run(&["models", "--json"], 0);
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(rows[0]["name"], "smollm2-135m");
    assert_eq!(rows[0]["default"], true);
    assert_eq!(rows[0]["size"], 98_362_432);
    assert_eq!(rows[0]["path"], serde_json::Value::Null);
}

#[test]
fn doctor_as_text_and_json() {
    let (text, _) = run(&["doctor"], 0);
    for word in ["cpu", "cores", "threads", "memory", "disk", "smollm2-135m"] {
        assert!(text.contains(word), "{text}");
    }
    let (json, stderr) = run(&["doctor", "--json"], 0);
    assert_eq!(stderr, "");
    assert_eq!(json.lines().count(), 1);
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(report["cpu"]["default_threads"].as_u64().unwrap() >= 1);
    assert!(report["cpu"]["logical"].as_u64() >= report["cpu"]["physical"].as_u64());
    assert!(report["disk"]["sequential_mb_s"].as_f64().unwrap() > 0.0);
    assert_eq!(report["models"][0]["name"], "smollm2-135m");
}

#[test]
#[cfg(target_os = "linux")]
fn doctor_sees_an_address_space_limit() {
    let folder = tempfile::tempdir().unwrap();
    let (json, _) = output(
        assert_cmd::Command::new("sh")
            .args(["-c", "ulimit -v 200000; exec \"$0\" --cache \"$1\" doctor --json"])
            .arg(env!("CARGO_BIN_EXE_smol"))
            .arg(folder.path()),
        0,
    );
    let report: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["memory"]["address_space_limit"], 200_000 * 1024);
    assert_eq!(report["models"][0]["fits"], false);
}

#[test]
#[cfg(unix)]
fn output_that_nobody_reads_is_no_error() {
    for args in [&["models"][..], &["completions", "bash"], &["doctor", "--json"], &["--help"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_smol"))
            .args(args)
            .env("HOME", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {:?} {stderr}", output.status);
        assert_eq!(stderr, "", "{args:?}");
    }
}

//! `smol chat` with its input from a pipe.

mod common;
#[path = "common/model.rs"]
mod model;
#[cfg(unix)]
#[path = "common/process.rs"]
mod process;

use common::{output, smol};
use model::tiny_model;
use std::path::Path;

fn chat(folder: &Path, args: &[&str], input: &str) -> (String, String) {
    chat_with_code(folder, args, input, 0)
}

fn chat_with_code(folder: &Path, args: &[&str], input: &str, code: i32) -> (String, String) {
    let model = folder.join("tiny.gguf");
    let model = if model.exists() { model } else { tiny_model(folder) };
    let mut command = smol(folder);
    command
        .arg("chat")
        .arg("-m")
        .arg(model)
        .args(["--seed", "1", "-c", "512", "-n", "8", "-t", "1"])
        .args(args);
    output(command.write_stdin(input), code)
}

#[test]
fn answers_each_line_and_ends_with_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let (stdout, stderr) =
        chat(folder.path(), &["--system", "Be brief."], "Hello\n\nAnd you?\n/stats\n");
    assert!(stdout.contains("tokens at"), "{stdout}\n{stderr}");
    assert!(stdout.contains("context: "), "{stdout}");
    // The second turn starts where the first one ended.
    let stats = stdout.lines().find(|line| line.contains("reused")).unwrap();
    assert!(!stats.contains("(0 reused)"), "{stats}");
}

#[test]
fn the_first_message_comes_from_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let (stdout, _) = chat(folder.path(), &["-p", "Hello"], "/stats\n");
    assert!(stdout.contains("tokens at"), "{stdout}");
    let (same, _) = chat(folder.path(), &[], "Hello\n");
    assert_eq!(stdout.lines().next(), same.lines().next());
}

#[test]
fn commands() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("chat.json");
    let input = format!(
        "/help\n/stats\n/nonsense\n/save\n/load /no/such/file\nHello\n/save {0}\n/reset\n/stats\n\
         /load {0}\n/quit\nnever answered\n",
        saved.display()
    );
    // A script sees that something went wrong, although the chat went on.
    let (stdout, stderr) = chat_with_code(folder.path(), &[], &input, 1);
    assert!(stdout.contains("/reset       forget the conversation"), "{stdout}");
    assert_eq!(stdout.matches("no answer yet").count(), 2, "{stdout}");
    for words in [
        "there is no command /nonsense",
        "/save needs the name of a file",
        "cannot read /no/such/file",
        "2 messages",
    ] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    let messages: serde_json::Value =
        serde_json::from_slice(&std::fs::read(saved).unwrap()).unwrap();
    assert_eq!(messages[0]["role"], "user");
    assert_eq!(messages[0]["content"], "Hello");
    assert_eq!(messages[1]["role"], "assistant");
}

#[test]
fn a_conversation_that_is_too_long_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let long = "word ".repeat(2000);
    let (_, stderr) = chat_with_code(folder.path(), &[], &format!("{long}\n/stats\n"), 1);
    assert!(stderr.contains("no longer fits into the context"), "{stderr}");
    assert!(stderr.contains("/reset"), "{stderr}");
}

#[test]
#[cfg(unix)]
fn ctrl_c_stops_the_answer_and_keeps_the_chat() {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_smol"))
        .args(["chat", "--seed", "1", "-c", "4096", "-t", "1", "-m"])
        .arg(tiny_model(folder.path()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdin.write_all(b"Hello\n").unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    stdin.write_all(b"/stats\n/quit\n").unwrap();
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let rest = String::from_utf8_lossy(&rest);
    assert!(rest.contains("stop: cancelled"), "{rest}");
    assert!(child.wait().unwrap().success());
}

/// Starts a chat of the tiny model in `folder` with pipes.
#[cfg(unix)]
fn start(folder: &Path, args: &[&str]) -> std::process::Child {
    use std::process::{Command, Stdio};
    Command::new(env!("CARGO_BIN_EXE_smol"))
        .args(["chat", "--seed", "1", "-t", "1", "-m"])
        .arg(folder.join("tiny.gguf"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    signal(child, "-INT");
}

#[cfg(unix)]
fn signal(child: &std::process::Child, name: &str) {
    let id = child.id().to_string();
    assert!(std::process::Command::new("kill").args([name, &id]).status().unwrap().success());
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_a_chat_that_waits_for_a_pipe() {
    use std::io::{Read as _, Write as _};

    let folder = tempfile::tempdir().unwrap();
    tiny_model(folder.path());
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut child = start(folder.path(), &["-c", "256", "-n", "1"]);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"Hello\n").unwrap();
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut [0; 1]).unwrap();
        process::let_wait(&child);
        signal(&child, name);
        let mut rest = Vec::new();
        stdout.read_to_end(&mut rest).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
    }
}

#[test]
#[cfg(unix)]
fn a_chat_that_is_told_to_end_does_not_wait_for_input() {
    use std::io::{Read as _, Write as _};

    let folder = tempfile::tempdir().unwrap();
    tiny_model(folder.path());
    let mut child = start(folder.path(), &["-c", "4096"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"Hello\n").unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 4]).unwrap();
    signal(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    drop(stdin);
}

/// Whether this process, and so its children, ignore SIGINT.
#[cfg(unix)]
fn starts_deaf() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 2 != 0)
}

#[test]
#[cfg(unix)]
fn ctrl_c_before_the_first_answer_is_not_lost() {
    use std::io::{Read as _, Write as _};
    use std::time::Duration;

    let folder = tempfile::tempdir().unwrap();
    tiny_model(folder.path());
    for delay in (0..100).step_by(4) {
        let mut child = start(folder.path(), &["-c", "4096", "-p", "Hello"]);
        let _ = child.stdin.take().unwrap().write_all(b"/stats\n");
        std::thread::sleep(Duration::from_millis(delay));
        interrupt(&child);
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let code = child.wait().unwrap().code();
        match code {
            // It came before the program had its handler, or while the model was loading.
            None | Some(130) => assert_eq!(text, ""),
            // A program that was started with the signal ignored, as a script's background jobs are, loses it
            // until it has its handler.
            Some(0) if starts_deaf() => {}
            Some(0) => assert!(text.contains("stop: cancelled"), "after {delay} ms: {text}"),
            Some(1) => assert!(text.contains("no answer yet"), "after {delay} ms: {text}"),
            code => panic!("after {delay} ms: {code:?} {text}"),
        }
    }
}

#[test]
fn instructions_may_start_with_a_hyphen() {
    let folder = tempfile::tempdir().unwrap();
    chat(folder.path(), &["--system", "- Be brief."], "/quit\n");
}

#[test]
fn models_without_a_template_get_chatml_and_a_notice() {
    use testkit::tiny::{self, Arch, Template, TinyOptions};
    let folder = tempfile::tempdir().unwrap();
    let options = TinyOptions { byte_level: true, template: Template::None, ..Default::default() };
    tiny::write(&folder.path().join("tiny.gguf"), Arch::Llama, &options).unwrap();
    let (_, stderr) = chat(folder.path(), &[], "/quit\n");
    assert!(stderr.contains("ChatML"), "{stderr}");
}

//! `smol run`: prompts, output, and how an answer ends.

mod common;
#[path = "common/model.rs"]
mod model;
#[cfg(unix)]
#[path = "common/process.rs"]
mod process;

use common::{output, smol};
use model::Bench;
use std::io::Read as _;
use std::process::{Command, Stdio};

impl Bench {
    fn run(&self, args: &[&str]) -> assert_cmd::Command {
        let mut command = smol(self.folder.path());
        // More threads than idle cores wait for each other.
        command.arg("run").arg("-m").arg(&self.model).args(["-t", "1"]).args(args);
        command
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        let (stdout, stderr) = output(self.run(args).arg("--json"), 0);
        assert_eq!(stderr, "");
        assert_eq!(stdout.lines().count(), 1, "{stdout}");
        serde_json::from_str(&stdout).unwrap()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[test]
fn json_has_all_fields_on_one_line() {
    let bench = Bench::new();
    let report = bench.json(&["-p", "Hello", "-n", "8", "--seed", "1"]);
    let keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "text",
            "stop",
            "prompt_tokens",
            "reused_tokens",
            "generated_tokens",
            "prompt_tps",
            "generation_tps",
            "load_s",
            "peak_rss_mb",
            "layouts"
        ]
    );
    assert_eq!(report["stop"], "length");
    assert_eq!(report["generated_tokens"], 8);
    assert_eq!(report["reused_tokens"], 0);
    assert!(report["prompt_tokens"].as_u64().unwrap() > 1);
    for field in ["prompt_tps", "generation_tps", "load_s"] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}");
    }
}

#[test]
fn layouts_are_told_and_chosen() {
    use testkit::tiny::{self, Arch, TinyOptions};
    let mut bench = Bench::new();
    let weights = smolmaxxing::gguf::TensorType::Q2_0;
    let options = TinyOptions { weights, pure: true, ..TinyOptions::default() };
    bench.model = bench.folder.path().join("q2_0.gguf");
    tiny::write(&bench.model, Arch::Qwen3, &options).unwrap();

    let told = |args: &[&str]| {
        let report = bench.json(&[&["-p", "Hello", "-n", "1"], args].concat());
        let first = report["layouts"]["matrices"][0]["layout"].as_str().unwrap().to_owned();
        (first, report["layouts"]["slow_mb"].as_f64().unwrap())
    };
    let (layout, slow) = told(&[]);
    assert!(layout.starts_with("q2_0-"), "{layout}");
    assert_eq!(slow, 0.0);
    let (plain, slow) = told(&["--layouts", "off"]);
    assert_eq!(plain, "q2_0");
    assert!(slow > 0.0);
    assert_eq!(told(&["--layouts", &format!("-{layout}")]).0, "q2_0");
    let (_, stderr) = output(bench.run(&["-p", "Hello", "--layouts", "q9-9"]).arg("--json"), 2);
    assert!(stderr.contains("q9-9") && stderr.contains(&layout), "{stderr}");

    let inspect = |args: &[&str]| {
        let mut command = smol(bench.folder.path());
        command.arg("inspect").arg(&bench.model).arg("--layouts").args(args);
        output(&mut command, 0).0
    };
    let table = inspect(&[]);
    assert!(table.contains(&layout) && table.contains("off the fast path"), "{table}");
    let report: serde_json::Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    let weights = report["weights"].as_array().unwrap();
    assert!(weights.iter().any(|weight| weight["layout"] == layout.as_str()), "{report}");
    assert!(weights.iter().all(|weight| weight["slow"] == false), "{report}");
}

#[test]
fn an_answer_of_one_token_has_no_generation_speed() {
    let report = Bench::new().json(&["-p", "Hello", "-n", "1", "--seed", "1"]);
    assert_eq!(report["generated_tokens"], 1);
    assert_eq!(report["generation_tps"], 0.0);
}

#[test]
fn text_is_the_answer_and_a_line_break() {
    let bench = Bench::new();
    let args = ["-p", "Hello", "-n", "8", "--temp", "0"];
    let report = bench.json(&args);
    let (stdout, stderr) = output(&mut bench.run(&args), 0);
    assert_eq!(stdout, format!("{}\n", report["text"].as_str().unwrap()));
    assert_eq!(stderr, "");
}

/// Arguments with a short, deterministic completion after them.
fn with<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [extra, &["-n", "6", "--temp", "0", "--raw"]].concat()
}

#[test]
fn the_prompt_comes_from_anywhere() {
    let bench = Bench::new();
    let (expected, _) = output(&mut bench.run(&with(&["-p", "Once upon"])), 0);
    let file = bench.write("prompt.txt", "Once upon");
    assert_eq!(output(&mut bench.run(&with(&["-f", &file])), 0).0, expected);
    for args in [with(&[]), with(&["-f", "-"])] {
        let mut run = bench.run(&args);
        assert_eq!(output(run.write_stdin("Once upon"), 0).0, expected);
    }
    // A prompt may begin with a dash.
    output(&mut bench.run(&with(&["-p", "--help"])), 0);
}

#[test]
fn chat_templates_make_the_prompt_longer() {
    let bench = Bench::new();
    let raw = bench.json(&["-p", "Hello", "-n", "1", "--raw"]);
    let chat = bench.json(&["-p", "Hello", "-n", "1"]);
    assert!(chat["prompt_tokens"].as_u64() > raw["prompt_tokens"].as_u64());
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let bench = Bench::new();
    let text =
        |seed: &str| bench.json(&["-p", "Hello", "-n", "20", "--seed", seed])["text"].clone();
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8"));
}

#[test]
fn no_tokens_are_an_empty_answer() {
    let report = Bench::new().json(&["-p", "Hello", "-n", "0"]);
    assert_eq!((&report["text"], &report["stop"]), (&"".into(), &"length".into()));
    assert_eq!(report["generated_tokens"], 0);
}

#[test]
fn a_full_context_ends_the_answer() {
    let bench = Bench::new();
    let grammar = bench.write("endless.gbnf", "root ::= [a-z] root");
    let report = bench.json(&["-p", "x", "-c", "256", "--grammar", &grammar, "-n", "1000"]);
    assert_eq!(report["stop"], "length");
    let tokens = report["prompt_tokens"].as_u64().unwrap();
    let generated = report["generated_tokens"].as_u64().unwrap();
    assert!((255..=257).contains(&(tokens + generated)), "{report}");
}

#[test]
fn grammars_and_schemas_form_the_answer() {
    let bench = Bench::new();
    let grammar = bench.write("yesno.gbnf", "root ::= \"yes\" | \"no\"");
    let report = bench.json(&["-p", "x", "-n", "64", "--grammar", &grammar]);
    assert!(["yes", "no"].contains(&report["text"].as_str().unwrap()), "{report}");
    assert!(["grammar", "eos"].contains(&report["stop"].as_str().unwrap()), "{report}");
    let schema = bench.write("color.json", r#"{"enum": ["red", "green"]}"#);
    let report = bench.json(&["-p", "x", "-n", "64", "--json-schema", &schema]);
    let answer: serde_json::Value = serde_json::from_str(report["text"].as_str().unwrap()).unwrap();
    assert!(["red", "green"].contains(&answer.as_str().unwrap()));
}

#[test]
#[cfg(unix)]
fn signals_end_with_what_was_generated() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        ends_with_what_was_generated(signal, code);
    }
}

#[cfg(unix)]
fn ends_with_what_was_generated(signal: &str, code: i32) {
    let bench = Bench::new();
    let grammar = bench.write("endless.gbnf", "root ::= [a-z] root");
    let mut child = Command::new(env!("CARGO_BIN_EXE_smol"))
        .args(bench.run(&["-p", "x", "-c", "32768", "--grammar", &grammar]).get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 4];
    stdout.read_exact(&mut first).unwrap();
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with('\n'), "{rest}");
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(code), "{stderr}");
    assert_eq!(stderr, "");
    // The next run is not told that this one was killed.
    let (_, stderr) = output(&mut bench.run(&["-p", "x", "-n", "1"]), 0);
    assert_eq!(stderr, "");
}

#[test]
#[cfg(unix)]
fn ctrl_c_is_cancelled_in_json() {
    let bench = Bench::new();
    let grammar = bench.write("endless.gbnf", "root ::= [a-z] root");
    let child = Command::new(env!("CARGO_BIN_EXE_smol"))
        .args(bench.run(&["-p", "x", "-c", "32768", "--json", "--grammar", &grammar]).get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Long enough for the first tokens, and far from the end of the context.
    process::let_compute(&child, std::time::Duration::from_millis(600));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["stop"], "cancelled");
}

#[test]
#[cfg(unix)]
fn output_that_nobody_reads_ends_the_answer() {
    let bench = Bench::new();
    let grammar = bench.write("endless.gbnf", "root ::= [a-z] root");
    let mut child = Command::new(env!("CARGO_BIN_EXE_smol"))
        .args(bench.run(&["-p", "x", "-c", "32768", "--grammar", &grammar]).get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 4]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

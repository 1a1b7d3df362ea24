//! Perplexity, benchmarks, contents and tokens.

mod common;
#[path = "common/model.rs"]
mod model;

use common::{output, smol};
use model::Bench;

impl Bench {
    fn smol(&self, command: &str, args: &[&str]) -> assert_cmd::Command {
        let mut smol = smol(self.folder.path());
        smol.arg(command).arg("-m").arg(&self.model).args(args);
        if matches!(command, "perplexity" | "bench") && !args.contains(&"-t") {
            // More threads than idle cores wait for each other.
            smol.args(["-t", "1"]);
        }
        smol
    }

    fn json(&self, command: &str, args: &[&str]) -> serde_json::Value {
        let (stdout, stderr) = output(self.smol(command, args).arg("--json"), 0);
        assert_eq!(stderr, "");
        assert_eq!(stdout.lines().count(), 1);
        serde_json::from_str(&stdout).unwrap()
    }

    fn text(&self) -> String {
        let path = self.folder.path().join("text.txt");
        std::fs::write(&path, "It was the best of times, it was the worst. ".repeat(80)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

#[test]
fn perplexity_of_a_text() {
    let bench = Bench::new();
    let text = bench.text();
    let report = bench.json("perplexity", &["-f", &text, "-c", "128"]);
    for field in ["perplexity", "stderr", "bits_per_byte"] {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert!(report["tokens"].as_u64() > report["scored_tokens"].as_u64());
    let (stdout, _) = output(&mut bench.smol("perplexity", &["-f", &text, "-c", "128"]), 0);
    assert!(
        stdout.starts_with(&format!("perplexity {:.4}", report["perplexity"].as_f64().unwrap()))
    );
}

#[test]
fn perplexity_of_the_shortest_chunks() {
    let bench = Bench::new();
    let text = bench.text();
    let report = bench.json("perplexity", &["-f", &text, "-c", "4"]);
    let tokens = report["tokens"].as_u64().unwrap();
    assert_eq!(report["chunks"].as_u64(), Some(tokens / 4));
    // Of a chunk's second half the last token has no successor.
    assert_eq!(report["scored_tokens"].as_u64(), Some(tokens / 4));
}

#[test]
fn perplexity_of_a_short_text_names_the_counts() {
    let bench = Bench::new();
    let path = bench.folder.path().join("short.txt");
    for (text, words) in [("too short", "two chunks of 512"), ("", "is empty")] {
        std::fs::write(&path, text).unwrap();
        let mut command = bench.smol("perplexity", &["-f", path.to_str().unwrap()]);
        let (_, stderr) = output(&mut command, 2);
        assert!(stderr.contains(words), "{stderr}");
    }
    let (_, stderr) = output(&mut bench.smol("perplexity", &[]), 2);
    assert!(stderr.contains("--file"), "{stderr}");
}

#[test]
fn bench_has_the_fields_of_llama_bench() {
    let bench = Bench::new();
    let rows = bench.json("bench", &["-p", "32,0", "-n", "4", "-r", "3", "-t", "1"]);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, (prompt, generate)) in rows.iter().zip([(32, 0), (0, 4)]) {
        assert_eq!((&row["n_prompt"], &row["n_gen"]), (&prompt.into(), &generate.into()));
        assert_eq!(row["n_threads"], 1);
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 3);
        let speed = f64::from(prompt + generate);
        let nanoseconds = row["samples_ns"][0].as_f64().unwrap();
        let ratio = row["samples_ts"][0].as_f64().unwrap() / (speed / nanoseconds * 1e9);
        assert!((ratio - 1.0).abs() < 1e-6, "{ratio}");
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0);
        for field in ["build_commit", "cpu_info", "model_filename", "model_type", "test_time"] {
            assert!(row[field].is_string(), "{field}");
        }
        for field in ["model_size", "model_n_params", "n_batch", "n_ubatch", "avg_ns", "stddev_ns"]
        {
            assert!(row[field].is_u64(), "{field}");
        }
        assert!(row["load_s"].is_f64());
    }
    let (table, _) = output(&mut bench.smol("bench", &["-p", "32", "-n", "4", "-r", "1"]), 0);
    assert!(table.contains("| pp32 |") && table.contains("|  tg4 |"), "{table}");
    assert!(table.contains("load "), "{table}");
}

#[test]
fn bench_refuses_absurd_numbers() {
    let bench = Bench::new();
    for args in [["-r", "0"], ["-t", "0"], ["-p", "x"], ["-n", "99999999999"]] {
        output(&mut bench.smol("bench", &args), 2);
    }
}

#[test]
fn contents_as_text_and_json() {
    let bench = Bench::new();
    let inspect = |args: &[&str]| {
        let mut command = smol(bench.folder.path());
        command.arg("inspect").arg(&bench.model).args(args);
        output(&mut command, 0).0
    };
    let text = inspect(&["--check"]);
    for words in ["architecture   llama", "general.architecture", "token_embd.weight", "no fault"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let report: serde_json::Value = serde_json::from_str(&inspect(&["--json"])).unwrap();
    assert_eq!(report["architecture"], "llama");
    assert_eq!(report["metadata"]["general.architecture"], "llama");
    assert!(report["findings"].is_null());
    let tensors = report["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|tensor| tensor["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["tensor_bytes"], bytes);
    let report: serde_json::Value = serde_json::from_str(&inspect(&["--json", "--check"])).unwrap();
    assert_eq!(report["findings"], serde_json::json!([]));
}

#[test]
fn tokens_of_a_text() {
    let bench = Bench::new();
    let rows = bench.json("tokenize", &["-p", "Hello 🌍", "--no-special"]);
    let bytes: String =
        rows.as_array().unwrap().iter().map(|row| row["bytes"].as_str().unwrap()).collect();
    let expected: String = "Hello 🌍".bytes().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(bytes, expected);
    let (text, _) = output(bench.smol("tokenize", &[]).write_stdin("Hello"), 0);
    assert!(!text.is_empty());
}

//! `--ram` and the options of the expert pager.

mod common;
#[path = "common/model.rs"]
mod model;

use common::{output, smol};
use model::Bench;
use std::path::PathBuf;
use testkit::tiny::{self, Arch, TinyOptions};

/// Experts of each layer of [`mixture`], and those that a token uses.
const EXPERTS: u32 = 16;
const USED: u64 = 2;

fn mixture(bench: &Bench) -> PathBuf {
    let path = bench.folder.path().join("mixture.gguf");
    let options = TinyOptions { experts: EXPERTS, ..TinyOptions::default() };
    tiny::write(&path, Arch::LlamaMoe, &options).unwrap();
    path
}

/// A folder with a mixture of experts and a text.
struct Mixture {
    bench: Bench,
    path: PathBuf,
}

impl Mixture {
    fn new() -> Self {
        let bench = Bench::new();
        let path = mixture(&bench);
        let text = "It was the best of times, it was the worst of times. ".repeat(40);
        std::fs::write(bench.folder.path().join("text.txt"), text).unwrap();
        Self { bench, path }
    }

    fn file(&self, name: &str) -> String {
        self.bench.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn smol(&self, command: &[&str], args: &[&str]) -> assert_cmd::Command {
        let mut smol = smol(self.bench.folder.path());
        smol.args(command).arg("-m").arg(&self.path).args(["-t", "1"]).args(args);
        smol
    }

    fn json(&self, command: &[&str], args: &[&str]) -> serde_json::Value {
        let (stdout, stderr) = output(self.smol(command, args).arg("--json"), 0);
        assert_eq!(stderr, "");
        assert_eq!(stdout.lines().count(), 1);
        serde_json::from_str(&stdout).unwrap()
    }

    fn refused(&self, args: &[&str], code: i32) -> String {
        let (stdout, stderr) = output(&mut self.smol(&["run", "-p", "x", "-n", "1"], args), code);
        assert_eq!(stdout, "");
        stderr
    }
}

/// What every `pager` object has.
fn check_statistics(pager: &serde_json::Value) {
    for count in ["hits", "misses", "useful", "late", "wasted", "streamed", "bytes_read", "slots"] {
        assert!(pager[count].is_u64(), "{count}: {pager}");
    }
    for number in ["miss_rate", "mb_per_token", "wait_ms_per_token", "pool_mb"] {
        assert!(pager[number].as_f64().unwrap() >= 0.0, "{number}: {pager}");
    }
    assert!(pager["io_mode"].is_string(), "{pager}");
    assert!(pager["readers"].as_u64().unwrap() >= 1, "{pager}");
}

#[test]
fn bad_values_are_usage_errors_with_the_way_out() {
    let mixture = Mixture::new();
    for (args, words) in [
        (&["--ram", "900"][..], "`900` has no unit; write 900MiB, 900MB or 900B"),
        (&["--ram", "lots"], "`lots` is no size; write it as 900MiB or 1.5GB"),
        (&["--ram", "-1GiB"], "`-1GiB` is no size"),
        (&["--ram", "3Gbit"], "`Gbit` is no unit of sizes"),
        (&["--expert-pool", "0"], "--expert-pool"),
        (&["--expert-pool", "-3"], "--expert-pool"),
        (&["--expert-policy", "slrru"], "'slru'"),
        (&["--expert-policy", "mru"], "[possible values: lru, lfu, decayed, slru]"),
        (&["--expert-scope", "model"], "[possible values: layer, global]"),
        (&["--expert-bias", "nan"], "allowed are 0 to 16"),
        (&["--expert-bias", "-0.1"], "allowed are 0 to 16"),
        (&["--expert-bias", "17"], "allowed are 0 to 16"),
        (&["--expert-keep-top", "1"], "--expert-bias <X>"),
        (&["--experts", "0"], "--experts"),
        (&["--prefetch", "sometimes"], "[possible values: off, on, auto]"),
        (&["--readers", "0"], "1..=64"),
        (&["--readers", "65"], "1..=64"),
    ] {
        let stderr = mixture.refused(args, 2);
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn models_without_experts_have_nothing_to_page() {
    let bench = Bench::new();
    for args in [&["--expert-pool", "4"][..], &["--prefetch", "off"], &["--pager-verify"]] {
        let mut command = smol(bench.folder.path());
        command.args(["run", "-p", "x", "-n", "1", "-m"]).arg(&bench.model).args(args);
        let (_, stderr) = output(&mut command, 2);
        assert!(stderr.contains("tiny.gguf"), "{stderr}");
        assert!(stderr.contains("this llama model has no experts that could be paged"), "{stderr}");
    }
    let mut command = smol(bench.folder.path());
    command.args(["run", "-p", "x", "-n", "1", "--experts", "2", "-m"]).arg(&bench.model);
    let (_, stderr) = output(&mut command, 2);
    assert!(stderr.contains("2 experts a token: this llama model has no experts"), "{stderr}");
}

#[test]
fn fewer_experts_need_no_pager() {
    let mixture = Mixture::new();
    let stderr = mixture.refused(&["--experts", "3"], 2);
    assert!(
        stderr.contains(&format!("uses {USED} of {EXPERTS}; allowed are 1 to {USED}")),
        "{stderr}"
    );
    let run = |args: &[&str]| {
        let args = [&["-p", "Once", "--raw", "-n", "24", "--temp", "0"], args].concat();
        mixture.json(&["run"], &args)
    };
    let plain = run(&[]);
    assert_eq!(plain.get("pager"), None);
    assert_eq!(run(&["--experts", "2"])["text"], plain["text"]);
    assert_ne!(run(&["--experts", "1"])["text"], plain["text"]);
}

#[test]
fn perplexity_tells_the_cost_of_fewer_experts() {
    let mixture = Mixture::new();
    let text = mixture.file("text.txt");
    let args = ["-f", &text, "-c", "64", "--chunks", "3"];
    let plain = mixture.json(&["perplexity"], &args);
    assert_eq!(plain["chunks"], 3);
    assert_eq!(plain.get("baseline"), None);
    let args = [&args[..], &["--experts", "1"]].concat();
    let report = mixture.json(&["perplexity"], &args);
    assert_eq!(report["baseline"]["perplexity"], plain["perplexity"]);
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let ratio = number(&report["perplexity"]) / number(&plain["perplexity"]);
    assert!(ratio != 1.0 && (number(&report["perplexity_ratio"]) - ratio).abs() < 1e-12);
    let (stdout, _) = output(&mut mixture.smol(&["perplexity"], &args), 0);
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{stdout}");
    assert!(lines[1].ends_with("tokens scored, without --experts 1"), "{stdout}");
    assert_eq!(lines[2], format!("cost of --experts 1: perplexity times {ratio:.4}"));
}

#[test]
fn too_little_ram_is_refused_with_the_numbers() {
    let mixture = Mixture::new();
    let stderr = mixture.refused(&["--ram", "8MiB"], 1);
    for words in [
        "the model does not fit into --ram 8.0 MiB",
        "8.0 MiB of RAM are too little: at least",
        "weights that every token uses take",
        "a context of",
        "the pool of experts at least",
        "MiB would do; a smaller context (-c)",
    ] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    // The advice is good.
    let advice = stderr.split_once("help: --ram ").unwrap().1.split_once(' ').unwrap().0;
    output(&mut mixture.smol(&["run", "-p", "x", "-n", "1"], &["--ram", advice]), 0);
}

#[test]
fn dense_models_fit_or_are_refused() {
    let bench = Bench::new();
    let run = |ram: &str, code| {
        let mut command = smol(bench.folder.path());
        command.args(["run", "-p", "x", "-n", "1", "-t", "1", "--ram", ram, "-m"]);
        output(command.arg(&bench.model), code).1
    };
    assert_eq!(run("16GB", 0), "");
    let stderr = run("16MB", 1);
    assert!(stderr.contains("15.3 MiB of RAM are too little: at least"), "{stderr}");
    assert!(!stderr.contains("expert"), "{stderr}");
}

#[test]
fn a_pool_that_is_asked_for_must_fit_too() {
    let mixture = Mixture::new();
    let args = ["-p", "Once", "--raw", "-n", "4", "-c", "256", "--ram", "512MiB"];
    let report = mixture.json(&["run"], &[&args[..], &["--expert-pool", "4"]].concat());
    check_statistics(&report["pager"]);
    // With nothing but enough RAM there is nothing to page.
    assert_eq!(mixture.json(&["run"], &args).get("pager"), None);
    let stderr = mixture.refused(&["--ram", "16MiB", "--expert-pool", "4"], 1);
    assert!(stderr.contains("of RAM are too little"), "{stderr}");
}

#[test]
fn a_pool_gives_the_same_text_and_statistics() {
    let mixture = Mixture::new();
    let args = ["-p", "Once upon a time", "--raw", "-n", "24", "--temp", "0"];
    let plain = mixture.json(&["run"], &args);
    for policy in ["lru", "lfu", "decayed", "slru"] {
        let pool = ["--expert-pool", "4", "--expert-policy", policy, "--expert-scope", "global"];
        let more = ["--readers", "2", "--prefetch", "off", "--pager-verify"];
        let paged = mixture.json(&["run"], &[&args[..], &pool, &more].concat());
        assert_eq!(paged["text"], plain["text"], "{policy}");
        check_statistics(&paged["pager"]);
        assert!(paged["pager"]["misses"].as_u64().unwrap() > 0, "{policy}");
        assert!(paged["pager"]["bytes_read"].as_u64().unwrap() > 0, "{policy}");
        assert_eq!(paged["pager"]["readers"], 2, "{policy}");
    }
}

#[test]
fn bench_has_statistics_of_each_test() {
    let mixture = Mixture::new();
    let args = ["-p", "16", "-n", "4", "-r", "2", "--expert-pool", "4"];
    let rows = mixture.json(&["bench"], &args);
    for (row, tokens) in rows.as_array().unwrap().iter().zip([16, 4]) {
        check_statistics(&row["pager"]);
        // Two repetitions, without the one that warms up.
        assert_eq!(row["pager"]["tokens"], 2 * tokens, "{row}");
    }
    let rows = mixture.json(&["bench"], &["-p", "16", "-n", "0", "-r", "1"]);
    assert_eq!(rows[0].get("pager"), None);
}

#[test]
fn perplexity_tells_the_cost_of_a_bias() {
    let mixture = Mixture::new();
    let text = mixture.file("text.txt");
    let args = ["-f", &text, "-c", "32", "--chunks", "2", "--expert-pool", "4"];
    let bias = ["--expert-bias", "0.5", "--expert-keep-top", "0"];
    let report = mixture.json(&["perplexity"], &[&args[..], &bias].concat());
    for pager in [&report["pager"], &report["baseline"]["pager"]] {
        check_statistics(pager);
        // One by one, so that the bias is what it is when text is generated.
        assert_eq!(pager["tokens"], 64, "{pager}");
    }
    let misses = |pass: &serde_json::Value| pass["pager"]["misses"].as_u64().unwrap();
    assert!(misses(&report) < misses(&report["baseline"]), "{report}");
    assert!(report["perplexity_ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn what_a_model_uses_is_recorded() {
    let mixture = Mixture::new();
    let (trace, text) = (mixture.file("a.trace"), mixture.file("text.txt"));
    let record = |args: &[&str]| {
        mixture.json(&["trace", "record"], &[&["-o", &trace, "--expert-pool", "4"], args].concat())
    };
    let report = record(&["--text", &text, "-n", "40", "-c", "32"]);
    assert_eq!(report["tokens"], 40);
    assert_eq!(report["bytes"], std::fs::metadata(&trace).unwrap().len());
    check_statistics(&report["pager"]);
    let report = record(&["-p", "Once", "--raw", "-n", "6", "--temp", "0"]);
    assert!(report["tokens"].as_u64().unwrap() >= 6);

    let warm = ["-p", "Once", "--raw", "-n", "6", "--temp", "0", "--expert-pool", "4"];
    let cold = mixture.json(&["run"], &warm);
    let warm = mixture.json(&["run"], &[&warm[..], &["--warm", &trace]].concat());
    assert_eq!(warm["text"], cold["text"]);
    check_statistics(&warm["pager"]);

    std::fs::write(&trace, "no trace").unwrap();
    let stderr = mixture.refused(&["--warm", &trace], 2);
    assert!(stderr.contains("a.trace: this is not a trace of experts"), "{stderr}");
    assert_eq!(stderr.matches("a.trace").count(), 1, "{stderr}");
    let stderr = mixture.refused(&["--warm", &mixture.file("none.trace")], 1);
    assert!(stderr.contains("none.trace"), "{stderr}");
}

#[test]
fn recording_nothing_is_refused() {
    let mixture = Mixture::new();
    let trace = mixture.file("a.trace");
    let refused = |args: &[&str], code| {
        output(&mut mixture.smol(&["trace", "record", "-o", &trace], args), code).1
    };
    assert!(refused(&["-p", "x", "-n", "0"], 2).contains("nothing to record"));
    assert!(refused(&["-p", "x", "--text", "y"], 2).contains("--text"));
    assert!(refused(&["--text", "no-such-file"], 1).contains("cannot read no-such-file"));
    let empty = mixture.file("empty.txt");
    std::fs::write(&empty, "").unwrap();
    assert!(refused(&["--text", &empty], 2).contains("empty.txt is empty"));
    let text = mixture.file("text.txt");
    let mut onto_text = mixture.smol(&["trace", "record", "-o", &text], &["--text", &text]);
    assert!(output(&mut onto_text, 2).1.contains("text.txt is the input itself"));
}

/// What a run misses is what the simulation of its trace misses.
#[test]
fn the_simulation_misses_what_the_run_missed() {
    let mixture = Mixture::new();
    let (trace, text) = (mixture.file("a.trace"), mixture.file("text.txt"));
    for (policy, scope) in [("lru", "layer"), ("decayed", "global"), ("slru", "layer")] {
        let pager = ["--prefetch", "off", "--expert-policy", policy, "--expert-scope", scope];
        let text = ["-o", &trace, "--text", &text, "-n", "80", "-c", "32", "--expert-pool", "5"];
        let run = mixture.json(&["trace", "record"], &[&text[..], &pager].concat());
        let args = ["--pool", "5", "--policy", policy, "--scope", scope, "--json"];
        let mut smol = smol(mixture.bench.folder.path());
        let (json, _) = output(smol.args(["trace", "sim", &trace]).args(args), 0);
        let sim: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(sim["generated_tokens"], 80);
        for count in ["hits", "misses"] {
            assert_eq!(sim["results"][0][count], run["pager"][count], "{policy} {scope}: {count}");
        }
        // The recorded reads and times give the speeds.
        assert!(sim["results"][0]["tokens_s"].as_f64().unwrap() > 0.0, "{sim}");
    }
}

//! `smol plan`: what it says, and that the memory it foresees is what a run takes.

mod common;
#[path = "common/model.rs"]
mod model;

use common::{output, smol};
use model::Bench;
use serde_json::Value;
use std::path::Path;

fn plan(bench: &Bench, model: &Path, args: &[&str]) -> Value {
    let mut command = smol(bench.folder.path());
    command.args(["plan", "--json", "-m"]).arg(model).args(args);
    let (stdout, stderr) = output(&mut command, 0);
    assert_eq!(stderr, "");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn a_plan_has_parts_bounds_and_speeds() {
    let bench = Bench::new();
    let plan = plan(&bench, &bench.model, &["-c", "256"]);
    assert_eq!(plan["mode"]["kind"], "resident");
    assert_eq!(plan["flash_mb_per_token"], 0.0);
    assert!(plan["flash"].is_null());
    let parts = plan["parts"].as_object().unwrap();
    let sum: u64 = parts.values().map(|part| part.as_u64().unwrap()).sum();
    assert_eq!(plan["total"].as_u64(), Some(sum));
    let speed = plan["memory"]["mb_s"].as_f64().unwrap();
    let bound = speed / plan["ram_mb_per_token"].as_f64().unwrap();
    assert!((plan["bounds"]["tokens_per_s"].as_f64().unwrap() / bound - 1.0).abs() < 1e-6);
    // Measured once.
    let speeds = bench.folder.path().join("smolmaxxing").join("speeds.json");
    let kept: Value = serde_json::from_slice(&std::fs::read(&speeds).unwrap()).unwrap();
    assert_eq!(kept["ram"]["mb_s"].as_f64(), Some(speed));
}

#[test]
fn people_get_lines() {
    let bench = Bench::new();
    let mut command = smol(bench.folder.path());
    command.args(["plan", "-c", "256", "-m"]).arg(&bench.model);
    let (stdout, _) = output(&mut command, 0);
    for words in ["with all weights in memory", "256 tokens", "per token", "at most", "tokens/s"] {
        assert!(stdout.contains(words), "{words}: {stdout}");
    }
}

#[test]
fn what_does_not_fit_is_refused_with_the_numbers() {
    let bench = Bench::new();
    let mut command = smol(bench.folder.path());
    command.args(["plan", "--ram", "8MiB", "-m"]).arg(&bench.model);
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(stderr.contains("8.0 MiB of RAM are too little: at least"), "{stderr}");
}

/// On one kind of machine: elsewhere the program itself has another size, or an emulator comes on top.
#[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
mod measured {
    use super::*;
    use testkit::tiny::{self, Arch, TinyOptions};

    /// Runs a prompt that fills the batch, and returns MB: as planned, and at the peak.
    fn compare(bench: &Bench, model: &Path, args: &[&str]) -> (f64, f64) {
        let plan = plan(bench, model, args);
        assert_eq!(plan["mode"]["kind"] == "streamed", args.contains(&"--stream"), "{plan}");
        let planned = plan["total"].as_u64().unwrap() as f64 / 1e6;
        let text = bench.folder.path().join("text.txt");
        std::fs::write(&text, "ab cd. ".repeat(400)).unwrap();
        let mut command = smol(bench.folder.path());
        command.args(["run", "--raw", "-n", "2", "--temp", "0", "-t", "1", "--json", "-f"]);
        command.arg(&text).arg("-m").arg(model).args(args);
        let (stdout, _) = output(&mut command, 0);
        let run: Value = serde_json::from_str(&stdout).unwrap();
        assert!(run["prompt_tokens"].as_u64().unwrap() >= 1024, "{run}");
        (planned, run["peak_rss_mb"].as_f64().unwrap())
    }

    #[test]
    fn the_peak_is_what_was_planned() {
        let bench = Bench::new();
        let large = TinyOptions { vocab: 49_152, ..TinyOptions::default() };
        let experts = TinyOptions { experts: 64, ..TinyOptions::default() };
        for (arch, options, args) in [
            (Arch::Llama, large, &[][..]),
            (Arch::Llama, large, &["--kv-type", "q8_0"]),
            (Arch::Qwen3, large, &[]),
            (Arch::Gemma3, large, &[]),
            (Arch::Llama, large, &["--stream"]),
            (Arch::LlamaMoe, experts, &[]),
            (Arch::LlamaMoe, experts, &["--ram", "60MiB"]),
        ] {
            let path = bench.folder.path().join("model.gguf");
            tiny::write(&path, arch, &options).unwrap();
            let args = [&["-c", "2048"], args].concat();
            let (planned, peak) = compare(&bench, &path, &args);
            let close = if args.contains(&"--ram") {
                // So even a text uses few of the experts, so that the pool does not get full.
                peak <= planned && planned <= 60.0 * 1.048_576
            } else {
                // The program, which is a large part here, differs from build to build.
                (planned / peak - 1.0).abs() < 0.05 || (planned - peak).abs() < 4.0
            };
            assert!(close, "{arch:?} {args:?}: {planned} MB planned, {peak} MB at the peak");
        }
    }
}

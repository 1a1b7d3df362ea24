//! The options of the weight stream.

mod common;
#[path = "common/model.rs"]
mod model;

use common::{output, smol};
use model::Bench;
use testkit::tiny::{self, Arch, TinyOptions};

fn command(bench: &Bench, command: &str, args: &[&str]) -> assert_cmd::Command {
    let mut smol = smol(bench.folder.path());
    smol.arg(command).arg("-m").arg(&bench.model).args(args);
    smol
}

fn json(bench: &Bench, name: &str, args: &[&str]) -> serde_json::Value {
    let (stdout, stderr) = output(command(bench, name, args).arg("--json"), 0);
    assert_eq!(stderr, "");
    serde_json::from_str(&stdout).unwrap()
}

/// What every `stream` object has.
fn check_statistics(stream: &serde_json::Value) {
    for count in ["passes", "late", "readers", "bytes_read"] {
        assert!(stream[count].is_u64(), "{count}: {stream}");
    }
    for number in ["mb_per_pass", "wait_ms_per_pass", "wasted_mb", "zone_mb"] {
        assert!(stream[number].is_number(), "{number}: {stream}");
    }
    assert!(stream["io_mode"].is_string(), "{stream}");
}

#[test]
fn a_streamed_model_gives_the_same_text_and_statistics() {
    let bench = Bench::new();
    let args = ["-p", "Once upon a time", "--raw", "-n", "24", "--temp", "0"];
    let plain = json(&bench, "run", &args);
    assert_eq!(plain.get("stream"), None);
    for more in
        [&["--stream"][..], &["--stream-zone", "4MiB", "--readers", "2"], &["--stream-verify"]]
    {
        let streamed = json(&bench, "run", &[&args[..], more].concat());
        assert_eq!(streamed["text"], plain["text"], "{more:?}");
        check_statistics(&streamed["stream"]);
        assert!(streamed["stream"]["passes"].as_u64().unwrap() >= 24, "{more:?}");
        assert!(streamed["stream"]["bytes_read"].as_u64().unwrap() > 0, "{more:?}");
        assert_eq!(streamed.get("pager"), None);
        if more.contains(&"--readers") {
            assert_eq!(streamed["stream"]["readers"], 2);
            assert!(streamed["stream"]["zone_mb"].as_f64().unwrap() <= 4.2);
        }
    }
}

#[test]
fn what_fits_is_not_streamed() {
    let bench = Bench::new();
    let args = ["-p", "Once upon a time", "--raw", "-n", "8", "--temp", "0"];
    let plain = json(&bench, "run", &args);
    for more in [&["--stream"][..], &["--readers", "2"]] {
        let run = json(&bench, "run", &[&args[..], &["--ram", "16GB"], more].concat());
        assert_eq!(run["text"], plain["text"], "{more:?}");
        assert_eq!(run.get("stream"), None, "{more:?}");
    }
}

#[test]
fn bench_has_statistics_of_each_test() {
    let bench = Bench::new();
    let rows = json(&bench, "bench", &["-p", "16", "-n", "4", "-r", "2", "--stream"]);
    for (row, passes) in rows.as_array().unwrap().iter().zip([1, 4]) {
        check_statistics(&row["stream"]);
        // Two repetitions, without the one that warms up.
        assert_eq!(row["stream"]["passes"], 2 * passes, "{row}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let bench = Bench::new();
    let refused = |args: &[&str], code| {
        let args = [&["-p", "x", "-n", "1"], args].concat();
        output(&mut command(&bench, "run", &args), code).1
    };
    for (args, words) in [
        (&["--stream-zone", "900"][..], "`900` has no unit; write 900MiB, 900MB or 900B"),
        (&["--stream-zone", "0B"], "weight stream: zone is 0, which holds no weights"),
        (&["--stream", "--expert-pool", "4"], "no experts that could be paged"),
    ] {
        let stderr = refused(args, 2);
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
    let stderr = refused(&["--stream-zone", "1KiB"], 1);
    assert!(stderr.contains("streaming needs at least"), "{stderr}");

    let mixture = bench.folder.path().join("mixture.gguf");
    tiny::write(&mixture, Arch::LlamaMoe, &TinyOptions::default()).unwrap();
    let mut both = smol(bench.folder.path());
    both.args(["run", "-p", "x", "--stream", "--expert-pool", "4", "-m"]).arg(&mixture);
    let (_, stderr) = output(&mut both, 2);
    assert!(stderr.contains("not both"), "{stderr}");
}

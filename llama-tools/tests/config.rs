//! `--smol-config`: what it does, and what it refuses.

mod common;

use common::{COMPLETE, Fixture, LAYERS};
use smol_gguf::TensorType;
use testkit::tiny::{self, Arch, TinyOptions};

/// Graphs of a completion without warm-up: the prompt, then one for each token but the last.
const GRAPHS: u64 = 8;

#[test]
fn the_report_counts_graphs_and_nodes() {
    let fixture = Fixture::new();
    fixture.write("all.toml", "[observe]\nreport = \"all.json\"\n");
    fixture.complete(&["--smol-config", "all.toml", "-fa", "on"]);
    let report = fixture.report("all.json");
    assert_eq!(report["graphs"], GRAPHS);
    assert_eq!(report["graphs_stopped"], 0);
    assert!(report["graph_seconds"].as_f64().unwrap() > 0.0);
    // Seven weights a layer and the head; attention once a layer.
    assert_eq!(report["ops"]["MUL_MAT"], GRAPHS * (7 * LAYERS + 1));
    assert_eq!(report["ops"]["FLASH_ATTN_EXT"], GRAPHS * LAYERS);
    let counted: u64 =
        report["ops"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert!(report["nodes"].as_u64().unwrap() >= counted);
    assert_eq!(report["llama_commit"], llama_rs::build_info().llama_commit);

    // Threads do not multiply the counts.
    fixture.complete(&["--smol-config", "all.toml", "-fa", "on", "-t", "2"]);
    assert_eq!(fixture.report("all.json")["ops"], report["ops"]);

    // Only what is asked for, asked for or not found.
    fixture
        .write("some.toml", "observe = { report = \"some.json\", ops = [\"ROPE\", \"SSM_SCAN\"] }");
    fixture.complete(&["--smol-config", "some.toml", "-fa", "on"]);
    let some = fixture.report("some.json");
    assert_eq!(some["ops"], serde_json::json!({"ROPE": report["ops"]["ROPE"], "SSM_SCAN": 0}));
    assert_eq!(some["graphs"], GRAPHS);
}

#[test]
fn a_dash_is_standard_error() {
    let fixture = Fixture::new();
    fixture.write("c.toml", "[observe]\nreport = \"-\"\n");
    let args = ["-m", "tiny.gguf", "-p", "4", "-n", "0", "-r", "1", "--smol-config", "c.toml"];
    let (stdout, stderr) = fixture.run("llama-bench", &args, 0);
    let report = &stderr[stderr.find("{\n").expect("a report")..];
    let report: serde_json::Value = serde_json::from_str(report).unwrap();
    // Warm-up and one repetition.
    assert_eq!(report["graphs"], 2);
    assert!(!stdout.contains("graph_seconds"), "{stdout}");
}

#[test]
fn a_tool_that_calls_exit_leaves_a_report() {
    let fixture = Fixture::new();
    fixture.write("c.toml", "[observe]\nreport = \"r.json\"\n");
    let args = ["--smol-config", "c.toml", "--help"];
    fixture.run("llama-completion", &args, 0);
    assert_eq!(fixture.report("r.json")["graphs"], 0);
    std::fs::remove_file(fixture.path("r.json")).unwrap();
    fixture.run("llama-quantize", &args[..2], 1);
    assert_eq!(fixture.report("r.json")["graphs"], 0);
}

#[test]
fn the_level_of_the_build_can_be_chosen() {
    let fixture = Fixture::new();
    llama_rs::cpu::check().unwrap();
    let plain = fixture.complete(&[]);
    for level in ["auto", llama_rs::cpu::selected().name] {
        fixture.write(
            "c.toml",
            &format!("cpu.level = \"{level}\"\nobserve = {{ report = \"r.json\" }}"),
        );
        assert_eq!(fixture.complete(&["--smol-config", "c.toml"]), plain);
        assert_eq!(fixture.report("r.json")["cpu_level"], llama_rs::cpu::selected().name);
    }
}

#[test]
fn bad_configurations_are_refused_before_the_tool_starts() {
    let fixture = Fixture::new();
    let refused = |words: &str| {
        let args = [&["--smol-config", "bad.toml"], COMPLETE].concat();
        let (stdout, stderr) = fixture.run("llama-completion", &args, 2);
        assert_eq!(stdout, "");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        let start = format!("llama-completion: bad.toml: {words}");
        assert!(stderr.starts_with(&start), "{stderr:?} should start with {start:?}");
    };
    refused("the configuration cannot be read: No such file");
    for (text, words) in [
        ("\n[expert]\n", "line 2: expert: unknown field"),
        ("[observe]\nreports = 1", "line 2: observe.reports: unknown field"),
        ("[observe]\nreport = 1", "line 2: observe.report: invalid type: integer `1`"),
        (
            "[observe]\nreport = \"-\"\nops = [\"NOP\"]",
            "line 3: observe.ops: `NOP` is not an operation",
        ),
        ("[pager]\nbudget = \"600\"", "line 2: pager.budget: `600` has no unit; write 600MiB"),
        ("[pager]\nbudget = { slots = 0 }", "line 2: pager.budget: is 0, which holds no expert"),
        ("[pager]\nram = 1", "line 2: pager.ram: unknown field"),
        ("[pager]\npolicy = \"mru\"", "line 2: pager.policy: unknown variant `mru`"),
        ("pager.readers = 0", "line 1: pager.readers: is 0 but must be 1 to 64"),
        ("pager = true", "line 1: pager: invalid type: boolean `true`"),
        ("[stream]\nzone = 0", "line 2: stream.zone: is 0, which holds no weights"),
        ("[stream]\nbudget = 1", "line 2: stream.budget: unknown field"),
        ("[cpu]\nlevel = \"vax\"", "line 2: cpu.level: this build has no CPU level `vax`"),
        ("[cpu", "line 1: `[cpu`: "),
    ] {
        fixture.write("bad.toml", text);
        refused(words);
    }
    std::fs::remove_file(fixture.path("bad.toml")).unwrap();
    std::fs::create_dir(fixture.path("bad.toml")).unwrap();
    refused("the configuration cannot be read: ");
}

#[test]
fn the_number_of_experts_is_the_tools_own_option() {
    let fixture = Fixture::new();
    fixture.write("c.toml", "[pager]\nexperts = 2");
    let (stdout, stderr) =
        fixture.run("llama-bench", &["-m", "tiny.gguf", "--smol-config", "c.toml"], 2);
    assert_eq!(stdout, "");
    assert!(stderr.contains("--override-kv ARCH.expert_used_count=int:2"), "{stderr}");
}

#[test]
fn a_paged_mixture_says_the_same() {
    let fixture = Fixture::new();
    tiny::write(&fixture.path("mixture.gguf"), Arch::LlamaMoe, &TinyOptions::default()).unwrap();
    let complete = |more: &[&str]| {
        let args: Vec<_> = COMPLETE
            .iter()
            .map(|arg| if *arg == "tiny.gguf" { "mixture.gguf" } else { *arg })
            .chain(more.iter().copied())
            .collect();
        fixture.run("llama-completion", &args, 0).0
    };
    fixture.write("c.toml", "[pager]\nbudget = { slots = 4 }\n[observe]\nreport = \"r.json\"");
    assert_eq!(complete(&["--smol-config", "c.toml"]), complete(&[]));
    let pager = &fixture.report("r.json")["pager"];
    assert!(pager["misses"].as_u64().unwrap() > 0, "{pager}");
    assert!(pager["bytes_read"].as_u64().unwrap() > 0, "{pager}");
}

#[test]
fn a_streamed_model_says_the_same() {
    let fixture = Fixture::new();
    let plain = fixture.complete(&[]);
    fixture.write("c.toml", "[stream]\nreaders = 2\n[observe]\nreport = \"r.json\"");
    assert_eq!(fixture.complete(&["--smol-config", "c.toml"]), plain);
    let stream = &fixture.report("r.json")["stream"];
    assert!(stream["passes"].as_u64().unwrap() >= GRAPHS, "{stream}");
    assert!(stream["bytes_read"].as_u64().unwrap() > 0, "{stream}");
    let args = ["-m", "tiny.gguf", "--mmap", "--smol-config", "c.toml"];
    let (_, stderr) = fixture.run("llama-completion", &args, 2);
    assert!(stderr.contains("stream: weights are not mapped; leave --mmap out"), "{stderr}");
}

#[test]
fn a_model_whose_packed_weights_are_kept_says_the_same() {
    let fixture = Fixture::new();
    let weights = TensorType::Q4_0;
    let options = TinyOptions { weights, byte_level: true, ..TinyOptions::default() };
    tiny::write(&fixture.path("tiny.gguf"), Arch::Llama, &options).unwrap();
    let plain = fixture.complete(&[]);
    let cache = "[pack_cache]\ndir = \"packed\"\n[observe]\nreport = \"r.json\"";
    for (table, streamed) in [("", false), ("[stream]\n", true)] {
        fixture.write("c.toml", &format!("{table}{cache}"));
        for warm in [streamed, true] {
            assert_eq!(fixture.complete(&["--smol-config", "c.toml"]), plain);
            let report = fixture.report("r.json");
            let cache = &report["cache"];
            let [used, other] = if warm { ["hits", "misses"] } else { ["misses", "hits"] };
            assert!(cache[used].as_u64().unwrap() > 0 && cache[other] == 0, "{cache}");
            assert_eq!(cache["written_mb"].as_f64().unwrap() > 0.0, !warm, "{cache}");
            assert_eq!(report["stream"].is_object(), streamed);
        }
    }
    // What can't be kept is packed as ever.
    fixture.write("c.toml", &cache.replace("packed", "tiny.gguf"));
    assert_eq!(fixture.complete(&["--smol-config", "c.toml"]), plain);
    let note = &fixture.report("r.json")["cache"]["note"];
    assert!(note.as_str().unwrap().starts_with("not kept: "), "{note}");
    let args = ["tiny.gguf", "q.gguf", "Q8_0", "--smol-config", "c.toml"];
    let (_, stderr) = fixture.run("llama-quantize", &args, 2);
    assert!(stderr.contains("pack_cache: llama-quantize computes nothing"), "{stderr}");
}

#[test]
fn models_without_experts_are_loaded_as_ever() {
    let fixture = Fixture::new();
    let plain = fixture.complete(&[]);
    fixture.write("c.toml", "[pager]\nbudget = \"1MiB\"\n[layouts]\nenabled = false");
    assert_eq!(fixture.complete(&["--smol-config", "c.toml"]), plain);
}

#[test]
fn a_report_that_cannot_be_written_is_refused_at_once() {
    let fixture = Fixture::new();
    fixture.write("c.toml", "observe.report = \"no/such/folder/r.json\"");
    let (stdout, stderr) =
        fixture.run("llama-bench", &["-m", "tiny.gguf", "--smol-config", "c.toml"], 2);
    assert_eq!(stdout, "");
    assert!(
        stderr.contains("no/such/folder/r.json: observe.report: cannot be created"),
        "{stderr}"
    );
}

#[test]
fn our_options_are_explained_and_checked() {
    let fixture = Fixture::new();
    for tool in ["llama-bench", "llama-perplexity", "llama-quantize", "llama-completion"] {
        let (stdout, _) = fixture.run(tool, &["--smol-help"], 0);
        assert!(stdout.starts_with(tool) && stdout.contains("[observe]"), "{stdout}");
        assert!(stdout.contains("[stream]") && stdout.contains("{ slots = N }"), "{stdout}");
        let (_, stderr) = fixture.run(tool, &["--smol-config"], 2);
        assert_eq!(stderr, format!("{tool}: --smol-config needs a file\n"));
    }
}

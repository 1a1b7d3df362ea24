//! `smol trace sim`: other pools and policies on a recorded trace.

mod common;

use common::{output, smol};
use serde_json::Value;
use smol_engine::expert::trace::{Graph, LayerHeader, Read, TensorSize, TraceHeader, TraceWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Two layers of 12 experts of 3 MB of which tokens use 2; a prompt of 6 tokens, then 200 tokens
/// whose choices drift. Each takes 40 ms, 10 of them waiting for a read of 3 MB.
fn trace(folder: &Path, reads: bool) -> PathBuf {
    let size = TensorSize { file: 1_000_000, memory: 1_000_000 };
    let layer = |block| LayerHeader { block, experts: 12, used: 2, tensors: vec![size; 3] };
    let header = TraceHeader { model: "mixture".into(), layers: vec![layer(0), layer(1)] };
    let path = folder.join("mixture.trace");
    let writer = TraceWriter::create(&path, &header).unwrap();
    let mut prompt = Graph::default();
    prompt.push(0, 2, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    prompt.push(1, 2, &[1, 2]);
    writer.write(&prompt).unwrap();
    for token in 0..200_u32 {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        let mut graph = Graph::default();
        graph.started = ms(40 * token);
        if reads {
            (graph.took, graph.waited) = (ms(40), ms(10));
            let (started, took) = (graph.started, ms(10));
            graph.reads.push(Read { layer: 0, expert: 0, started, took, bytes: 3_000_000 });
        }
        graph.push(0, 2, &[token / 7 % 12, (token / 3 + 5) % 12]);
        graph.push(1, 2, &[token % 2, 2 + token * token % 10]);
        writer.write(&graph).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn sim(path: &Path, args: &[&str], code: i32) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    output(smol(folder.path()).args(["trace", "sim"]).arg(path).args(args), code)
}

fn report(path: &Path, args: &[&str]) -> (Value, String) {
    let (json, stderr) = sim(path, &[args, &["--json"]].concat(), 0);
    assert_eq!(json.lines().count(), 1);
    (serde_json::from_str(&json).unwrap(), stderr)
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} in {row}"))
}

#[test]
fn all_policies_and_the_optimum() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path(), true);
    let (report, stderr) = report(&path, &["--pool", "2..12:2"]);
    assert_eq!(stderr, "");
    assert_eq!(report["model"], "mixture");
    assert_eq!((&report["generated_tokens"], &report["prompt_tokens"]), (&200.into(), &6.into()));
    assert!((number(&report, "flash_mb_s") - 300.0).abs() < 1e-6);
    assert!((number(&report, "compute_ms") - 30.0).abs() < 1e-6);
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows.len(), 6 * 5);
    for rows in rows.chunks(5) {
        let policies: Vec<_> = rows.iter().map(|row| row["policy"].as_str().unwrap()).collect();
        assert_eq!(policies, ["lru", "lfu", "decayed", "slru", "belady"]);
        let total = |row: &Value| number(row, "misses") + number(&row["prompts"], "misses");
        for row in rows {
            assert!(total(&rows[4]) <= total(row), "{row}");
            assert_eq!(number(row, "hits") + number(row, "misses"), 800.0);
            assert_eq!(number(row, "pool_mb"), 2.0 * 3.0 * number(row, "pool"));
            let mb = number(row, "misses") * 3.0 / 200.0;
            assert!((number(row, "mb_per_token") - mb).abs() < 1e-9);
            assert!((number(row, "tokens_s") - 1.0 / (0.03 + mb / 300.0)).abs() < 1e-6);
            let most = 1.0 / (mb / 300.0).max(0.03);
            assert!((number(row, "most_tokens_s") - most).abs() < 1e-6);
        }
    }
    // All experts fit: those that the prompt has not read, 0 3 6 7 8 11 of the second layer, are
    // read once.
    assert_eq!(rows[29]["misses"], 6);
    assert_eq!(rows[29]["prompts"]["misses"], 14);
    assert_eq!(rows[29]["prompts"]["streamed"], 0);
    assert_eq!(rows[0]["prompts"]["streamed"], 10);

    let (table, stderr) = sim(&path, &["--pool", "2,12", "--policy", "decayed,belady"], 0);
    assert_eq!(stderr, "");
    assert_eq!(table.matches("| decayed").count(), 4, "{table}");
    assert!(!table.contains("| lru"), "{table}");
    for part in ["200 tokens generated, 6 of prompts", "tokens/s", "at most", "flash 300 MB/s"] {
        assert!(table.contains(part), "{part}: {table}");
    }
}

#[test]
fn speeds_are_given_or_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path(), false);
    let (unknown, _) = report(&path, &["--pool", "4", "--policy", "lru"]);
    let row = &unknown["results"][0];
    assert!(unknown["flash_mb_s"].is_null() && row["tokens_s"].is_null(), "{row}");
    let (table, stderr) = sim(&path, &["--pool", "4"], 0);
    assert!(!table.contains("at most") && stderr.contains("--flash"), "{table}{stderr}");
    let (given, _) = report(&path, &["--pool", "4", "--flash", "278", "--compute", "25"]);
    let row = &given["results"][0];
    let seconds = 0.025 + number(row, "mb_per_token") / 278.0;
    assert!((number(row, "tokens_s") - 1.0 / seconds).abs() < 1e-6);
}

#[test]
fn scope_and_skip_change_what_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path(), true);
    let misses = |args: &[&str]| {
        let args = [&["--pool", "5", "--policy", "lru"], args].concat();
        let (report, _) = report(&path, &args);
        (report["results"][0]["misses"].as_u64(), report["results"][0]["hits"].as_u64())
    };
    assert_ne!(misses(&[]).0, misses(&["--scope", "global"]).0);
    let (Some(misses), Some(hits)) = misses(&["--skip", "106"]) else { panic!() };
    assert_eq!(misses + hits, 400);
}

#[test]
fn the_plot_is_an_svg() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path(), true);
    let svg = folder.path().join("plot.svg");
    let file = svg.to_str().unwrap();
    sim(&path, &["--svg", file], 0);
    let text = std::fs::read_to_string(&svg).unwrap();
    assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    for name in ["lru", "lfu", "decayed", "slru", "belady", "mixture"] {
        assert!(text.contains(name), "{name}");
    }
    let nowhere = folder.path().join("none").join("plot.svg");
    let (_, stderr) = sim(&path, &["--svg", nowhere.to_str().unwrap()], 1);
    assert!(stderr.contains("cannot write"), "{stderr}");
}

#[test]
fn damaged_traces_are_used_up_to_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path(), true);
    let bytes = std::fs::read(&path).unwrap();
    // A short trace has two blocks: the header, and all the rest.
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (_, stderr) = sim(&path, &[], 1);
    assert!(stderr.contains("damaged at byte") && stderr.contains("no token"), "{stderr}");
    // Whole, but for what follows the end.
    let mut longer = bytes;
    longer.extend([0; 5]);
    std::fs::write(&path, &longer).unwrap();
    let (report, stderr) = report(&path, &["--pool", "4"]);
    assert!(stderr.contains("the 206 tokens before it are used"), "{stderr}");
    assert!(report["damage"].as_str().unwrap().contains("damaged at byte"));
    assert_eq!(report["generated_tokens"], 200);
}

#[test]
fn wrong_use_says_what_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let path = trace(folder.path(), true);
    let refused = |args: &[&str], code: i32, says: &str| {
        let (stdout, stderr) = sim(&path, args, code);
        assert!(stdout.is_empty() && stderr.contains(says), "{args:?}: {stderr}");
    };
    refused(&["--policy", "mru"], 2, "lru, lfu, decayed, slru or belady");
    refused(&["--pool", "9..3"], 2, "no size");
    refused(&["--flash", "-3"], 2, "MB/s");
    refused(&["--scope", "all"], 2, "layer or global");
    refused(&["--skip", "206"], 2, "206 tokens");
    let (_, stderr) = sim(&folder.path().join("none"), &[], 1);
    assert!(stderr.contains("cannot open the trace"), "{stderr}");
    let other = folder.path().join("x.gguf");
    std::fs::write(&other, b"GGUF and some more bytes").unwrap();
    let (_, stderr) = sim(&other, &[], 1);
    assert!(stderr.contains("not a trace") && stderr.contains("trace record"), "{stderr}");
    // Pools that the model cannot have become those that it can.
    let (report, stderr) = report(&path, &["--pool", "1..100:99", "--policy", "lru"]);
    assert!(stderr.contains("2 to 12 experts"), "{stderr}");
    let pools: Vec<_> = { report["results"].as_array().unwrap().iter() }
        .map(|row| row["pool"].as_u64().unwrap())
        .collect();
    assert_eq!(pools, [2, 12]);
}

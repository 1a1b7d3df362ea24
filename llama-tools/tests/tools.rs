//! The tools do what upstream's do, and the same with an engine that only watches.

mod common;

use common::Fixture;
use llama_rs::generation::GenerateOptions;
use llama_rs::perplexity::{PerplexityOptions, perplexity};
use llama_rs::sampler::SamplerBuilder;
use llama_rs::session::Session;
use llama_rs::{FileType, Model, Quantize};
use smol_gguf::{Gguf, TensorType};

const WATCH: &str = "[observe]\nreport = \"report.json\"\n";

#[test]
fn bench_prints_a_row_for_each_test() {
    let fixture = Fixture::new();
    let args = ["-m", "tiny.gguf", "-p", "16", "-n", "4", "-r", "2", "-t", "1"];
    let (table, _) = fixture.run("llama-bench", &args, 0);
    let words: Vec<_> = table.split(['|', '\n']).map(str::trim).collect();
    for word in ["model", "t/s", "pp16", "tg4"] {
        assert!(words.contains(&word), "{table}");
    }
    assert!(table.contains("build: "), "{table}");

    let (json, _) = fixture.run("llama-bench", &[&args[..], &["-o", "json"]].concat(), 0);
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    let tests: Vec<_> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["n_prompt"].as_u64().unwrap(), row["n_gen"].as_u64().unwrap()))
        .collect();
    assert_eq!(tests, [(16, 0), (0, 4)]);
    for row in rows.as_array().unwrap() {
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0);
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2);
        assert_eq!(row["build_commit"], llama_rs::build_info().llama_commit);
        assert!(row["build_number"].as_u64().unwrap() > 0);
    }
}

#[test]
fn perplexity_is_the_library_s() {
    let fixture = Fixture::new();
    fixture.write("watch.toml", WATCH);
    let args = ["-m", "tiny.gguf", "-f", "text.txt", "-c", "128", "-t", "1"];
    let estimate = |args: &[&str]| {
        let (out, err) = fixture.run("llama-perplexity", args, 0);
        let all = format!("{out}{err}");
        let (_, rest) = all.split_once("Final estimate: PPL = ").expect(&all);
        rest.split(' ').next().unwrap().to_owned()
    };
    let plain = estimate(&args);
    assert_eq!(estimate(&[&args[..], &["--smol-config", "watch.toml"]].concat()), plain);

    let options = PerplexityOptions { chunk: 128, threads: Some(1), ..Default::default() };
    let model = Model::load(fixture.path("tiny.gguf")).unwrap();
    let mut context = options.context(&model).unwrap().threads(1, 1).build().unwrap();
    let go_on = |_| std::ops::ControlFlow::Continue(());
    let ours = perplexity(&mut context, &fixture.read("text.txt"), &options, go_on).unwrap();
    let plain: f64 = plain.parse().unwrap();
    assert!((ours.perplexity / plain - 1.0).abs() < 1e-4, "{} and {plain}", ours.perplexity);
}

#[test]
fn quantize_writes_the_library_s_bytes() {
    let fixture = Fixture::new();
    fixture.write("watch.toml", WATCH);
    let (out, err) = fixture.run("llama-quantize", &["tiny.gguf", "plain.gguf", "Q8_0", "1"], 0);
    // Without the tool's own log function its lines go to standard error.
    assert!(out.contains("quantize time") && err.contains("blk.0.attn_q.weight"), "{out}\n{err}");
    let args = ["--smol-config", "watch.toml", "tiny.gguf", "watched.gguf", "Q8_0", "1"];
    let (_, watched) = fixture.run("llama-quantize", &args, 0);
    assert_eq!(watched.lines().count(), err.lines().count());

    let file = Gguf::open(fixture.path("plain.gguf")).unwrap();
    assert_eq!(file.tensor("blk.0.attn_q.weight").unwrap().ty(), TensorType::Q8_0);
    drop(file);
    let bytes = |name: &str| std::fs::read(fixture.path(name)).unwrap();
    assert!(bytes("plain.gguf") == bytes("watched.gguf"), "the engine changed the file");
    Quantize::new(FileType::Q8_0).run(fixture.path("tiny.gguf"), fixture.path("lib.gguf")).unwrap();
    assert!(bytes("plain.gguf") == bytes("lib.gguf"), "the library writes another file");
}

#[test]
fn completion_continues_as_the_library_does() {
    let fixture = Fixture::new();
    fixture.write("watch.toml", WATCH);
    let plain = fixture.complete(&[]);
    assert_eq!(fixture.complete(&["--smol-config=watch.toml"]), plain);

    let model = Model::load(fixture.path("tiny.gguf")).unwrap();
    let context = model.context().n_ctx(256).threads(1, 1).build().unwrap();
    let sampler = SamplerBuilder::greedy().build(&model).unwrap();
    let mut session = Session::new(context, sampler).unwrap();
    let options =
        GenerateOptions { max_tokens: Some(8), ignore_eog: true, ..GenerateOptions::default() };
    let answer = session.generate("Once upon a time", &options).unwrap().complete().unwrap();
    assert!(!answer.text.trim().is_empty());
    assert!(
        plain.trim_end().starts_with(format!("Once upon a time{}", answer.text).trim_end()),
        "{plain:?} does not continue with {:?}",
        answer.text
    );
}

#[test]
fn exit_codes_are_upstreams() {
    let fixture = Fixture::new();
    for tool in ["llama-bench", "llama-perplexity", "llama-completion"] {
        let (_, stderr) = fixture.run(tool, &["--no-such-option"], 1);
        assert!(stderr.contains("--no-such-option"), "{stderr}");
        let (stdout, _) = fixture.run(tool, &["--help"], 0);
        assert!(stdout.contains("--threads"), "{stdout}");
    }
    // It prints its usage and calls exit(1).
    let (stdout, _) = fixture.run("llama-quantize", &[], 1);
    assert!(stdout.contains("usage:"), "{stdout}");
    let (_, stderr) = fixture.run("llama-completion", &["-m", "none.gguf"], 1);
    assert!(stderr.contains("none.gguf"), "{stderr}");
}

#[test]
fn https_without_tls_says_so() {
    let fixture = Fixture::new();
    let args = ["-mu", "https://localhost:1/model.gguf", "-m", "new.gguf"];
    let (stdout, stderr) = fixture.run("llama-completion", &args, 1);
    assert!(format!("{stdout}{stderr}").contains("HTTPS is not supported"), "{stdout}\n{stderr}");
}

#[cfg(unix)]
mod unix {
    use std::ffi::OsStr;
    use std::io::Read;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::common::{COMPLETE, Fixture};

    #[test]
    fn arguments_need_not_be_utf8() {
        let fixture = Fixture::new();
        let odd = OsStr::from_bytes(b"mod\xffel.gguf");
        if std::fs::copy(fixture.path("tiny.gguf"), fixture.folder.path().join(odd)).is_err() {
            return; // some file systems take UTF-8 only
        }
        let mut bench = fixture.command("llama-bench", &["-p", "4", "-n", "0", "-r", "1", "-m"]);
        let output = bench.arg(odd).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// As upstream's tools end, which leave SIGPIPE alone.
    #[test]
    fn a_closed_pipe_ends_the_tool() {
        let fixture = Fixture::new();
        let mut child = fixture
            .command("llama-completion", &["--help"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(13), "{status:?}");
    }

    #[test]
    fn ctrl_c_stops_an_answer_with_upstream_s_code() {
        let fixture = Fixture::new();
        let mut args = COMPLETE.to_vec();
        args[5] = "100000";
        let more = ["-c", "100000", "--no-context-shift"];
        // Upstream's handler takes the lock of its log (common/log.cpp), and waits for ever if the signal comes while its own
        // thread holds that.
        for _ in 0..5 {
            let mut child = fixture
                .command("llama-completion", &[&args[..], &more].concat())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // It answers: the handler is in place.
            let mut stdout = child.stdout.take().unwrap();
            stdout.read_exact(&mut [0; 32]).unwrap();
            let interrupt = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
            assert!(interrupt.unwrap().success());
            let rest = std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
            for _ in 0..200 {
                if let Some(status) = child.try_wait().unwrap() {
                    assert_eq!(status.code(), Some(130));
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            rest.join().unwrap().unwrap();
        }
        panic!("it hangs whenever it is interrupted");
    }
}

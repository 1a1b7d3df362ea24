//! Bad files and arguments: a message that names the cause, at once, and no crash.

mod common;
#[path = "common/model.rs"]
mod model;

use common::{output, smol};
use model::Bench;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::bad::{Expected, FAULTS, Layer};

/// Longest time until an error: a hundred times what it takes, for machines under load.
const AT_ONCE: Duration = Duration::from_secs(30);

impl Bench {
    fn run(&self, args: &[&str]) -> assert_cmd::Command {
        self.run_file(&self.model, args)
    }

    fn run_file(&self, model: &Path, args: &[&str]) -> assert_cmd::Command {
        let mut command = smol(self.folder.path());
        command.arg("run").arg("-m").arg(model).args(args);
        command
    }

    /// Runs with `args` and returns the message.
    fn refused(&self, args: &[&str], code: i32) -> String {
        refused(&mut self.run(args), code)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn refused(command: &mut assert_cmd::Command, code: i32) -> String {
    let start = Instant::now();
    let (stdout, stderr) = output(command, code);
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
    assert_eq!(stdout, "");
    assert!(stderr.contains("error: "), "{stderr}");
    stderr
}

#[test]
fn broken_files_are_refused_by_name() {
    let bench = Bench::new();
    let good = std::fs::read(&bench.model).unwrap();
    for fault in FAULTS {
        let path = bench.folder.path().join(fault.file_name());
        std::fs::write(&path, fault.apply(&good).unwrap()).unwrap();
        let mut run = bench.run_file(&path, &["-p", "x", "-n", "1"]);
        match fault.expected {
            Expected::Refused(mentions) => {
                let stderr = refused(&mut run, 1);
                let stem = fault.file_name();
                assert!(stderr.contains(&stem), "{}: {stderr}", fault.name);
                for word in mentions {
                    assert!(stderr.contains(word), "{}: {word} in {stderr}", fault.name);
                }
            }
            Expected::Usable => {
                let (_, stderr) = output(&mut run, 0);
                assert!(stderr.contains("ChatML"), "{}: {stderr}", fault.name);
            }
        }
    }
}

#[test]
fn inspect_finds_the_same_faults() {
    let bench = Bench::new();
    let good = std::fs::read(&bench.model).unwrap();
    for fault in FAULTS {
        let path = bench.folder.path().join(fault.file_name());
        std::fs::write(&path, fault.apply(&good).unwrap()).unwrap();
        let mut inspect = smol(bench.folder.path());
        inspect.args(["inspect", "--check"]).arg(&path);
        let code = match (fault.layer, fault.expected) {
            (Layer::Loader, _) | (_, Expected::Usable) => continue,
            (Layer::Structure | Layer::Model, Expected::Refused(_)) => 1,
        };
        let (stdout, stderr) = output(&mut inspect, code);
        let text = stdout + &stderr;
        assert!(text.contains("error: "), "{}: {text}", fault.name);
    }
}

#[test]
fn threads_above_the_machine_are_clamped_aloud() {
    let bench = Bench::new();
    let (_, stderr) = output(&mut bench.run(&["-p", "x", "-n", "1", "-t", "999"]), 0);
    assert!(stderr.contains("-t 999: this machine has "), "{stderr}");
}

#[test]
fn numbers_out_of_range_are_usage_errors() {
    let bench = Bench::new();
    for (args, words) in [
        (["-t", "0"], "--threads"),
        (["-b", "0"], "--batch"),
        (["-c", "0"], "--ctx"),
        (["-c", "99999999999"], "--ctx"),
        (["-n", "-1"], "--tokens"),
        (["--temp", "nan"], "allowed are 0 to 100"),
        (["--temp", "inf"], "allowed are 0 to 100"),
        (["--temp", "-1"], "--temp"),
        (["--top-p", "1.5"], "allowed are 0 to 1"),
        (["--min-p", "nan"], "allowed are 0 to 1"),
        (["--repeat-penalty", "0"], "allowed are 0.01 to 100"),
        (["--seed", "x"], "--seed"),
    ] {
        let stderr = bench.refused(&["-p", "x", args[0], args[1]], 2);
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn contexts_beyond_memory_are_refused_with_numbers() {
    let stderr = Bench::new().refused(&["-p", "x", "-c", "2000000000"], 1);
    assert!(stderr.contains("2000000000 tokens needs about"), "{stderr}");
    assert!(stderr.contains("are available"), "{stderr}");
}

#[test]
fn prompts_longer_than_the_context_name_both_counts() {
    let bench = Bench::new();
    let file = bench.write("long.txt", "word ".repeat(3000));
    let stderr = bench.refused(&["-f", &file, "-c", "256"], 1);
    assert!(stderr.contains("but the context holds 256"), "{stderr}");
}

#[test]
fn prompts_that_are_no_text() {
    let bench = Bench::new();
    let stderr = refused(bench.run(&[]).write_stdin(&b"ok \xe6\xad"[..]), 2);
    assert!(
        stderr.contains("standard input is not UTF-8 text: byte 0xe6 at position 3"),
        "{stderr}"
    );
    let file = bench.write("prompt.bin", b"\xff");
    let stderr = bench.refused(&["-f", &file], 2);
    assert!(stderr.contains("prompt.bin is not UTF-8 text"), "{stderr}");
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt as _;
        let prompt = std::ffi::OsStr::from_bytes(b"\xe6\xad");
        let stderr = refused(bench.run(&["-p"]).arg(prompt), 2);
        assert!(stderr.contains("the prompt of -p is not UTF-8 text"), "{stderr}");
    }
}

#[test]
fn no_prompt() {
    let bench = Bench::new();
    for stderr in [
        refused(bench.run(&[]).write_stdin(""), 2),
        bench.refused(&["-p", ""], 2),
        bench.refused(&["-f", &bench.write("empty.txt", "")], 2),
    ] {
        assert!(stderr.contains("prompt"), "{stderr}");
        assert!(stderr.contains("help: give one with -p TEXT"), "{stderr}");
    }
    let stderr = bench.refused(&["-f", "no-such-file"], 1);
    assert!(stderr.contains("cannot read no-such-file"), "{stderr}");
}

#[test]
#[cfg(unix)]
fn closed_standard_input() {
    let bench = Bench::new();
    let mut command = assert_cmd::Command::new("sh");
    command.args(["-c", "exec \"$0\" run -m \"$1\" <&-"]).arg(env!("CARGO_BIN_EXE_smol"));
    let stderr = refused(command.arg(&bench.model), 2);
    assert!(stderr.contains("standard input is closed or empty"), "{stderr}");
}

#[test]
fn grammars_that_cannot_be_used() {
    let bench = Bench::new();
    for (name, text, words) in [
        ("undefined.gbnf", "root ::= foo", "'foo' is not defined"),
        ("open.gbnf", "root ::= \"a", "line 1"),
        ("left.gbnf", "root ::= root \"a\" | \"b\"", "recursi"),
        ("none.gbnf", "", "grammar"),
    ] {
        let file = bench.write(name, text);
        let stderr = bench.refused(&["-p", "x", "-n", "4", "--grammar", &file], 1);
        assert!(stderr.contains(name) && stderr.contains(words), "{stderr}");
    }
    let file = bench.write("schema.json", "{\"type\": ");
    let stderr = bench.refused(&["-p", "x", "--json-schema", &file], 1);
    assert!(stderr.contains("schema.json: invalid JSON schema"), "{stderr}");
    let stderr = bench.refused(&["-p", "x", "--grammar", "no-such-file"], 1);
    assert!(stderr.contains("cannot read no-such-file"), "{stderr}");
    let stderr = bench.refused(&["-p", "x", "--grammar", "a", "--json-schema", "b"], 2);
    assert!(stderr.contains("--json-schema"), "{stderr}");
}

#[test]
fn models_that_are_no_files() {
    let bench = Bench::new();
    let folder = bench.folder.path();
    let stderr = refused(&mut bench.run_file(folder, &["-p", "x"]), 1);
    assert!(stderr.contains("is a directory, not a .gguf file"), "{stderr}");
    assert!(stderr.contains("did you mean") && stderr.contains("tiny.gguf"), "{stderr}");
    let stderr = refused(&mut bench.run_file(&folder.join("no.gguf"), &["-p", "x"]), 1);
    assert!(stderr.contains("there is no file") && stderr.contains("no.gguf"), "{stderr}");
    let stderr = refused(&mut bench.run_file(Path::new(""), &["-p", "x"]), 2);
    assert!(stderr.contains("the name of the model is empty"), "{stderr}");
    let stderr = refused(&mut bench.run_file(Path::new("nonsense"), &["-p", "x"]), 2);
    assert!(stderr.contains("no model is named `nonsense`"), "{stderr}");
    #[cfg(unix)]
    {
        let stderr = refused(&mut bench.run_file(Path::new("/dev/null"), &["-p", "x"]), 1);
        assert!(stderr.contains("not a regular file"), "{stderr}");
    }
}

#[test]
#[cfg(unix)]
fn models_without_read_permission() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    let bench = Bench::new();
    let folder = bench.folder.path();
    // Root may read everything: the program runs as another user there, from where that may go.
    let smol = folder.join("smol");
    // By another process: one that other tests start meanwhile would inherit the open copy, and what is open to be
    // written can't be run.
    let copied =
        std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_smol")).arg(&smol).status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&bench.model, Permissions::from_mode(0o000)).unwrap();
    let mut command = std::process::Command::new(smol);
    command.arg("run").arg("-m").arg(&bench.model).args(["-p", "x"]).current_dir(folder);
    if std::fs::File::open(&bench.model).is_ok() {
        command.uid(65534);
    }
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("tiny.gguf") && stderr.contains("ermission denied"), "{stderr}");
}

#[test]
#[cfg(target_os = "linux")]
fn too_little_address_space_is_an_error() {
    let bench = Bench::new();
    let text = bench.write("text.txt", "word ".repeat(300));
    let try_with = |what: &str, kib: u32| {
        let mut command = assert_cmd::Command::new("sh");
        command.arg("-c").arg(format!("ulimit -v $2; exec \"$0\" {what} \"$1\""));
        command.arg(env!("CARGO_BIN_EXE_smol")).arg(&bench.model).arg(kib.to_string());
        command.current_dir(bench.folder.path());
        let output = command.arg(&text).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        // A tiny model may fit.
        if output.status.code() != Some(0) {
            assert_eq!(output.status.code(), Some(1), "{what} in {kib} KiB: {stderr}");
            assert!(stderr.contains("memory"), "{what} in {kib} KiB: {stderr}");
        }
    };
    let perplexity = "perplexity -c 128 -t 1 -f \"$3\" -m";
    for what in [
        "run -p x -n 1 -m",
        "bench -p 64 -n 2 -r 1 -t 1 -m",
        perplexity,
        "tokenize -p x -m",
        "chat -p x -n 1 </dev/null -m",
        "plan -m",
        "inspect",
        "recut --merge -f - new.gguf <",
        "vocab select --keep 700 --corpus \"$3\" -m",
    ] {
        for mib in (24..120).step_by(8) {
            try_with(what, mib * 1024);
        }
    }
    // Somewhere here the work buffer of a decode is what no longer fits.
    for kib in (60 * 1024..90 * 1024).step_by(512) {
        try_with(perplexity, kib);
    }
}

#[test]
#[cfg(unix)]
fn texts_without_an_end() {
    let bench = Bench::new();
    for args in [
        &["-f", "/dev/zero"][..],
        &["-p", "x", "--grammar", "/dev/zero"],
        &["-p", "x", "--json-schema", "/dev/zero"],
    ] {
        let stderr = bench.refused(args, 1);
        assert!(stderr.contains("cannot read /dev/zero"), "{stderr}");
        assert!(stderr.contains("longer than 67108864 bytes"), "{stderr}");
    }
    let mut command = assert_cmd::Command::new("sh");
    command.args(["-c", "exec \"$0\" run -m \"$1\" </dev/zero"]);
    let stderr = refused(command.arg(env!("CARGO_BIN_EXE_smol")).arg(&bench.model), 1);
    assert!(stderr.contains("longer than 67108864 bytes"), "{stderr}");
}

#[test]
#[cfg(target_os = "linux")]
fn full_disks_under_standard_output_are_told() {
    let bench = Bench::new();
    for what in ["run -p x -n 1", "run -p x -n 1 --json", "tokenize -p x --json"] {
        let mut command = assert_cmd::Command::new("sh");
        command.arg("-c").arg(format!("exec \"$0\" {what} -m \"$1\" >/dev/full"));
        command.arg(env!("CARGO_BIN_EXE_smol")).arg(&bench.model);
        let stderr = refused(&mut command, 1);
        assert!(stderr.contains("cannot write the output: "), "{stderr}");
    }
}

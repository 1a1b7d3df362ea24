//! Writers of packed weights that end in the middle: killed, or on a full disk.
//!
//! Each is a second process of this very test, which finds its folder in a variable.

#![cfg(unix)]

use smol_engine::pack_cache::{Folder, Key, PackedFile, Unusable, Weight, WriteError};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const VARIABLE: &str = "PACK_CACHE_TEST_FOLDER";
const MEGABYTE: usize = 1 << 20;

fn key() -> Key {
    Key { model: "m".into(), ..Key::default() }
}

fn weight(index: usize) -> Weight {
    Weight {
        name: format!("blk.{index}.weight"),
        layout: "example".into(),
        bytes: MEGABYTE as u64,
        ..Weight::default()
    }
}

fn content(index: usize) -> Vec<u8> {
    vec![index as u8 + 1; MEGABYTE]
}

fn write(folder: &Folder, before: impl Fn(usize)) -> Result<u64, WriteError> {
    let path = folder.file("model.gguf".as_ref(), &key());
    folder.write(&path, &key(), 8 * MEGABYTE as u64, |writer| {
        (0..8).try_for_each(|index| {
            before(index);
            writer.add(&weight(index), |out| out.write_all(&content(index)))
        })
    })
}

fn check_whole(folder: &Folder) {
    let path = folder.file("model.gguf".as_ref(), &key());
    let file = PackedFile::open(&path, &key()).unwrap();
    file.verify().unwrap();
    for index in 0..8 {
        assert_eq!(file.find(&weight(index)), Some(&content(index)[..]));
    }
}

fn shown(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with('.')).collect()
}

/// The folder, in the second process.
fn second() -> Option<Folder> {
    std::env::var_os(VARIABLE).map(Folder::new)
}

#[test]
fn a_killed_writer_leaves_no_file_and_no_lock() {
    if let Some(folder) = second() {
        // Waits for the end in the middle of it.
        let _ = write(&folder, |index| {
            if index == 4 {
                eprintln!("in the middle");
                loop {
                    std::thread::park();
                }
            }
        });
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_writer_leaves_no_file_and_no_lock", "--nocapture"])
        .env(VARIABLE, temporary.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stderr.take().unwrap());
    assert!(out.lines().any(|line| line.unwrap().contains("in the middle")));
    // It writes now, and nobody else does.
    assert!(matches!(write(&folder, |_| unreachable!()), Err(WriteError::Busy)));
    let path = folder.file("model.gguf".as_ref(), &key());
    assert!(matches!(PackedFile::open(&path, &key()), Err(Unusable::Missing)));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(shown(temporary.path()).is_empty());
    write(&folder, |_| {}).unwrap();
    check_whole(&folder);
    assert_eq!(shown(temporary.path()), [path]);
}

#[test]
fn a_disk_that_is_full_leaves_nothing() {
    if let Some(folder) = second() {
        let error = write(&folder, |_| {}).unwrap_err();
        eprintln!("refused: {error}");
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path());
    // No file of more than 2 MiB, for which the system has an error as for a full disk.
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$0\" \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_disk_that_is_full_leaves_nothing", "--nocapture"])
        .env(VARIABLE, temporary.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("refused: "), "{output:?}");
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    write(&folder, |_| {}).unwrap();
    check_whole(&folder);
}

#[test]
fn all_of_many_writers_succeed_or_are_told() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path());
    let results: Vec<_> = std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| write(&folder, |_| {}));
        let threads: Vec<_> = (0..4).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.iter().any(Result::is_ok));
    let fair = |result: &Result<u64, WriteError>| matches!(result, Ok(_) | Err(WriteError::Busy));
    assert!(results.iter().all(fair), "{results:?}");
    check_whole(&folder);
}

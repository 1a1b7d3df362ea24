//! This library and whisper.cpp in one process, each with its own ggml.

#[path = "../src/ours.rs"]
mod ours;
#[path = "../src/whisper.rs"]
mod whisper;

use std::process::Command;
use std::thread;

/// What a program that links only one of the two prints.
fn alone(program: &str) -> String {
    let output = Command::new(program).output().expect("the program starts");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn each_has_its_own_ggml() {
    assert_ne!(ours::version(), whisper::version());
    assert_eq!(ours::version(), smolmaxxing::build_info().ggml_version);
}

#[test]
fn both_compute_what_they_compute_alone() {
    assert_eq!(ours::run().expect("ours"), alone(env!("CARGO_BIN_EXE_ours_alone")));
    assert_eq!(whisper::run().expect("whisper"), alone(env!("CARGO_BIN_EXE_whisper_alone")));
}

#[test]
fn both_compute_at_the_same_time() {
    let threads = [
        thread::spawn(|| ours::run().expect("ours")),
        thread::spawn(|| whisper::run().expect("whisper")),
    ];
    let [a, b] = threads.map(|thread| thread.join().expect("no panic"));
    assert_eq!(a, alone(env!("CARGO_BIN_EXE_ours_alone")));
    assert_eq!(b, alone(env!("CARGO_BIN_EXE_whisper_alone")));
}

//! Quantizing files.

use llama_rs::{ErrorKind, FileType, Model, Quantize};
use testkit::tiny::Arch;

use crate::models::{assert_within, copy_to, logits_after, some_tokens, tiny, tiny_file};

#[test]
fn a_quantized_model_is_smaller_and_computes_nearly_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("q8.gguf");
    Quantize::new(FileType::Q8_0).threads(1).run(tiny_file(Arch::Llama), &to).unwrap();
    let small = Model::load(&to).unwrap();
    let large = tiny(Arch::Llama);
    assert!(small.size() < large.size() * 6 / 10);
    let tokens = some_tokens(20);
    assert_within(&logits_after(&small, &tokens), &logits_after(&large, &tokens), 0.1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn failures_leave_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let copy = copy_to(folder.path(), &tiny_file(Arch::Llama));
    let run = |from: &std::path::Path, to: &std::path::Path| {
        Quantize::new(FileType::Q4_0).threads(1).run(from, to).unwrap_err()
    };
    assert_eq!(run(&copy, &copy).kind(), &ErrorKind::InvalidArgument);
    let bad = folder.path().join("bad.gguf");
    std::fs::write(&bad, b"<html>").unwrap();
    let to = folder.path().join("out.gguf");
    assert_eq!(run(&bad, &to).kind(), &ErrorKind::Gguf);
    let q8 = folder.path().join("q8.gguf");
    Quantize::new(FileType::Q8_0).threads(1).run(&copy, &q8).unwrap();
    let error = run(&q8, &to);
    assert!(error.message().contains("requantiz"), "{error}");
    assert!(!to.exists());
    let mut names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["bad.gguf", "copy.gguf", "q8.gguf"]);
    let none = folder.path().join("missing").join("out.gguf");
    run(&copy, &none);
    assert!(Quantize::new(FileType::Q8_0).threads(9999).run(&copy, &to).is_err());
}

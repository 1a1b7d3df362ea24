//! A C program, and a C++ one, that include the header and link the static library, run a model.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::tiny::Arch;

/// What the static library needs of the system (`rustc --print native-static-libs`).
#[cfg(any(target_os = "macos", target_os = "ios"))]
const SYSTEM_LIBRARIES: &[&str] = &["-lc++", "-lm"];
#[cfg(not(any(target_os = "macos", target_os = "ios")))]
const SYSTEM_LIBRARIES: &[&str] = &["-lstdc++", "-lm", "-lpthread", "-ldl", "-lrt", "-lutil"];

/// The library that cargo has built with this test: the newest, as its name has a hash of features and versions.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("this test's path");
    fs::read_dir(test.parent().expect("a folder"))
        .expect("cargo's folder")
        .map(|entry| entry.expect("cargo's folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "a"))
        .filter(|path| path.to_string_lossy().contains("libsmol_capi"))
        .max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
        .expect("cargo has built the static library")
}

/// Compiles and links an example with the compiler that the build scripts use.
fn compile(cpp: bool, source: &Path, program: &Path) {
    let triple = env!("SMOL_CAPI_TARGET");
    let compiler = cc::Build::new()
        .cpp(cpp)
        .host(triple)
        .target(triple)
        .opt_level(0)
        .cargo_metadata(false)
        .get_compiler();
    let output = Command::new(compiler.path())
        .args(if cpp { ["-x", "c++"] } else { ["-x", "c"] })
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg(if cpp { "-std=c++17" } else { "-std=c99" })
        .arg("-I")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"))
        .arg(source)
        .args(["-x", "none"])
        .arg(library())
        .args(SYSTEM_LIBRARIES)
        .arg("-o")
        .arg(program)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_c_program_gives_the_tokens_of_llama_rs() {
    let tiny = common::write(Arch::Qwen3);
    let prompt = "Once there was";
    let reference = llama_rs::Model::load(tiny.path()).unwrap();
    let sampler = llama_rs::SamplerBuilder::greedy().build(&reference).unwrap();
    let context = reference.context().n_ctx(256).build().unwrap();
    let mut reference = llama_rs::Session::new(context, sampler).unwrap();
    let options =
        llama_rs::GenerateOptions { max_tokens: Some(32), ..llama_rs::GenerateOptions::default() };
    let expected = reference.generate(prompt, &options).unwrap().collect_text().unwrap();
    assert!(!expected.is_empty());

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/complete.c");
    let folder = tempfile::tempdir().unwrap();
    for cpp in [false, true] {
        let program = folder.path().join(if cpp { "complete-cpp" } else { "complete-c" });
        compile(cpp, &source, &program);
        let output = Command::new(&program).arg(tiny.path()).args([prompt, "32"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        let output = Command::new(&program).args(["no-such.gguf", prompt, "32"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.starts_with("loading: no-such.gguf: "), "{message}");
    }
}

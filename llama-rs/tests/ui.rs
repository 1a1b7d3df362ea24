//! Programs that must not compile, each with the compiler's words.

use std::env;
use std::process::Command;

/// The compiler whose words the `.stderr` files hold: others say the same differently.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn lifetimes_and_threads_are_checked_by_the_compiler() {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(compiler).arg("--version").output().expect("the compiler runs");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !version.starts_with(COMPILER) {
        // The `compile_fail` examples of the documentation check the same with any compiler.
        eprintln!("{version:?} may word its errors differently than {COMPILER}x: not compared");
        return;
    }
    // The cases are only checked, so that nothing needs llama.cpp: this keeps its build script from compiling it.
    if env::var_os("DOCS_RS").is_none() {
        let this = env::current_exe().expect("a test knows its file");
        let status =
            Command::new(this).env("DOCS_RS", "1").status().expect("a test can run itself");
        assert!(status.success(), "see above");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}

//! Upstream's tools as functions. What they compute is tested by the programs of llama-tools.
#![cfg(feature = "tools")]

use ggml_sys::tools::{self, Tool};
use std::ffi::CString;

fn args(words: &[&str]) -> Vec<CString> {
    words.iter().map(|word| CString::new(*word).expect("no NUL")).collect()
}

#[test]
fn the_exit_code_comes_back() {
    ggml_sys::cpu::check().expect("tests run on the machine that they were built for");
    let unknown = args(&["llama-perplexity", "--no-such-option"]);
    assert_eq!(tools::run(Tool::PERPLEXITY, &unknown), Ok(1));
    // A second one may follow.
    let missing = args(&["llama-quantize", "/no/such/file.gguf", "/no/such/out.gguf", "q8_0"]);
    assert_eq!(tools::run(Tool::QUANTIZE, &missing), Ok(1));
}

#[test]
fn names_are_upstreams() {
    let tools = [Tool::BENCH, Tool::PERPLEXITY, Tool::QUANTIZE, Tool::COMPLETION];
    let names = tools.map(|tool| tool.to_string());
    assert_eq!(names, ["llama-bench", "llama-perplexity", "llama-quantize", "llama-completion"]);
}

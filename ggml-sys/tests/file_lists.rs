//! The lists of compiled files are those of upstream's CMakeLists.txt files.

#[allow(dead_code)]
#[path = "../build/files.rs"]
mod files;
#[allow(dead_code)]
#[path = "../build/tool_files.rs"]
mod tool_files;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Left out: `native/registry.cpp` is compiled instead (tests/registry.rs compares what they define).
const REPLACED: &[&str] = &["ggml/src/ggml-backend-dl.cpp", "ggml/src/ggml-backend-reg.cpp"];

fn tree() -> &'static Path {
    Path::new(env!("GGML_SYS_TREE"))
}

/// Source files named between two markers of a CMakeLists.txt, with a folder put before each.
fn listed(cmake: &str, from: &str, to: &str, folder: &str) -> BTreeSet<String> {
    let text =
        fs::read_to_string(tree().join(cmake)).expect("the tree has its CMakeLists.txt files");
    let start = text.find(from).unwrap_or_else(|| panic!("{cmake} has no `{from}`"));
    let block = &text
        [start..start + text[start..].find(to).unwrap_or_else(|| panic!("{cmake} has no `{to}`"))];
    block
        .split(|c: char| c.is_whitespace() || c == '(' || c == ')')
        .filter(|word| word.ends_with(".c") || word.ends_with(".cpp"))
        .map(|word| format!("{folder}{word}"))
        .collect()
}

fn ours(lists: &[&[&str]]) -> BTreeSet<String> {
    lists.iter().flat_map(|list| list.iter()).map(|name| (*name).to_owned()).collect()
}

#[test]
fn ggml_base() {
    let cmake = "ggml/src/CMakeLists.txt";
    let mut upstream = listed(cmake, "add_library(ggml-base", "set_target_properties", "ggml/src/");
    upstream.extend(listed(cmake, "add_library(ggml\n", "add_library(ggml::ggml", "ggml/src/"));
    assert_eq!(ours(&[files::BASE_C, files::BASE_CPP, REPLACED]), upstream);
}

#[test]
fn cpu_backend() {
    let cmake = "ggml/src/ggml-cpu/CMakeLists.txt";
    let mut upstream =
        listed(cmake, "list (APPEND GGML_CPU_SOURCES", "target_compile_features", "ggml/src/");
    upstream.extend(listed(cmake, "if (GGML_LLAMAFILE)", "if (GGML_CPU_HBM)", "ggml/src/"));
    assert_eq!(ours(&[files::CPU_C, files::CPU_CPP]), upstream);
}

#[test]
fn kernels_of_each_architecture() {
    let cmake = "ggml/src/ggml-cpu/CMakeLists.txt";
    for (arch, marker) in [
        ("x86_64", "message(STATUS \"x86 detected\")"),
        ("aarch64", "message(STATUS \"ARM detected\")"),
    ] {
        let upstream = listed(cmake, marker, "if (MSVC", "ggml/src/");
        let (c, cpp) = files::cpu_arch(arch);
        assert_eq!(ours(&[c, cpp]), upstream, "{arch}");
    }
}

#[test]
fn llama() {
    let upstream = listed("src/CMakeLists.txt", "set(LLAMA_CORE_SOURCES", ")", "src/");
    assert_eq!(ours(&[files::LLAMA]), upstream);
}

#[test]
fn models_are_batched_as_upstream_does() {
    let text = fs::read_to_string(tree().join("src/CMakeLists.txt")).expect("the tree is complete");
    assert!(text.contains("GLOB LLAMA_MODELS_SOURCES \"models/*.cpp\""));
    assert!(text.contains(&format!("UNITY_BUILD_BATCH_SIZE {}", files::MODELS_PER_UNIT)));
    let count = fs::read_dir(tree().join(files::MODELS)).expect("models").count();
    assert!(count > 150, "only {count} model files");
}

#[test]
fn defaults_that_the_defines_stand_for() {
    let text =
        fs::read_to_string(tree().join("ggml/CMakeLists.txt")).expect("the tree is complete");
    assert!(text.contains("set(GGML_SCHED_MAX_COPIES  \"4\""));
    assert!(text.contains(
        "option(GGML_CPU_REPACK       \"ggml: use runtime weight conversion of Q4_0 to Q4_X_X\" ON)"
    ));
    let text = fs::read_to_string(tree().join("CMakeLists.txt")).expect("the tree is complete");
    assert!(text.contains("set(GGML_LLAMAFILE_DEFAULT ON)"));
}

/// The lists that only a build with the feature copies.
#[cfg(feature = "tools")]
mod tools {
    use super::{listed, ours, tool_files, tree};
    use std::fs;

    #[test]
    fn common() {
        let upstream = listed(
            "common/CMakeLists.txt",
            "add_library(${TARGET}\n    ${LLAMA_CHAT_PARSERS_SOURCES}",
            "set_target_properties",
            "common/",
        );
        assert_eq!(ours(&[tool_files::COMMON]), upstream);
    }

    #[test]
    fn parsers() {
        let cmake = "common/parsers/sources.cmake";
        let upstream: std::collections::BTreeSet<_> =
            listed(cmake, "set(LLAMA_CHAT_PARSERS_SOURCES", "translate-gemma.cpp\n)", "")
                .iter()
                .map(|name| name.replace("${CMAKE_CURRENT_LIST_DIR}", "common/parsers"))
                .chain(["common/parsers/translate-gemma.cpp".to_owned()])
                .collect();
        assert_eq!(ours(&[tool_files::PARSERS]), upstream);
    }

    #[test]
    fn http_with_its_limits() {
        let cmake = "vendor/cpp-httplib/CMakeLists.txt";
        let upstream = listed(cmake, "add_library(${TARGET} STATIC", "\n", "vendor/cpp-httplib/");
        assert_eq!(ours(&[tool_files::HTTP]), upstream);
        let text = fs::read_to_string(tree().join(cmake)).expect("the tree is complete");
        for define in [
            "CPPHTTPLIB_FORM_URL_ENCODED_PAYLOAD_MAX_LENGTH=1048576",
            "CPPHTTPLIB_LISTEN_BACKLOG=512",
            "CPPHTTPLIB_REQUEST_URI_MAX_LENGTH=32768",
            "CPPHTTPLIB_TCP_NODELAY=1",
        ] {
            assert!(text.contains(define), "{define}");
        }
    }

    #[test]
    fn each_tool_is_a_library_of_one_file() {
        let mut upstream = std::collections::BTreeSet::new();
        for folder in ["llama-bench", "perplexity", "quantize", "completion"] {
            let folder = format!("tools/{folder}/");
            let cmake = format!("{folder}CMakeLists.txt");
            upstream.extend(listed(&cmake, "add_library(${TARGET}", ")\n", &folder));
        }
        assert_eq!(ours(&[tool_files::TOOLS]), upstream);
    }

    #[test]
    fn options_that_the_defines_stand_for() {
        let text = fs::read_to_string(tree().join("CMakeLists.txt")).expect("the tree is complete");
        assert!(text.contains("set(LLAMA_SUBPROCESS_DEFAULT ON)"));
        assert!(text.contains("OR CMAKE_SYSTEM_NAME STREQUAL \"Android\""));
    }
}

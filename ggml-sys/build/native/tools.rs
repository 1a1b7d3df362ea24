//! Feature `tools`: upstream's `common` library, the libraries of its tools, and the C entry points to them.

use super::Group;
use crate::pin::{Pin, sha256_parts};
use crate::source::{Copied, write_if_changed};
use crate::tool_files;
use crate::vars::Vars;
use std::fs;
use std::path::{Path, PathBuf};

/// The groups to compile; none without the feature. `group` makes one of the tree's C or C++ files, `entry` one of files
/// in `native/`.
///
/// # Errors
///
/// The target cannot have the tools, or a generated file cannot be written.
pub fn groups(
    compiler: &str,
    vars: &Vars,
    pin: &Pin,
    tree: &Path,
    copied: &Copied,
    group: impl Fn(&str, bool, Vec<PathBuf>) -> Group,
    entry: impl FnOnce(&str, &[&str]) -> Group,
) -> Result<Vec<Group>, String> {
    if !vars.features.contains("tools") {
        return Ok(vec![]);
    }
    refuse_old_ios(vars)?;
    let dir = vars.out_dir.join("tools");
    let parsers = dir.join("parsers.cpp");
    let text: String = tool_files::PARSERS
        .iter()
        .map(|name| format!("#include \"{}\"\n", in_include(name)))
        .collect();
    write_if_changed(&parsers, text.as_bytes())?;
    let build_info = dir.join("build-info.cpp");
    let info = build_info_source(compiler, vars, pin, tree)?;
    write_if_changed(&build_info, info.as_bytes())?;

    let in_tree = |names: &[&str]| names.iter().map(|name| tree.join(name)).collect::<Vec<_>>();
    let group = |name: &str, files: Vec<PathBuf>| Group {
        defines: defines(&vars.target_os),
        includes: tool_files::INCLUDES.iter().map(|dir| tree.join(dir)).collect(),
        inputs: sha256_parts([compiler.as_bytes(), copied.headers_with_tools.as_bytes()]),
        ..group(name, true, files)
    };
    // Options, templates and downloads take no time that counts: small, and compiled in two thirds of the time.
    let small = |name: &str, files| Group { flags: vec!["-Os".to_owned()], ..group(name, files) };
    let mut http = small("http", in_tree(tool_files::HTTP));
    // As vendor/cpp-httplib/CMakeLists.txt sets them.
    http.defines.extend([
        ("CPPHTTPLIB_FORM_URL_ENCODED_PAYLOAD_MAX_LENGTH", Some("1048576".to_owned())),
        ("CPPHTTPLIB_LISTEN_BACKLOG", Some("512".to_owned())),
        ("CPPHTTPLIB_REQUEST_URI_MAX_LENGTH", Some("32768".to_owned())),
        ("CPPHTTPLIB_TCP_NODELAY", Some("1".to_owned())),
    ]);
    let mut common = in_tree(tool_files::COMMON);
    common.extend([parsers, build_info]);
    Ok(vec![
        http,
        small("common", common),
        group("tools", in_tree(tool_files::TOOLS)),
        entry("tools-entry", tool_files::ENTRY),
    ])
}

/// The tools use std::filesystem, which iOS has since version 13.
fn refuse_old_ios(vars: &Vars) -> Result<(), String> {
    let Some(version) = vars.ios_version.as_deref().filter(|_| vars.target_os == "ios") else {
        return Ok(());
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 13) {
        return Ok(());
    }
    Err(format!(
        "the feature `tools` needs iOS 13 or newer, because upstream's tools use std::filesystem, and this build is for \
         iOS {version}: set IPHONEOS_DEPLOYMENT_TARGET=13.0, or build without the feature (llama-rs and smol have what \
         the tools do)"
    ))
}

fn defines(target_os: &str) -> Vec<(&'static str, Option<String>)> {
    let mut defines = vec![("NDEBUG", None), ("GGML_USE_CPU", None)];
    // As upstream: mobile systems do not let a program start others.
    if !matches!(target_os, "ios" | "android") {
        defines.push(("LLAMA_SUBPROCESS", None));
    }
    defines
}

/// A file of `common/`, as `#include` finds it.
fn in_include(name: &str) -> &str {
    name.trim_start_matches("common/")
}

/// Upstream's template with what cmake would fill in.
fn build_info_source(
    compiler: &str,
    vars: &Vars,
    pin: &Pin,
    tree: &Path,
) -> Result<String, String> {
    let path = tree.join(tool_files::BUILD_INFO);
    let template = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let literal = |text: &str| text.replace(['"', '\\'], "'");
    let text = template
        .replace("@LLAMA_BUILD_NUMBER@", &pin.build_number.to_string())
        .replace("@LLAMA_BUILD_COMMIT@", &pin.commit)
        .replace("@BUILD_COMPILER@", &literal(&compiler_name(compiler)))
        .replace("@BUILD_TARGET@", &literal(&target_name(vars)));
    if text.contains('@') {
        return Err(format!("{} has an @NAME@ that this build does not fill in", path.display()));
    }
    Ok(text)
}

/// Kind and version of a compiler, as cmake spells them, out of the first line of its `--version`.
fn compiler_name(line: &str) -> String {
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    if let Some((before, after)) = line.split_once("clang version ") {
        let kind = if before.contains("Apple") { "AppleClang" } else { "Clang" };
        return format!("{kind} {}", after.split_whitespace().next().unwrap_or_default());
    }
    match line.split_whitespace().next_back().filter(is_version) {
        Some(version) => format!("GNU {version}"),
        None => line.to_owned(),
    }
}

/// System and processor, as cmake spells them.
fn target_name(vars: &Vars) -> String {
    let apple = matches!(vars.target_os.as_str(), "macos" | "ios");
    let system = match vars.target_os.as_str() {
        "linux" => "Linux",
        "android" => "Android",
        "macos" => "Darwin",
        "ios" => "iOS",
        other => other,
    };
    let processor = match vars.target_arch.as_str() {
        "aarch64" if apple => "arm64",
        other => other,
    };
    format!("{system} {processor}")
}

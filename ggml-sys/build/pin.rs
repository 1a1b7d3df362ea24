//! Which llama.cpp: version, commit, package, and the sha256 of every file that is used.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The contents of `vendor/pin.toml` and `vendor/files.sha256`.
pub struct Pin {
    pub llama_version: String,
    pub ggml_version: String,
    pub commit: String,
    /// Commits up to it, which upstream's tools print as the build number.
    pub build_number: u32,
    pub package: String,
    pub package_version: String,
    /// Path inside the tree -> sha256 in hex.
    pub files: BTreeMap<String, String>,
}

impl Pin {
    pub fn load(manifest_dir: &Path) -> Result<Self, String> {
        let path = manifest_dir.join("vendor/pin.toml");
        let table: toml::Table =
            read(&path)?.parse().map_err(|e| format!("{}: {e}", path.display()))?;
        let text = |key: &str| match table.get(key).and_then(|value| value.as_str()) {
            Some(value) => Ok(value.to_owned()),
            None => Err(format!("{}: key `{key}` is missing or not a string", path.display())),
        };
        let list = manifest_dir.join("vendor/files.sha256");
        let mut files = BTreeMap::new();
        for (number, line) in read(&list)?.lines().enumerate() {
            let (hash, name) =
                line.split_once("  ").filter(|(hash, _)| hash.len() == 64).ok_or_else(|| {
                    format!("{}:{}: not a `sha256  path` line", list.display(), number + 1)
                })?;
            files.insert(name.to_owned(), hash.to_owned());
        }
        Ok(Pin {
            llama_version: text("llama_version")?,
            ggml_version: text("ggml_version")?,
            commit: text("commit")?,
            build_number: table
                .get("build_number")
                .and_then(|value| value.as_integer())
                .and_then(|number| u32::try_from(number).ok())
                .ok_or_else(|| {
                    format!("{}: key `build_number` is missing or no number", path.display())
                })?,
            package: text("package")?,
            package_version: text("package_version")?,
            files,
        })
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path)
        .map_err(|e| format!("{}: {e}; is the package complete?", path.display()))
}

/// sha256 of some bytes, in lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// sha256 over several parts, each preceded by its length.
pub fn sha256_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

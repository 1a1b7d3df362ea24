//! Refuses a ggml-sys whose patches are not the ones that this version was written for.
//!
//! The series lies in `patches/`. ggml-sys tells which patches it applied and one hash of them; the same hash is made
//! here from this package's copy of the series.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use sha2::{Digest, Sha256};

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=patches");
    println!("cargo::rerun-if-env-changed=DEP_SMOL_LLAMA_PATCHES");
    println!("cargo::rerun-if-env-changed=DEP_SMOL_LLAMA_PATCH_SET");
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={message}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<(), String> {
    let told = |name: &str| {
        env::var(name)
            .map_err(|_| format!("ggml-sys did not tell {name}: it is too old or not built"))
    };
    let applied = told("DEP_SMOL_LLAMA_PATCHES")?;
    let theirs = told("DEP_SMOL_LLAMA_PATCH_SET")?;
    let folder = PathBuf::from(told("CARGO_MANIFEST_DIR")?).join("patches");
    let series = read_series(&folder)?;
    let mut ours = Sha256::new();
    for id in applied.split(',').filter(|id| !id.is_empty()) {
        let file = series.iter().find(|(known, _)| known == id).map(|(_, file)| file);
        let file = file.ok_or_else(|| {
            format!(
                "ggml-sys applied the patch {id}, which this version of smolmaxxing does not know"
            )
        })?;
        let diff = fs::read(folder.join(file)).map_err(|e| format!("patches/{file}: {e}"))?;
        for part in [id.as_bytes(), hex(&Sha256::digest(&diff)).as_bytes()] {
            ours.update((part.len() as u64).to_le_bytes());
            ours.update(part);
        }
    }
    let ours = hex(&ours.finalize());
    if ours == theirs {
        return Ok(());
    }
    Err(format!(
        "ggml-sys applied other patches than this version of smolmaxxing was written for ({theirs} instead of {ours}); \
         use the ggml-sys of the same version"
    ))
}

/// Id and file of each patch.
fn read_series(folder: &Path) -> Result<Vec<(String, String)>, String> {
    let path = folder.join("series.toml");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let table: toml::Table = text.parse().map_err(|e| format!("{}: {e}", path.display()))?;
    let patches = table.get("patch").and_then(toml::Value::as_array).cloned().unwrap_or_default();
    let text = |patch: &toml::Value, key: &str| {
        let value = patch.get(key).and_then(toml::Value::as_str).map(str::to_owned);
        value.ok_or_else(|| format!("{}: a patch has no {key}", path.display()))
    };
    patches.iter().map(|patch| Ok((text(patch, "id")?, text(patch, "file")?))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

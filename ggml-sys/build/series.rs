//! The patch series: `patches/series.toml` and one unified diff a patch, checked by hash before and after.

use crate::pin::{sha256, sha256_parts};
use diffy::patch_set::{FileOperation, ParseOptions, PatchSet};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// One patch of the series.
pub struct Patch {
    pub id: String,
    pub file: String,
    pub purpose: String,
    pub source: String,
    pub upstream: String,
    pub test: String,
    pub sha256: String,
    /// Whether its cargo feature is on.
    pub enabled: bool,
    diff: String,
    touches: Vec<Touch>,
}

struct Touch {
    path: String,
    before: String,
    after: String,
}

/// All patches in order.
pub struct Series {
    pub patches: Vec<Patch>,
    path: PathBuf,
}

impl Series {
    pub fn load(manifest_dir: &Path, features: &BTreeSet<String>) -> Result<Self, String> {
        let dir = manifest_dir.join("patches");
        let path = dir.join("series.toml");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let table: toml::Table = text.parse().map_err(|e| format!("{}: {e}", path.display()))?;
        let mut patches = Vec::new();
        for entry in list(&table, "patch") {
            let text =
                |key: &str| field(entry, key).map_err(|e| format!("{}: {e}", path.display()));
            let file = text("file")?;
            let diff = fs::read_to_string(dir.join(&file)).map_err(|e| {
                format!("{} lists patches/{file}, which cannot be read: {e}", path.display())
            })?;
            let mut touches = Vec::new();
            for touch in list(entry, "touches") {
                let text = |key: &str| {
                    field(touch, key).map_err(|e| format!("{}: {file}: {e}", path.display()))
                };
                touches.push(Touch {
                    path: text("path")?,
                    before: text("before")?,
                    after: text("after")?,
                });
            }
            patches.push(Patch {
                id: text("id")?,
                purpose: text("purpose")?,
                source: text("source")?,
                upstream: text("upstream")?,
                test: text("test")?,
                sha256: sha256(diff.as_bytes()),
                enabled: features.contains(&text("feature")?),
                file,
                diff,
                touches,
            });
        }
        let series = Series { patches, path };
        series.refuse_unlisted(&dir)?;
        Ok(series)
    }

    fn refuse_unlisted(&self, dir: &Path) -> Result<(), String> {
        for entry in fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))? {
            let name = entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned();
            let is_patch = name.ends_with(".patch") || name.ends_with(".diff");
            if is_patch && !self.patches.iter().any(|patch| patch.file == name) {
                return Err(format!(
                    "patches/{name} is not listed in {}: add it or remove it",
                    self.path.display()
                ));
            }
        }
        Ok(())
    }

    /// Applies every enabled patch, in memory.
    pub fn apply(&self, tree: &mut BTreeMap<String, Vec<u8>>) -> Result<(), String> {
        // A hash in series.toml holds only while every earlier patch of the same file is applied.
        let mut incomplete: BTreeSet<&str> = BTreeSet::new();
        for patch in &self.patches {
            if !patch.enabled {
                incomplete.extend(patch.touches.iter().map(|touch| touch.path.as_str()));
                continue;
            }
            patch.apply(tree, &incomplete)?;
        }
        Ok(())
    }

    /// One hash for ids, order and contents of the enabled patches.
    pub fn digest(&self) -> String {
        sha256_parts(
            self.patches
                .iter()
                .filter(|patch| patch.enabled)
                .flat_map(|patch| [patch.id.as_bytes(), patch.sha256.as_bytes()]),
        )
    }

    pub fn enabled(&self, id: &str) -> bool {
        self.patches.iter().any(|patch| patch.enabled && patch.id == id)
    }
}

impl Patch {
    fn apply(
        &self,
        tree: &mut BTreeMap<String, Vec<u8>>,
        incomplete: &BTreeSet<&str>,
    ) -> Result<(), String> {
        let name = format!("patches/{}", self.file);
        let mut applied = BTreeSet::new();
        for part in PatchSet::parse(&self.diff, ParseOptions::unidiff()) {
            let part = part.map_err(|e| format!("{name} is not a unified diff: {e}"))?;
            let path = match part.operation().strip_prefix(1) {
                FileOperation::Modify { original, modified } if original == modified => {
                    original.to_string()
                }
                other => {
                    return Err(format!(
                        "{name}: only changes to existing files are supported, not {other:?}"
                    ));
                }
            };
            let touch = self.touches.iter().find(|touch| touch.path == path).ok_or_else(|| {
                format!("{name} changes {path}, which series.toml does not list for it")
            })?;
            let bytes = tree
                .get(&path)
                .ok_or_else(|| format!("{name} changes {path}, which the pin does not have"))?;
            let check = |what: &str, want: &str, got: &str| {
                if incomplete.contains(path.as_str()) || want == got {
                    return Ok(());
                }
                Err(format!(
                    "{name}: {path} has sha256 {got} {what} the patch, series.toml says {want}"
                ))
            };
            check("before", &touch.before, &sha256(bytes))?;
            let text = std::str::from_utf8(bytes)
                .map_err(|e| format!("{name}: {path} is not UTF-8: {e}"))?;
            let hunks = part
                .patch()
                .as_text()
                .ok_or_else(|| format!("{name}: {path} is a binary change"))?;
            let patched = diffy::apply(text, hunks)
                .map_err(|e| format!("{name} does not apply to {path}: {e}"))?;
            check("after", &touch.after, &sha256(patched.as_bytes()))?;
            tree.insert(path.clone(), patched.into_bytes());
            applied.insert(path);
        }
        match self.touches.iter().find(|touch| !applied.contains(&touch.path)) {
            Some(touch) => {
                Err(format!("{name} does not change {}, although series.toml says so", touch.path))
            }
            None => Ok(()),
        }
    }
}

fn list<'a>(table: &'a toml::Table, key: &str) -> impl Iterator<Item = &'a toml::Table> {
    table
        .get(key)
        .and_then(|value| value.as_array())
        .into_iter()
        .flatten()
        .filter_map(|value| value.as_table())
}

fn field(table: &toml::Table, key: &str) -> Result<String, String> {
    table
        .get(key)
        .and_then(|value| value.as_str())
        .map(str::to_owned)
        .ok_or_else(|| format!("a patch lacks the key `{key}`"))
}

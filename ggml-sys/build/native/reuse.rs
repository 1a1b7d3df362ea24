//! Objects that need not be compiled: those of an earlier run, and those of another build of this crate in the same
//! target folder.
//!
//! Cargo gives every profile and set of features, and many a set of selected packages, an OUT_DIR of its own, although
//! most files compile to the same objects in all of them: the key of a file has everything that matters, and no path of
//! OUT_DIR. With other patches only the files that they change are compiled.

use crate::source::write_if_changed;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The objects of other builds, by the keys of what they were compiled from.
pub struct Objects(HashMap<String, PathBuf>);

impl Objects {
    /// Finds those of all builds in the target folder: `PROFILE/build/ggml-sys-HASH/out` beside the own one.
    pub fn find(out_dir: &Path) -> Self {
        let mut objects = HashMap::new();
        let mut builds = Self::builds(out_dir).unwrap_or_default();
        // Last: where several have an object, the own one is taken.
        builds.sort_by_key(|out| out == out_dir);
        for out in builds {
            for group in fs::read_dir(out.join("objects")).into_iter().flatten().flatten() {
                objects.extend(read_stamp(&group.path()));
            }
        }
        Self(objects)
    }

    fn builds(out_dir: &Path) -> Option<Vec<PathBuf>> {
        let own = out_dir.parent()?;
        let (package, _) = own.file_name()?.to_str()?.rsplit_once('-')?;
        let profiles = fs::read_dir(own.ancestors().nth(3)?).ok()?.flatten();
        let builds = profiles.filter_map(|profile| fs::read_dir(profile.path().join("build")).ok());
        let paths = builds.flat_map(|builds| builds.flatten()).map(|build| build.path());
        let is_ours = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()?.rsplit_once('-'));
            name.is_some_and(|(name, _)| name == package)
        };
        Some(paths.filter(is_ours).map(|path| path.join("out")).collect())
    }

    /// Returns the object with this key, which lies in `dir` or is copied to there; `None` when there is none.
    pub fn take(&self, key: &str, dir: &Path) -> Option<PathBuf> {
        let object = self.0.get(key)?;
        let theirs = object.parent()?;
        if theirs == dir {
            return object.is_file().then(|| object.clone());
        }
        let path = dir.join(object.file_name()?);
        fs::create_dir_all(dir).ok()?;
        // Not linked: the next compiler run there would write into both.
        fs::copy(object, &path).ok()?;
        // Cargo may be compiling another profile: nothing was overwritten meanwhile.
        (read_stamp(theirs).get(key) == Some(object)).then_some(path)
    }
}

/// Where a group's objects lie.
pub fn objects_dir(out_dir: &Path, group: &str) -> PathBuf {
    out_dir.join("objects").join(group)
}

/// Notes which objects are complete, each with the key of what it was compiled from.
pub fn write_stamp(dir: &Path, keys: &[String], objects: &[Option<PathBuf>]) -> Result<(), String> {
    let mut text = String::new();
    for (key, object) in keys.iter().zip(objects) {
        if let Some(name) = object.as_ref().and_then(|object| object.file_name()?.to_str()) {
            text.push_str(&format!("{key} {name}\n"));
        }
    }
    write_if_changed(&dir.join("stamp"), text.as_bytes())
}

fn read_stamp(dir: &Path) -> HashMap<String, PathBuf> {
    let text = fs::read_to_string(dir.join("stamp")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(key, name)| (key.to_owned(), dir.join(name))).collect()
}

//! Objects that need not be compiled: those of an earlier run, and those of another build of this crate in the same
//! target folder.
//!
//! Cargo gives every profile and set of features, and many a set of selected packages, an OUT_DIR of its own, although
//! most groups compile to the same objects in all of them: their key has everything that matters and no path of OUT_DIR.

use std::fs;
use std::path::{Path, PathBuf};

/// Objects that were compiled with this key from these files, here or in another build; those are copied to here.
pub fn find(out_dir: &Path, group: &str, key: &str, files: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let dir = objects_dir(out_dir, group);
    if let Some(objects) = read_stamp(&dir, key, files) {
        return Some(objects);
    }
    // .../PROFILE/build/ggml-sys-HASH/out
    let own = out_dir.parent()?;
    let (package, _) = own.file_name()?.to_str()?.rsplit_once('-')?;
    let profiles = fs::read_dir(own.ancestors().nth(3)?).ok()?.flatten();
    let builds = profiles.filter_map(|profile| fs::read_dir(profile.path().join("build")).ok());
    for build in builds.flat_map(|builds| builds.flatten()) {
        let name = build.file_name();
        let is_ours =
            name.to_str().and_then(|name| name.rsplit_once('-')).is_some_and(|(p, _)| p == package);
        if !is_ours || build.path() == own {
            continue;
        }
        let theirs = objects_dir(&build.path().join("out"), group);
        if let Some(objects) = read_stamp(&theirs, key, files)
            && let Some(copies) = copy(&objects, &dir)
            // Cargo may be compiling another profile: nothing was overwritten meanwhile.
            && read_stamp(&theirs, key, files).is_some()
            && write_stamp(&dir, key, &copies).is_ok()
        {
            return Some(copies);
        }
    }
    None
}

/// Where a group's objects lie.
pub fn objects_dir(out_dir: &Path, group: &str) -> PathBuf {
    out_dir.join("objects").join(group)
}

/// Notes that the objects are complete.
pub fn write_stamp(dir: &Path, key: &str, objects: &[PathBuf]) -> Result<(), String> {
    let names = objects.iter().filter_map(|object| object.file_name()?.to_str());
    let text: Vec<&str> = [key].into_iter().chain(names).collect();
    let stamp = dir.join("stamp");
    fs::write(&stamp, text.join("\n")).map_err(|e| format!("{}: {e}", stamp.display()))
}

/// Makes the objects incomplete until the next [`write_stamp`].
pub fn remove_stamp(dir: &Path) {
    let _ = fs::remove_file(dir.join("stamp"));
}

/// Not linked: the next compiler run here would write into both.
fn copy(objects: &[PathBuf], dir: &Path) -> Option<Vec<PathBuf>> {
    fs::create_dir_all(dir).ok()?;
    remove_stamp(dir);
    let copy_one = |object: &PathBuf| {
        let path = dir.join(object.file_name()?);
        fs::copy(object, &path).ok()?;
        Some(path)
    };
    objects.iter().map(copy_one).collect()
}

/// The objects of a stamp that has this key and these files; `cc` names an object `HASH-STEM.o`.
fn read_stamp(dir: &Path, key: &str, files: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let text = fs::read_to_string(dir.join("stamp")).ok()?;
    let mut lines = text.lines();
    if lines.next()? != key {
        return None;
    }
    let objects: Vec<PathBuf> = lines.map(|name| dir.join(name)).collect();
    let is_of = |object: &Path, file: &Path| {
        let (object, file) = (object.file_stem()?.to_str()?, file.file_stem()?.to_str()?);
        Some(object.split_once('-')?.1 == file)
    };
    let complete = objects.len() == files.len()
        && objects
            .iter()
            .zip(files)
            .all(|(object, file)| object.is_file() && is_of(object, file).unwrap_or(false));
    complete.then_some(objects)
}

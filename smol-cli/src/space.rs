//! Room on disks, looked at before work that needs it.

use crate::failure::Failure;
use crate::units::bytes;
use anyhow::Result;
use std::path::Path;

/// Fails if the disk of `folder` has no room for `needed` more bytes of `what`.
pub fn check(folder: &Path, what: &str, needed: u64, advice: &str) -> Result<()> {
    // Unknown is no reason to refuse: a full disk is handled when it shows.
    let Ok(free) = fs4::available_space(folder) else { return Ok(()) };
    // Some file systems tell nothing, by zeros.
    let unknown = free == 0 && fs4::total_space(folder).unwrap_or(0) == 0;
    if free >= needed || unknown {
        return Ok(());
    }
    let (needed, free) = (bytes(needed), bytes(free));
    let message =
        format!("{what} needs {needed} more in {}, where {free} are free", folder.display());
    Err(Failure::new(message).advice(advice).into())
}

/// Returns the folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::{check, folder_of};
    use std::path::Path;

    #[test]
    fn no_disk_has_an_exabyte() {
        assert!(check(Path::new("."), "it", 1, "help").is_ok());
        let error = check(Path::new("."), "it", 1 << 60, "help").unwrap_err().to_string();
        assert!(error.starts_with("it needs 1.15 EB more in ., where "), "{error}");
        assert!(check(Path::new("no-such-folder"), "it", 1 << 60, "help").is_ok());
    }

    #[test]
    fn folders() {
        assert_eq!(folder_of(Path::new("a")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/b")), Path::new("a"));
        assert_eq!(folder_of(Path::new("/b")), Path::new("/"));
    }
}

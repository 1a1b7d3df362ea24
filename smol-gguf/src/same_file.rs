//! Whether two paths name one file.

use std::path::Path;

/// Reports whether two paths lead to the same file, be it by links.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |path| std::fs::metadata(path).map(|m| (m.dev(), m.ino()));
        if let (Ok(a), Ok(b)) = (id(a), id(b)) {
            return a == b;
        }
    }
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_same_file;
    use std::fs;

    #[test]
    #[cfg_attr(miri, ignore)]
    fn names_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, other, missing] = ["a", "b", "other", "missing"].map(|n| folder.path().join(n));
        fs::write(&a, "x").unwrap();
        fs::write(&other, "x").unwrap();
        assert!(is_same_file(&a, &a));
        assert!(is_same_file(&a, &folder.path().join(".").join("a")));
        assert!(!is_same_file(&a, &other));
        assert!(!is_same_file(&a, &missing));
        fs::hard_link(&a, &b).unwrap();
        #[cfg(unix)]
        {
            assert!(is_same_file(&a, &b));
            std::os::unix::fs::symlink(&a, &missing).unwrap();
            assert!(is_same_file(&missing, &b));
        }
    }
}

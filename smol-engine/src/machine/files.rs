//! The one way in which the probes see the file system, so that tests can replace it.

/// Source of small text files such as those under `/proc` and `/sys`.
pub(super) trait Files {
    /// Returns the text of the file at `path`, or `None` if it cannot be read.
    fn read(&self, path: &str) -> Option<String>;
}

/// The real file system.
pub(super) struct Os;

impl Files for Os {
    fn read(&self, path: &str) -> Option<String> {
        // Lossy: a cgroup's name or a CPU's marketing name need not be UTF-8.
        std::fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Returns the trimmed text of `path` parsed as `T`.
pub(super) fn read_value<T: std::str::FromStr>(files: &dyn Files, path: &str) -> Option<T> {
    files.read(path)?.trim().parse().ok()
}

#[cfg(test)]
pub(super) mod fixture {
    use super::Files;
    use std::collections::HashMap;

    /// An in-memory file system: path to text.
    #[derive(Default)]
    pub(in crate::machine) struct Fixture(HashMap<String, String>);

    impl Fixture {
        pub(in crate::machine) fn with(mut self, path: &str, text: impl Into<String>) -> Self {
            self.0.insert(path.to_owned(), text.into());
            self
        }
    }

    impl Files for Fixture {
        fn read(&self, path: &str) -> Option<String> {
            self.0.get(path).cloned()
        }
    }
}

//! Errors of file access: what was tried, on which file, at which offset.

use std::io;
use std::path::{Path, PathBuf};

/// Result of file access.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed file access.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened, created or examined.
    #[error("{}: cannot {action}", path.display())]
    Access {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// A read failed.
    #[error("{}: reading {len} bytes at offset {offset} failed", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Offset of the read in bytes.
        offset: u64,
        /// Length of the read in bytes.
        len: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is shorter than what was to be read.
    #[error(
        "{}: the file ends at byte {file_len}, {} bytes before the end of the {len} bytes at \
         offset {offset}; it is truncated or was changed while in use",
        path.display(),
        offset.saturating_add(*len as u64).saturating_sub(*file_len)
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Offset of the read in bytes.
        offset: u64,
        /// Length of the read in bytes.
        len: usize,
        /// Where the file ends.
        file_len: u64,
    },
    /// An aligned read was asked for with an offset, a length or memory that is not aligned.
    #[error(
        "{}: offset {offset}, length {len} and memory must be multiples of {alignment} bytes",
        path.display()
    )]
    Misaligned {
        /// The file.
        path: PathBuf,
        /// Offset of the read in bytes.
        offset: u64,
        /// Length of the read in bytes.
        len: usize,
        /// The alignment that the file needs.
        alignment: usize,
    },
}

impl Error {
    pub(super) fn access(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Access { path: path.to_owned(), action, source }
    }
}

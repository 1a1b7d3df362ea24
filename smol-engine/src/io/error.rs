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
    /// The file system cannot free a part of a file.
    #[error("{}: the file system cannot free a part of a file: {reason}", path.display())]
    Holes {
        /// A folder in it.
        path: PathBuf,
        /// Why not.
        reason: String,
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
    /// The file is no longer the one that was opened.
    #[error(
        "{}: the file was changed while in use: {what}; load it again",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// What is different.
        what: String,
    },
    /// Two reads of the same bytes differ.
    #[error(
        "{}: two reads of the {len} bytes at offset {offset} differ; the disk, its cable or the \
         memory is faulty",
        path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Offset of the read in bytes.
        offset: u64,
        /// Length of the read in bytes.
        len: usize,
    },
}

impl Error {
    pub(super) fn access(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Access { path: path.to_owned(), action, source }
    }

    /// Returns the same error once more, for another one who has to be told.
    pub(crate) fn duplicate(&self) -> Self {
        match self {
            Self::Access { path, action, source } => {
                Self::Access { path: path.clone(), action, source: duplicate(source) }
            }
            &Self::Read { ref path, offset, len, ref source } => {
                Self::Read { path: path.clone(), offset, len, source: duplicate(source) }
            }
            &Self::Truncated { ref path, offset, len, file_len } => {
                Self::Truncated { path: path.clone(), offset, len, file_len }
            }
            &Self::Misaligned { ref path, offset, len, alignment } => {
                Self::Misaligned { path: path.clone(), offset, len, alignment }
            }
            Self::Holes { path, reason } => {
                Self::Holes { path: path.clone(), reason: reason.clone() }
            }
            Self::Changed { path, what } => {
                Self::Changed { path: path.clone(), what: what.clone() }
            }
            &Self::Corrupt { ref path, offset, len } => {
                Self::Corrupt { path: path.clone(), offset, len }
            }
        }
    }
}

/// Returns an error of the same kind, which [`io::Error`] itself cannot be cloned to.
pub(crate) fn duplicate(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

//! Errors of traces: which file, where in it, and what is wrong.

use std::io;
use std::path::PathBuf;

/// Result of reading or writing a trace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A trace that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused something.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is something else.
    #[error("{}: this is not a trace of experts: {reason}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What shows it.
        reason: &'static str,
    },
    /// The file was written by another version of this program.
    #[error(
        "{}: the trace has version {version}, this program reads version {}; record it again",
        path.display(),
        super::format::VERSION
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The file's version.
        version: u32,
    },
    /// The file ends early or its bytes have changed; what comes before is good.
    #[error("{}: the trace is damaged at byte {offset}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the damaged block starts.
        offset: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// What is to be recorded breaks the format's limits.
    #[error("cannot record {what}")]
    Unrecordable {
        /// What, and the limit.
        what: String,
    },
}

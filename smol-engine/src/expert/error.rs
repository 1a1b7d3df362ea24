//! Why a pager cannot be made, or a run of it failed.

use crate::io;

/// Result of paging.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A pager that cannot be made, or a run of it that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read as it must.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The pager's memory holds less than one token needs.
    #[error(
        "the expert pool needs at least {floor} bytes ({:.1} MiB) and may take {budget} ({:.1} \
         MiB); give it more memory, or use fewer experts a token",
        *floor as f64 / MIB, *budget as f64 / MIB
    )]
    Budget {
        /// Least bytes that the pager can work with.
        floor: u64,
        /// Bytes that it was given.
        budget: u64,
    },
    /// The system gives no memory for the pool.
    #[error("the system gives no memory for the expert pool of {bytes} bytes")]
    Memory {
        /// Bytes of the pool.
        bytes: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A thread that reads cannot be started.
    #[error(
        "a thread that reads experts cannot be started; use fewer readers, or raise the limit of threads"
    )]
    Thread(#[source] std::io::Error),
    /// The description of the experts makes no sense.
    #[error("{0}")]
    Layers(String),
    /// An expert was asked for that there is none of.
    #[error("{0}")]
    Request(String),
    /// Code that reads or packs an expert panicked.
    #[error("expert {expert} of `{tensor}` did not come: the code that reads or packs it panicked")]
    Panic {
        /// Name of the tensor.
        tensor: String,
        /// Number of the expert.
        expert: u32,
    },
    /// The run was stopped while it waited for an expert.
    #[error("stopped while waiting for an expert")]
    Stopped,
}

/// Tests walk through copies of states.
#[cfg(test)]
impl Clone for Error {
    fn clone(&self) -> Self {
        self.duplicate()
    }
}

const MIB: f64 = (1 << 20) as f64;

impl Error {
    /// Returns the same error once more, for another run that it ends.
    pub(super) fn duplicate(&self) -> Self {
        match self {
            Self::Io(e) => Self::Io(e.duplicate()),
            &Self::Budget { floor, budget } => Self::Budget { floor, budget },
            Self::Memory { bytes, source } => {
                Self::Memory { bytes: *bytes, source: io::duplicate(source) }
            }
            Self::Thread(source) => Self::Thread(io::duplicate(source)),
            Self::Layers(text) => Self::Layers(text.clone()),
            Self::Request(text) => Self::Request(text.clone()),
            Self::Panic { tensor, expert } => {
                Self::Panic { tensor: tensor.clone(), expert: *expert }
            }
            Self::Stopped => Self::Stopped,
        }
    }
}

//! Why a stream cannot be made, or a run of it failed.

use crate::io;

/// Result of streaming.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A stream that cannot be made, or a run of it that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read as it must.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The stream's memory does not hold its largest tensor.
    #[error(
        "streaming needs at least {floor} bytes ({:.1} MiB) for its largest tensor and the \
         readers' buffers, and may take {zone} ({:.1} MiB); give it more memory, or keep that \
         tensor resident",
        *floor as f64 / MIB, *zone as f64 / MIB
    )]
    Zone {
        /// Least bytes that the stream can work with.
        floor: u64,
        /// Bytes that it was given.
        zone: u64,
    },
    /// The system gives no memory.
    #[error("the system gives no memory for the streamed weights' {bytes} bytes")]
    Memory {
        /// Bytes that were asked for.
        bytes: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A thread that reads cannot be started.
    #[error(
        "a thread that reads weights cannot be started; use fewer readers, or raise the limit of threads"
    )]
    Thread(#[source] std::io::Error),
    /// The description of the tensors makes no sense.
    #[error("{0}")]
    Tensors(String),
    /// Something was asked for that there is none of.
    #[error("{0}")]
    Request(String),
    /// Code that reads or packs a tensor panicked.
    #[error("`{tensor}` did not come: the code that reads or packs it panicked")]
    Panic {
        /// Name of the tensor.
        tensor: String,
    },
    /// Weights were not the same any more after they had been used.
    #[error(
        "`{tensor}` changed in memory while it was in use; the memory is faulty, or some code \
         wrote where it must not"
    )]
    Overwritten {
        /// Name of the tensor.
        tensor: String,
    },
    /// The run was stopped while it waited.
    #[error("stopped while waiting for weights")]
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
            &Self::Zone { floor, zone } => Self::Zone { floor, zone },
            Self::Memory { bytes, source } => {
                Self::Memory { bytes: *bytes, source: io::duplicate(source) }
            }
            Self::Thread(source) => Self::Thread(io::duplicate(source)),
            Self::Tensors(text) => Self::Tensors(text.clone()),
            Self::Request(text) => Self::Request(text.clone()),
            Self::Panic { tensor } => Self::Panic { tensor: tensor.clone() },
            Self::Overwritten { tensor } => Self::Overwritten { tensor: tensor.clone() },
            Self::Stopped => Self::Stopped,
        }
    }
}

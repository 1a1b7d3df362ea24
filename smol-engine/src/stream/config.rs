//! What a stream is made from: the tensors' places in files, and its options.

use super::Packer;
use crate::io::IoChoice;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// One tensor that is streamed: where it lies in a file, and what it is in memory.
#[derive(Clone)]
pub struct StreamTensor {
    /// Name of the tensor.
    pub name: String,
    /// Number of the file in the list given to the stream.
    pub file: usize,
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes in memory: `file_bytes`, or what the packer makes of them. 0: it is never in memory
    /// as a whole, only rows are asked for ([`Stream::rows`](super::Stream::rows)).
    pub bytes: usize,
    /// Bytes of one row in the file. 0: it has no rows that could be asked for.
    pub row_bytes: usize,
    /// Number of rows.
    pub rows: u64,
    /// Where its `bytes` lie as they will be in memory, if they lie anywhere: all but single rows
    /// are read from there.
    pub packed: Option<PackedPlace>,
    /// Brings the file's bytes into another form, if that is not in a file. `None`: kernels read
    /// them as they are.
    pub packer: Option<Arc<dyn Packer>>,
    /// Rows that the packer packs together. Any number of such groups in a row, the last of the
    /// tensor included, must be packed to the same bytes on their own as with all others. 0: the
    /// tensor can only be packed as a whole.
    pub group_rows: usize,
}

/// Where bytes that are packed already lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedPlace {
    /// Number of the file in the list given to the stream.
    pub file: usize,
    /// Where they start in the file, in bytes: a multiple of 64.
    pub offset: u64,
}

impl StreamTensor {
    /// Returns where the tensor is read from as a whole, in which file and how many bytes.
    pub(super) fn source(&self) -> (PackedPlace, u64) {
        let plain = PackedPlace { file: self.file, offset: self.offset };
        self.packed.map_or((plain, self.file_bytes), |packed| (packed, self.bytes as u64))
    }

    /// Returns what is to be done with what was read.
    pub(super) fn packs(&self) -> Option<&Arc<dyn Packer>> {
        self.packer.as_ref().filter(|_| self.packed.is_none())
    }
}

impl fmt::Debug for StreamTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamTensor")
            .field("name", &self.name)
            .field("file", &self.file)
            .field("offset", &self.offset)
            .field("file_bytes", &self.file_bytes)
            .field("bytes", &self.bytes)
            .field("row_bytes", &self.row_bytes)
            .field("rows", &self.rows)
            .field("packed", &self.packed)
            .field("packer", &self.packer.is_some())
            .field("group_rows", &self.group_rows)
            .finish()
    }
}

/// Options of a [`Stream`](super::Stream).
///
/// ```
/// use smol_engine::stream::StreamConfig;
///
/// let config = StreamConfig { zone: 48 << 20, ..StreamConfig::default() };
/// assert!(!config.verify);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamConfig {
    /// Bytes of memory for all that the stream holds: weights and the readers' buffers.
    pub zone: u64,
    /// Threads that read; 0 is up to 4, as the zone allows.
    pub readers: usize,
    /// How [`Stream::open`](super::Stream::open) opens files.
    pub io: IoChoice,
    /// Whether each read is done twice and compared, and weights are compared once more with
    /// what was read after they were used. Through the page cache both reads find the same bytes
    /// there, so that of the disk's faults none is noticed.
    pub verify: bool,
}

impl Default for StreamConfig {
    /// 64 MiB, read by up to 4 threads past the page cache.
    fn default() -> Self {
        Self { zone: 64 << 20, readers: 0, io: IoChoice::default(), verify: false }
    }
}

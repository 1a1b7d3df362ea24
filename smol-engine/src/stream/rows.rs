//! Single rows of a tensor, for embedding tables that are never in memory as a whole.

use super::config::StreamTensor;
use super::{Error, Result};
use crate::io::AlignedBuf;
use crate::io::readers::{self, WatchedFile};

/// Copies rows of a tensor as they are in the file, and returns the bytes that were read.
pub(super) fn read(
    tensor: &StreamTensor,
    file: &WatchedFile,
    ids: &[u32],
    out: &mut [u8],
) -> Result<u64> {
    let (name, row) = (&tensor.name, tensor.row_bytes);
    if row == 0 {
        return Err(Error::Request(format!("`{name}` has no rows in its file")));
    }
    if ids.len().checked_mul(row) != Some(out.len()) {
        let (count, len) = (ids.len(), out.len());
        let text = format!("{count} rows of `{name}`, {row} bytes each, do not fill {len} bytes");
        return Err(Error::Request(text));
    }
    if let Some(id) = ids.iter().find(|&&id| u64::from(id) >= tensor.rows) {
        return Err(Error::Request(format!("`{name}` has no row {id} of {}", tensor.rows)));
    }
    // In the order in which they lie in the file, each once.
    let mut sorted: Vec<usize> = (0..ids.len()).collect();
    sorted.sort_unstable_by_key(|&index| ids[index]);
    let offset = |id: u32| tensor.offset + u64::from(id) * row as u64;
    let room = ids.iter().map(|&id| readers::room(file.file(), offset(id), row)).max();
    let mut buf = AlignedBuf::new(room.unwrap_or(0), file.file().alignment());
    let (mut bytes, mut there) = (0, None);
    for index in sorted {
        let id = ids[index];
        if there != Some(id) {
            bytes += file.read(offset(id), row, &mut buf)?;
            there = Some(id);
        }
        let skew = readers::skew(file.file(), offset(id));
        out[index * row..][..row].copy_from_slice(&buf[skew..skew + row]);
    }
    Ok(bytes)
}

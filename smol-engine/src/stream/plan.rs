//! How tensors are read in pieces, and how the stream's memory is divided.

use super::config::{PackedPlace, StreamConfig, StreamTensor};
use super::{Error, Result};
use crate::io::readers::{self, DEFAULT_READERS, MOST_READERS};
use crate::io::{ReadAt, arena};
use std::sync::Arc;

/// What the kernels' vector loads like.
const LEAST_ALIGNMENT: usize = 64;
/// Bytes of a read, most first. Large reads cost the disk least; small ones let all readers have
/// a part in a small zone.
pub(super) const READS: &[usize] = &[1 << 20, 1 << 19, 1 << 18, 1 << 17, 1 << 16];
/// Reads for each reader that a zone is to have room for.
const READS_AHEAD: u64 = 4;

/// How tensors are read, and how much memory is for what.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tensors: Vec<TensorPlan>,
    /// What starts of tensors' places are multiples of, in bytes.
    pub(super) alignment: usize,
    pub(super) readers: usize,
    /// Bytes of each reader's buffer for what is to be packed.
    pub(super) bounce_room: usize,
    /// Bytes of each reader's buffer for second reads.
    pub(super) second_room: usize,
    /// Bytes of the largest place.
    largest: u64,
    /// Bytes of the places of all tensors.
    total: u64,
}

/// How one tensor is read.
#[derive(Debug, Clone)]
pub(super) struct TensorPlan {
    pub(super) name: String,
    /// None if only rows are read.
    pub(super) pieces: Vec<Piece>,
    /// Bytes of its place in memory.
    pub(super) room: u64,
    /// Where in that place it starts.
    pub(super) skew: usize,
}

/// What one read brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    /// Where it starts in the file.
    pub(super) offset: u64,
    /// Its bytes in the file.
    pub(super) len: usize,
    /// Where it starts in the tensor's place.
    pub(super) begin: u64,
    /// Where it ends there.
    pub(super) end: u64,
}

impl Plan {
    /// Makes the plan for a zone, of reads of one of these lengths.
    pub(super) fn new(
        files: &[Arc<dyn ReadAt>],
        tensors: &[StreamTensor],
        config: &StreamConfig,
        reads: &[usize],
    ) -> Result<Self> {
        check(files, tensors)?;
        let readers = if config.readers == 0 { DEFAULT_READERS } else { config.readers };
        let mut readers = readers.min(MOST_READERS);
        let least = reads.last().copied().unwrap_or(1);
        let plan = |readers, read| Self::with(files, tensors, config.verify, readers, read);
        while config.readers == 0 && readers > 1 && plan(readers, least).floor() > config.zone {
            readers -= 1;
        }
        let smallest = plan(readers, least);
        if smallest.floor() > config.zone {
            return Err(Error::Zone { floor: smallest.floor(), zone: config.zone });
        }
        let room = |read: usize| (read as u64).saturating_mul(readers as u64 * READS_AHEAD);
        let mut larger = reads.iter().filter(|&&read| room(read) <= config.zone);
        let fits = larger
            .find_map(|&read| Some(plan(readers, read)).filter(|plan| plan.floor() <= config.zone));
        Ok(fits.unwrap_or(smallest))
    }

    /// Returns the least bytes for these tensors and options, whatever the zone.
    pub(super) fn least(
        files: &[Arc<dyn ReadAt>],
        tensors: &[StreamTensor],
        config: &StreamConfig,
        reads: &[usize],
    ) -> u64 {
        if check(files, tensors).is_err() {
            return u64::MAX;
        }
        let least = reads.last().copied().unwrap_or(1);
        let readers = config.readers.clamp(1, MOST_READERS);
        Self::with(files, tensors, config.verify, readers, least).floor()
    }

    fn with(
        files: &[Arc<dyn ReadAt>],
        tensors: &[StreamTensor],
        verify: bool,
        readers: usize,
        read: usize,
    ) -> Self {
        let alignment = files.iter().map(|file| file.alignment()).max().unwrap_or(1);
        let alignment = alignment.max(LEAST_ALIGNMENT);
        let read = read.next_multiple_of(alignment);
        let tensor = |tensor: &StreamTensor| {
            let (place, len) = tensor.source();
            let file = &*files[place.file];
            let (pieces, skew) = match tensor.packs() {
                _ if tensor.bytes == 0 => (Vec::new(), 0),
                Some(_) => (packed_pieces(tensor, read), 0),
                None => {
                    let skew = readers::skew(file, place.offset);
                    (plain_pieces(place.offset, len, file, read), skew)
                }
            };
            let end = pieces.last().map_or(0, |piece| piece.end);
            let room = end.next_multiple_of(alignment as u64);
            TensorPlan { name: tensor.name.clone(), pieces, room, skew }
        };
        let plans: Vec<_> = tensors.iter().map(tensor).collect();
        let most = |is_read: fn(&StreamTensor) -> bool| {
            let read = tensors.iter().zip(&plans).filter(|(tensor, _)| is_read(tensor));
            let rooms = read.flat_map(|(tensor, plan)| {
                let file = &*files[tensor.source().0.file];
                plan.pieces.iter().map(move |piece| readers::room(file, piece.offset, piece.len))
            });
            rooms.max().unwrap_or(0)
        };
        Self {
            alignment,
            readers,
            bounce_room: most(|tensor| tensor.packs().is_some()),
            second_room: if verify { most(|_| true) } else { 0 },
            largest: plans.iter().map(|plan| plan.room).max().unwrap_or(0),
            total: plans.iter().map(|plan| plan.room).fold(0, u64::saturating_add),
            tensors: plans,
        }
    }

    fn memory(&self, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let len = usize::try_from(len).ok();
        let block = len.and_then(|len| arena::block_len(&[len], self.alignment));
        block.map_or(u64::MAX, |block| block as u64)
    }

    /// Returns the bytes of the readers' buffers.
    fn buffers(&self) -> u64 {
        let each = self.memory(self.bounce_room as u64) + self.memory(self.second_room as u64);
        each.saturating_mul(self.readers as u64)
    }

    /// Returns the least bytes that the stream can work with.
    pub(super) fn floor(&self) -> u64 {
        self.buffers().saturating_add(self.memory(self.largest))
    }

    /// Returns the bytes that the stream takes with a ring of this length.
    pub(super) fn bytes(&self, ring: u64) -> u64 {
        self.buffers().saturating_add(self.memory(ring))
    }

    /// Returns the length of the ring for which a zone has room: at least the largest place, at
    /// most all places.
    pub(super) fn ring(&self, zone: u64) -> u64 {
        let unit = self.memory(1);
        let slack = self.memory(unit) - unit;
        let most = zone.saturating_sub(self.buffers()).saturating_sub(slack);
        let most = most.min(isize::MAX as u64 / 2);
        (most - most % unit).max(self.largest).min(self.total)
    }
}

/// Cuts bytes that are read as they are where the file's blocks end.
fn plain_pieces(start: u64, len: u64, file: &dyn ReadAt, read: usize) -> Vec<Piece> {
    let skew = readers::skew(file, start) as u64;
    let (read, first) = (read as u64, start - skew);
    let end = start + len;
    let piece = |number: u64| {
        let begin = number * read;
        let offset = start.max(first + begin);
        let len = (end.min(first + begin + read) - offset) as usize;
        let room = readers::room(file, offset, len) as u64;
        Piece { offset, len, begin, end: begin + room }
    };
    (0..(skew + len).div_ceil(read)).map(piece).collect()
}

/// Cuts a tensor that is packed when it was read between groups of rows, and where its packed bytes stay at multiples of what
/// kernels like.
fn packed_pieces(tensor: &StreamTensor, read: usize) -> Vec<Piece> {
    let whole = || {
        let (offset, len) = (tensor.offset, tensor.file_bytes as usize);
        vec![Piece { offset, len, begin: 0, end: tensor.bytes as u64 }]
    };
    let group_rows = tensor.group_rows as u64;
    if group_rows == 0 || tensor.row_bytes == 0 {
        return whole();
    }
    let groups = tensor.rows.div_ceil(group_rows);
    let (bytes, plain) = (tensor.bytes as u64, group_rows.saturating_mul(tensor.row_bytes as u64));
    if !bytes.is_multiple_of(groups) {
        return whole();
    }
    let packed = bytes / groups;
    // The packed bytes of so many groups are a multiple of the alignment.
    let unit = LEAST_ALIGNMENT as u64 >> packed.trailing_zeros().min(6);
    let step = (read as u64 / plain / unit).max(1) * unit;
    let piece = |number: u64| {
        let (first, after) = (number * step, groups.min((number + 1) * step));
        let (from, to) = (first * plain, tensor.file_bytes.min(after * plain));
        Piece {
            offset: tensor.offset + from,
            len: (to - from) as usize,
            begin: first * packed,
            end: after * packed,
        }
    };
    (0..groups.div_ceil(step)).map(piece).collect()
}

fn check(files: &[Arc<dyn ReadAt>], tensors: &[StreamTensor]) -> Result<()> {
    if tensors.is_empty() {
        return Err(Error::Tensors("there are no tensors to stream".to_owned()));
    }
    if u32::try_from(tensors.len()).is_err() {
        return Err(Error::Tensors("there are too many tensors to stream".to_owned()));
    }
    for tensor in tensors {
        let wrong = |what: String| Err(Error::Tensors(format!("`{}`: {what}", tensor.name)));
        let plain = PackedPlace { file: tensor.file, offset: tensor.offset };
        for (place, bytes) in [(plain, tensor.file_bytes), tensor.source()] {
            let Some(file) = files.get(place.file) else {
                return wrong(format!("it lies in file {} of {}", place.file, files.len()));
            };
            if !file.alignment().is_power_of_two() {
                return wrong(format!("{} is read in odd steps", file.path().display()));
            }
            let end = place.offset.checked_add(bytes);
            if end.is_none_or(|end| end > file.len()) {
                let error = crate::io::Error::Truncated {
                    path: file.path().to_owned(),
                    offset: place.offset,
                    len: usize::try_from(bytes).unwrap_or(usize::MAX),
                    file_len: file.len(),
                };
                return Err(error.into());
            }
        }
        if let Some(packed) = tensor.packed
            && (tensor.bytes == 0 || !packed.offset.is_multiple_of(LEAST_ALIGNMENT as u64))
        {
            let (bytes, offset) = (tensor.bytes, packed.offset);
            return wrong(format!("{bytes} bytes of it are packed at {offset}"));
        }
        let (bytes, file_bytes) = (tensor.bytes, tensor.file_bytes);
        let most = isize::MAX as u64 / 4;
        // What is only read by row may be larger than the address space.
        if file_bytes == 0 || bytes as u64 > most || (bytes > 0 && file_bytes > most) {
            return wrong(format!("it has {file_bytes} bytes in the file, {bytes} in memory"));
        }
        let is_plain = tensor.packer.is_none() && tensor.packed.is_none();
        if is_plain && bytes > 0 && bytes as u64 != file_bytes {
            return wrong(format!("it is not packed but has {bytes} bytes of {file_bytes}"));
        }
        let rows = tensor.rows.checked_mul(tensor.row_bytes as u64);
        if tensor.row_bytes > 0 && rows != Some(file_bytes) {
            let (rows, row) = (tensor.rows, tensor.row_bytes);
            return wrong(format!("{rows} rows of {row} bytes are not {file_bytes} bytes"));
        }
        if tensor.row_bytes > isize::MAX as usize / 4 {
            return wrong(format!("its rows have {} bytes", tensor.row_bytes));
        }
        if bytes == 0 && tensor.row_bytes == 0 {
            return wrong("it is neither kept in memory nor has it rows".to_owned());
        }
    }
    Ok(())
}

#[cfg(all(test, not(miri)))]
impl Plan {
    /// Makes a plan of tensors whose pieces have these lengths.
    pub(super) fn of_lengths(tensors: &[&[u64]]) -> Self {
        let tensor = |(number, lengths): (usize, &&[u64])| {
            let mut room = 0;
            let piece = |&length: &u64| {
                room += length;
                Piece { offset: 0, len: length as usize, begin: room - length, end: room }
            };
            let pieces = lengths.iter().map(piece).collect();
            TensorPlan { name: number.to_string(), pieces, room, skew: 0 }
        };
        let tensors: Vec<_> = tensors.iter().enumerate().map(tensor).collect();
        Self {
            alignment: 1,
            readers: 1,
            bounce_room: 0,
            second_room: 0,
            largest: tensors.iter().map(|tensor| tensor.room).max().unwrap_or(0),
            total: tensors.iter().map(|tensor| tensor.room).sum(),
            tensors,
        }
    }
}

// Nothing unsafe for Miri to look at.
#[cfg(all(test, not(miri)))]
mod tests;

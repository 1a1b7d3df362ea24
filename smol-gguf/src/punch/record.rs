//! What a punched file keeps in the first room that was freed: which experts it had.

use std::fs::File;
use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::positioned::{read_exact_at, write_all_at};

/// The size of a record, and the alignment of blocks in which freed and kept bytes are told apart.
pub(super) const LEN: usize = 4096;
/// A record starts at a multiple of this, of which the whole must be experts: in a block that can
/// be freed on every common file system.
const ALIGNMENT: u64 = 256 * 1024;
const TAG: &[u8; 8] = b"SMOLHOLE";
const VERSION: u32 = 1;
/// The longest path of a copy that fits.
const MAX_PATH: usize = LEN - 8 - 4 - 16 - 8 - 4 - 8;

/// Which experts were taken out of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The XXH3 hash of all experts' bytes in the file's order.
    pub(super) hash: u128,
    /// The number of those bytes.
    pub(super) bytes: u64,
    /// Where the copy was, for people.
    pub(super) copy: String,
}

/// Returns where the record of a file with experts in these ranges lies, if there is room.
pub(super) fn place(ranges: &[std::ops::Range<u64>]) -> Option<u64> {
    ranges.iter().find_map(|range| {
        let at = range.start.checked_next_multiple_of(ALIGNMENT)?;
        (at.checked_add(ALIGNMENT)? <= range.end).then_some(at)
    })
}

impl Record {
    pub(super) fn new(hash: u128, bytes: u64, copy: &Path) -> Self {
        let mut copy = copy.to_string_lossy().into_owned();
        copy.truncate(cut(&copy, MAX_PATH));
        Self { hash, bytes, copy }
    }

    fn encode(&self) -> [u8; LEN] {
        let mut bytes = Vec::with_capacity(LEN);
        bytes.extend_from_slice(TAG);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.hash.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&(self.copy.len() as u32).to_le_bytes());
        bytes.extend_from_slice(self.copy.as_bytes());
        bytes.resize(LEN - 8, 0);
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        let mut block = [0; LEN];
        block.copy_from_slice(&bytes);
        block
    }

    fn decode(block: &[u8; LEN]) -> Option<Self> {
        let (body, sum) = block.split_at(LEN - 8);
        if xxh3_64(body).to_le_bytes() != sum {
            return None;
        }
        let rest = body.strip_prefix(TAG)?.strip_prefix(&VERSION.to_le_bytes())?;
        let (hash, rest) = rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let copy = rest.get(..u32::from_le_bytes(*len) as usize)?;
        Some(Self {
            hash: u128::from_le_bytes(*hash),
            bytes: u64::from_le_bytes(*bytes),
            copy: String::from_utf8_lossy(copy).into_owned(),
        })
    }

    pub(super) fn read(file: &File, at: u64) -> io::Result<Option<Self>> {
        let mut block = [0; LEN];
        read_exact_at(file, &mut block, at)?;
        Ok(Self::decode(&block))
    }

    pub(super) fn write(&self, file: &File, at: u64) -> io::Result<()> {
        write_all_at(file, &self.encode(), at)
    }
}

/// Whether a block is a record, be it whole or torn by a power cut.
pub(super) fn is_record(block: &[u8]) -> bool {
    block.starts_with(TAG)
}

/// Returns the largest length up to `most` at which a text can be cut.
fn cut(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn survives_and_is_checked() {
        let record = Record::new(u128::MAX / 3, 1 << 40, Path::new("dir/model.gguf"));
        let block = record.encode();
        assert!(is_record(&block));
        assert_eq!(Record::decode(&block), Some(record));
        for at in [0, 9, 20, 40, 300, LEN - 1] {
            let mut bad = block;
            bad[at] ^= 1;
            assert_eq!(Record::decode(&bad), None, "{at}");
        }
        assert_eq!(Record::decode(&[0; LEN]), None);
    }

    #[test]
    fn long_paths_are_cut_between_characters() {
        let record = Record::new(1, 2, Path::new(&"\u{e9}".repeat(4000)));
        assert_eq!(record.copy.len(), MAX_PATH / 2 * 2);
        assert_eq!(Record::decode(&record.encode()), Some(record));
    }

    #[test]
    fn lies_inside_a_range() {
        const KIB: u64 = 1024;
        assert_eq!(place(&[10..300 * KIB, 256 * KIB..512 * KIB]), Some(256 * KIB));
        assert_eq!(place(&[10..512 * KIB]), Some(256 * KIB));
        assert_eq!(place(&[10..512 * KIB - 1]), None);
        assert_eq!(place(&[0..256 * KIB]), Some(0));
        assert_eq!(place(&[u64::MAX - 5..u64::MAX]), None);
    }
}

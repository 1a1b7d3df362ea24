//! How a cache file is laid out: a head, the weights, an index of them, and a trailer that finds and proves the index.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Weights begin at multiples of this: pages of most systems, and what direct reads need.
pub(super) const ALIGNMENT: u64 = 4096;

const MAGIC: [u8; 8] = *b"SMOLPACK";
const TRAILER_MAGIC: [u8; 8] = *b"SMOLPEND";
/// Raised with every change of this file.
const VERSION: u32 = 1;
pub(super) const HEAD_BYTES: usize = 16;
pub(super) const TRAILER_BYTES: usize = 32;
/// An index of a thousand tensors takes 300 kB.
const MAX_INDEX: u64 = 64 << 20;

/// What packed bytes were made of. A file is used only where all of it is the same.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Key {
    /// Stands for the model's contents.
    pub model: String,
    /// The files of the model.
    pub sources: Vec<Source>,
    /// The CPU level and features that layouts depend on.
    pub cpu: String,
    /// The version of the code that packs.
    pub build: String,
    /// Which layouts were allowed.
    pub layouts: String,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Source {
    /// Where it was; for people, as it may have been moved since.
    pub path: String,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last change, in nanoseconds since 1970; `None` where files have none.
    pub modified: Option<i64>,
}

impl Key {
    /// Returns what is different in `other`, in words; `None` if nothing is.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let same_files = self.sources.len() == other.sources.len()
            && self.sources.iter().zip(&other.sources).all(|(one, other)| one.is_same(other));
        if self.model != other.model || !same_files {
            Some("the model's file has changed")
        } else if self.cpu != other.cpu {
            Some("it is for another CPU")
        } else if self.build != other.build {
            Some("it is of another version of this program")
        } else if self.layouts != other.layouts {
            Some("other layouts were chosen")
        } else {
            None
        }
    }
}

impl Source {
    /// Describes a file.
    ///
    /// # Errors
    /// If the system can't tell about it.
    pub fn of(path: &std::path::Path) -> std::io::Result<Self> {
        let attributes = std::fs::metadata(path)?;
        let since = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).ok();
        let modified = attributes.modified().ok().and_then(since);
        Ok(Self {
            path: path.to_string_lossy().into_owned(),
            len: attributes.len(),
            modified: modified.and_then(|time| i64::try_from(time.as_nanos()).ok()),
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.len, self.modified) == (other.len, other.modified)
    }

    /// Returns whether the file is where it was, and as it was.
    pub(super) fn is_there(&self) -> bool {
        Self::of(self.path.as_ref()).is_ok_and(|now| now.is_same(self))
    }
}

/// A packed weight, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Weight {
    /// The tensor's name.
    pub name: String,
    /// The layout's name.
    pub layout: String,
    /// The layout's version.
    pub version: u32,
    /// The tensor's type in the model, as GGUF numbers them.
    pub ty: u32,
    /// Elements in each dimension.
    pub shape: [u64; 4],
    /// Length of the packed bytes.
    pub bytes: u64,
}

/// A packed weight and where it is in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    #[serde(flatten)]
    pub(super) weight: Weight,
    pub(super) offset: u64,
    /// XXH3 of the bytes.
    pub(super) hash: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Index {
    pub(super) key: Key,
    pub(super) weights: Vec<Place>,
}

pub(super) fn head() -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head
}

/// Whether a file begins as a cache does, of whatever version.
pub(super) fn is_head(head: &[u8]) -> bool {
    head.starts_with(&MAGIC)
}

/// The trailer of an index that begins at `offset`: where and how long it is, a hash of index and trailer, a magic.
pub(super) fn trailer(index: &[u8], offset: u64) -> [u8; TRAILER_BYTES] {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[..8].copy_from_slice(&offset.to_le_bytes());
    trailer[8..16].copy_from_slice(&(index.len() as u64).to_le_bytes());
    let hash = hash(index, &trailer[..16]);
    trailer[16..24].copy_from_slice(&hash.to_le_bytes());
    trailer[24..].copy_from_slice(&TRAILER_MAGIC);
    trailer
}

fn hash(index: &[u8], place: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&head());
    hash.update(index);
    hash.update(place);
    hash.digest()
}

/// Reads the head of a file of `len` bytes.
pub(super) fn check_head(head: &[u8; HEAD_BYTES]) -> Result<(), String> {
    if !is_head(head) {
        return Err("it is no cache of packed weights".to_owned());
    }
    if *head != self::head() {
        return Err("it has another version of the format".to_owned());
    }
    Ok(())
}

/// Where the index of a file of `len` bytes is, by its trailer: offset and length.
pub(super) fn index_place(trailer: &[u8; TRAILER_BYTES], len: u64) -> Result<(u64, u64), String> {
    let number = |from: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&trailer[from..from + 8]);
        u64::from_le_bytes(bytes)
    };
    if trailer[24..] != TRAILER_MAGIC {
        return Err("its end is missing".to_owned());
    }
    let (offset, bytes) = (number(0), number(8));
    let end = offset.checked_add(bytes).and_then(|end| end.checked_add(TRAILER_BYTES as u64));
    if end != Some(len) || bytes > MAX_INDEX || offset < HEAD_BYTES as u64 {
        return Err("its length is wrong".to_owned());
    }
    Ok((offset, bytes))
}

/// Reads an index that was found at `offset`.
pub(super) fn read_index(index: &[u8], offset: u64, trailer: &[u8]) -> Result<Index, String> {
    if hash(index, &trailer[..16]).to_le_bytes() != trailer[16..24] {
        return Err("its index is damaged".to_owned());
    }
    let index: Index = serde_json::from_slice(index)
        .map_err(|error| format!("its index is not understood: {error}"))?;
    for place in &index.weights {
        let end = place.offset.checked_add(place.weight.bytes);
        if place.offset % ALIGNMENT != 0 || end.is_none_or(|end| end > offset) {
            return Err(format!("{} is not inside of it", place.weight.name));
        }
    }
    Ok(index)
}

/// Hash of a weight's bytes, the same as of their parts in order.
pub(super) fn hash_of(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

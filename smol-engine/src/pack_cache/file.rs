//! A cache file that is open.

use super::format::{
    HEAD_BYTES, Index, Key, Place, TRAILER_BYTES, Weight, check_head, hash_of, index_place,
    read_index,
};
use super::mapping::MappedFile;
use super::prefetch::Prefetch;
use crate::io::{DirectFile, Identity, IoChoice};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a cache file is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// There is none.
    #[error("there is none yet")]
    Missing,
    /// It can't be read or mapped.
    #[error("it cannot be read: {0}")]
    Io(io::Error),
    /// It is not what was written, or no cache at all.
    #[error("{0}")]
    Damaged(String),
    /// It is whole, but of another model, CPU or version.
    #[error("{0}")]
    Stale(&'static str),
}

/// A cache file that fits, mapped into memory.
#[derive(Debug)]
pub struct PackedFile {
    path: PathBuf,
    identity: Identity,
    map: Arc<MappedFile>,
    places: HashMap<String, Place>,
}

impl PackedFile {
    /// Opens a file that was made of what `key` says.
    ///
    /// The index is checked, the weights' bytes are not; see [`verify`](Self::verify).
    ///
    /// # Errors
    /// [`Unusable`] if there is no such file, or it is not whole, or of something else.
    pub fn open(path: &Path, key: &Key) -> Result<Self, Unusable> {
        let (mut file, _) = open(path)?;
        let index = read(&mut file)?;
        if let Some(what) = key.difference(&index.key) {
            return Err(Unusable::Stale(what));
        }
        let map = MappedFile::new(&file).map_err(Unusable::Io)?;
        let places = index.weights.into_iter().map(|place| (place.weight.name.clone(), place));
        let identity = Identity::of(&file.metadata().map_err(Unusable::Io)?);
        Ok(Self { path: path.to_owned(), identity, map: Arc::new(map), places: places.collect() })
    }

    /// Returns where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of weights.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether there are no weights.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the packed bytes of a weight, if they are of the same layout, version, type and shape. They begin at a
    /// multiple of 4096 bytes in memory.
    pub fn find(&self, weight: &Weight) -> Option<&[u8]> {
        let place = self.place(weight)?;
        self.map.get(place.offset as usize..)?.get(..weight.bytes as usize)
    }

    /// Returns where in the file the packed bytes of a weight begin.
    pub fn offset(&self, weight: &Weight) -> Option<u64> {
        self.place(weight).map(|place| place.offset)
    }

    /// Returns the weights, in the order in which they lie in the file.
    pub fn weights(&self) -> impl Iterator<Item = &Weight> {
        let mut places: Vec<_> = self.places.values().collect();
        places.sort_unstable_by_key(|place| (place.offset, place.weight.bytes));
        places.into_iter().map(|place| &place.weight)
    }

    /// Opens the file once more, to be read past the page cache at the [offsets](Self::offset) of weights. It stays the
    /// one that it is when another one gets its name, or when it is removed.
    ///
    /// # Errors
    /// If it cannot be opened, or another file has got its name since.
    pub fn open_direct(&self, choice: IoChoice) -> crate::io::Result<DirectFile> {
        DirectFile::open_same(&self.path, choice, &self.identity)
    }

    /// Returns the packed bytes of a weight as [`find`](Self::find) does, if they are as they were written.
    pub fn verified(&self, weight: &Weight) -> Option<&[u8]> {
        let hash = self.place(weight)?.hash;
        self.find(weight).filter(|bytes| hash_of(bytes) == hash)
    }

    fn place(&self, weight: &Weight) -> Option<&Place> {
        self.places.get(&weight.name).filter(|place| place.weight == *weight)
    }

    /// Gets the weights' pages ready ahead of their use, on a thread.
    pub fn prefetch(&self) -> Prefetch {
        let ends = self.places.values().map(|place| place.offset + place.weight.bytes);
        let end = ends.max().unwrap_or(0).min(self.map.len() as u64);
        Prefetch::start(Arc::clone(&self.map), 0..end as usize)
    }

    /// Compares all bytes with their hashes, which reads the whole file.
    ///
    /// # Errors
    /// [`Unusable::Damaged`] with the first weight that is not as it was written.
    pub fn verify(&self) -> Result<(), Unusable> {
        let mut places: Vec<_> = self.places.values().collect();
        places.sort_unstable_by_key(|place| place.offset);
        for place in places {
            if self.verified(&place.weight).is_none() {
                let message = format!("{} is damaged", place.weight.name);
                return Err(Unusable::Damaged(message));
            }
        }
        Ok(())
    }
}

/// Opens a file and returns its length.
fn open(path: &Path) -> Result<(File, u64), Unusable> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Unusable::Missing,
        _ => Unusable::Io(error),
    };
    // Before it is opened: a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Unusable::Damaged("it is no file".to_owned()));
    }
    let file = File::open(path).map_err(failed)?;
    let attributes = file.metadata().map_err(Unusable::Io)?;
    Ok((file, attributes.len()))
}

/// Reads the index of a file, with all checks that need no key.
fn read(file: &mut File) -> Result<Index, Unusable> {
    let len = file.metadata().map_err(Unusable::Io)?.len();
    if len < (HEAD_BYTES + TRAILER_BYTES) as u64 {
        return Err(Unusable::Damaged("it is too short".to_owned()));
    }
    let mut head = [0; HEAD_BYTES];
    read_at(file, 0, &mut head)?;
    check_head(&head).map_err(Unusable::Damaged)?;
    let mut trailer = [0; TRAILER_BYTES];
    read_at(file, len - TRAILER_BYTES as u64, &mut trailer)?;
    let (offset, bytes) = index_place(&trailer, len).map_err(Unusable::Damaged)?;
    let mut index = vec![0; bytes as usize];
    read_at(file, offset, &mut index)?;
    read_index(&index, offset, &trailer).map_err(Unusable::Damaged)
}

/// The same for a path.
pub(super) fn read_path(path: &Path) -> Result<Index, Unusable> {
    read(&mut open(path)?.0)
}

fn read_at(file: &mut File, offset: u64, buffer: &mut [u8]) -> Result<(), Unusable> {
    let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(buffer));
    read.map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Unusable::Damaged("its end is missing".to_owned()),
        _ => Unusable::Io(error),
    })
}

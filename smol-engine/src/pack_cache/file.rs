//! A cache file that is open.

use super::format::{
    HEAD_BYTES, Index, Key, Place, TRAILER_BYTES, Weight, check_head, hash_of, index_place,
    read_index,
};
use super::mapping::Mapping;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

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
    map: Mapping,
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
        let map = Mapping::new(&file).map_err(Unusable::Io)?;
        let places = index.weights.into_iter().map(|place| (place.weight.name.clone(), place));
        Ok(Self { path: path.to_owned(), map, places: places.collect() })
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

    fn place(&self, weight: &Weight) -> Option<&Place> {
        self.places.get(&weight.name).filter(|place| place.weight == *weight)
    }

    /// Lets the system read the file ahead of its use.
    pub fn read_ahead(&self) {
        self.map.read_ahead();
    }

    /// Compares all bytes with their hashes, which reads the whole file.
    ///
    /// # Errors
    /// [`Unusable::Damaged`] with the first weight that is not as it was written.
    pub fn verify(&self) -> Result<(), Unusable> {
        let mut places: Vec<_> = self.places.values().collect();
        places.sort_unstable_by_key(|place| place.offset);
        for place in places {
            let bytes = self.find(&place.weight).unwrap_or_default();
            if hash_of(bytes) != place.hash {
                let message = format!("{} is damaged", place.weight.name);
                return Err(Unusable::Damaged(message));
            }
        }
        Ok(())
    }
}

/// Opens a file and returns its length.
fn open(path: &Path) -> Result<(File, u64), Unusable> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unusable::Missing,
        _ => Unusable::Io(error),
    })?;
    let attributes = file.metadata().map_err(Unusable::Io)?;
    if !attributes.is_file() {
        return Err(Unusable::Damaged("it is no file".to_owned()));
    }
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

//! The folder of the cache files.

use super::file::{PackedFile, Unusable, read_path};
use super::format::{HEAD_BYTES, Key, is_head};
use super::writer::Writer;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

const EXTENSION: &str = "smolpack";
/// What is left alone on a disk.
const SPARE_BYTES: u64 = 16 << 20;

/// A folder with a file for each model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

/// Why no cache was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Another process is writing the same file.
    #[error("another process is writing it")]
    Busy,
    /// The disk is too small.
    #[error("{needed} bytes are needed, and {free} are free")]
    NoRoom {
        /// Bytes of the file.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Writing failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A file in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The model's files, as far as the cache tells.
    pub sources: Vec<PathBuf>,
    /// Number of weights.
    pub weights: usize,
    /// Whether it can be of use.
    pub state: CacheState,
}

/// Whether a cache file can be of use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheState {
    /// It fits its model.
    Current,
    /// It is whole, but its model is gone or has changed, or the program has.
    Stale(String),
    /// It is not what was written.
    Damaged(String),
}

impl Folder {
    /// Names a folder, which is created when something is written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file of the model whose first file is `model`. Other CPUs and other layouts have other files; a
    /// model that has changed, and another version of the program, have the same one.
    pub fn file(&self, model: &Path, key: &Key) -> PathBuf {
        let place = model.canonicalize().unwrap_or_else(|_| model.to_owned());
        let mut hash = Xxh3::new();
        for part in
            [place.as_os_str().as_encoded_bytes(), key.cpu.as_bytes(), key.layouts.as_bytes()]
        {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut name = model.file_stem().unwrap_or(OsStr::new("model")).to_owned();
        name.push(format!("-{:016x}.{EXTENSION}", hash.digest()));
        self.path.join(name)
    }

    /// Writes the file at `path`, with `bytes` of weights, which `weights` adds; returns its length. Readers of an older
    /// file there are not disturbed.
    ///
    /// # Errors
    /// [`WriteError`]; nothing is left behind then.
    pub fn write(
        &self,
        path: &Path,
        key: &Key,
        bytes: u64,
        weights: impl FnOnce(&mut Writer<'_>) -> io::Result<()>,
    ) -> Result<u64, WriteError> {
        std::fs::create_dir_all(&self.path)?;
        let _lock = Lock::take(path)?;
        self.remove_leftovers();
        // Unknown is no reason to give up: a full disk is handled when it shows.
        let free = fs4::available_space(&self.path).unwrap_or(u64::MAX);
        let unknown = free == 0 && fs4::total_space(&self.path).unwrap_or(0) == 0;
        if !unknown && free < bytes.saturating_add(SPARE_BYTES) {
            return Err(WriteError::NoRoom { needed: bytes, free });
        }
        let mut len = 0;
        let written = smol_gguf::write_atomically(path, |out| {
            let mut writer = Writer::new(out, key)?;
            weights(&mut writer)?;
            len = writer.finish()?;
            Ok(())
        });
        match written {
            Ok(()) => Ok(len),
            Err(error) => Err(WriteError::Io(io_error(error))),
        }
    }

    /// Lists the files, by name; `cpu` and `build` are those that caches are made for now. With `verify` all bytes are
    /// read and compared with their hashes.
    ///
    /// # Errors
    /// If the folder can't be read. Of one that is not there the list is empty.
    pub fn list(&self, cpu: &str, build: &str, verify: bool) -> io::Result<Vec<CacheFile>> {
        let mut files = Vec::new();
        for path in self.paths(is_cache)? {
            let Ok(attributes) = std::fs::metadata(&path) else { continue };
            let (mut sources, mut weights) = (Vec::new(), 0);
            let state = match read_path(&path) {
                Ok(index) => {
                    sources =
                        index.key.sources.iter().map(|file| file.path.clone().into()).collect();
                    weights = index.weights.len();
                    state_of(&path, &index.key, cpu, build, verify)
                }
                Err(error) => CacheState::Damaged(error.to_string()),
            };
            files.push(CacheFile { path, bytes: attributes.len(), sources, weights, state });
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(files)
    }

    /// Removes all cache files, and what killed processes have left; returns how many files and bytes. Models that were
    /// loaded from them keep running.
    ///
    /// # Errors
    /// If the folder can't be read or a file can't be removed.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        self.remove_leftovers();
        let (mut files, mut bytes) = (0, 0);
        for path in self.paths(is_cache)? {
            // Not everything of that name is ours.
            if !begins_as_cache(&path)? {
                continue;
            }
            let len = std::fs::metadata(&path).map_or(0, |attributes| attributes.len());
            std::fs::remove_file(&path)?;
            files += 1;
            bytes += len;
        }
        Ok((files, bytes))
    }

    /// Removes files of writers that were killed, where such files have names.
    fn remove_leftovers(&self) {
        for path in self.paths(is_lock).unwrap_or_default() {
            // Whoever holds the lock is alive, and removes it itself.
            drop(Lock::of(path));
        }
        // Temporary files don't say whose they are: those that nobody has written to for long are nobody's.
        for path in self.paths(is_temporary).unwrap_or_default() {
            let modified = std::fs::metadata(&path).and_then(|attributes| attributes.modified());
            let age = modified.ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
            if age.as_secs() > 3600 {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    fn paths(&self, wanted: fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
        let entries = match std::fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry?;
            let is_file = entry.file_type().is_ok_and(|ty| ty.is_file());
            if is_file && wanted(&entry.file_name().to_string_lossy()) {
                paths.push(entry.path());
            }
        }
        Ok(paths)
    }
}

fn is_cache(name: &str) -> bool {
    !name.starts_with('.') && name.ends_with(&format!(".{EXTENSION}"))
}

fn is_lock(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(&format!(".{EXTENSION}.lock"))
}

fn is_temporary(name: &str) -> bool {
    name.starts_with(".gguf-") && name.ends_with(".part")
}

/// A file that is too short for any head may be what a fault of the disk left of one.
fn begins_as_cache(path: &Path) -> io::Result<bool> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head.len() < HEAD_BYTES || is_head(&head))
}

fn state_of(path: &Path, key: &Key, cpu: &str, build: &str, verify: bool) -> CacheState {
    if !key.sources.iter().all(super::Source::is_there) {
        return CacheState::Stale("the model's file is gone or has changed".to_owned());
    }
    let now = Key { cpu: cpu.to_owned(), build: build.to_owned(), ..key.clone() };
    if let Some(what) = now.difference(key) {
        return CacheState::Stale(what.to_owned());
    }
    let verified = match verify {
        true => PackedFile::open(path, key).and_then(|file| file.verify()),
        false => Ok(()),
    };
    match verified {
        Ok(()) => CacheState::Current,
        Err(Unusable::Stale(what)) => CacheState::Stale(what.to_owned()),
        Err(error) => CacheState::Damaged(error.to_string()),
    }
}

fn io_error(error: smol_gguf::Error) -> io::Error {
    let kind = match error.kind() {
        smol_gguf::ErrorKind::Io(error) => error.kind(),
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Held by the one process that writes a file. The system lets go of it when that process ends, however it does.
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    fn take(path: &Path) -> Result<Self, WriteError> {
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(".lock");
        let path = path.with_file_name(name);
        // A pipe would wait for its other end.
        if std::fs::metadata(&path).is_ok_and(|attributes| !attributes.is_file()) {
            let message = format!("{} is no file", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message).into());
        }
        File::create(&path)?;
        Self::of(path).ok_or(WriteError::Busy)
    }

    /// Takes a lock that is there; `None` if another process has it. Where there are no locks, everybody has all: files
    /// are replaced as a whole, so that is double work and no fault.
    fn of(path: PathBuf) -> Option<Self> {
        let file = File::options().write(true).open(&path).ok()?;
        match fs4::FileExt::try_lock(&file) {
            Err(fs4::TryLockError::WouldBlock) => None,
            _ => Some(Self { file, path }),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Another process may have opened the file just now and write at the same time as a third one: double work too.
        let _ = std::fs::remove_file(&self.path);
        let _ = fs4::FileExt::unlock(&self.file);
    }
}

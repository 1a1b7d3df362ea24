//! The files of a model: found, checked before llama.cpp opens them, and watched afterwards.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use smol_engine::pack_cache::MappedFile;
use smol_gguf::{Metadata, Shards};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, ErrorKind, Result};

/// How many blocks of weights are part of a fingerprint, and their size in bytes.
const SAMPLES: u64 = 32;
const SAMPLE_BYTES: u64 = 4096;

/// The files of a model whose headers have been read.
pub(crate) struct ModelFiles {
    shards: Shards,
    states: Vec<FileState>,
}

/// A file as it was when it was checked.
#[derive(Debug)]
pub(crate) struct FileState {
    path: PathBuf,
    /// Keeps the file's identity: the path may come to name another one.
    file: File,
    len: u64,
    modified: Option<SystemTime>,
}

impl ModelFiles {
    /// Opens the model that `path` belongs to; any shard of a split model will do.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let opened = |error| Error::io(error, "cannot open the model", Some(path));
        let attributes = std::fs::metadata(path).map_err(opened)?;
        if attributes.is_dir() {
            let message = "this is a directory; name the model's .gguf file in it";
            let kind = ErrorKind::Io(std::io::ErrorKind::IsADirectory);
            return Err(Error::new(kind, message).with_path(path));
        }
        let shards = Shards::open(path).map_err(|error| gguf_error(error, path))?;
        let states = shards.iter().map(|file| FileState::of(file.path().unwrap_or(path)));
        let states = states.collect::<Result<_>>()?;
        Ok(Self { shards, states })
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        self.shards.metadata()
    }

    /// Bytes of all files.
    pub(crate) fn len(&self) -> u64 {
        self.states.iter().map(|state| state.len).sum()
    }

    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.states.iter().map(|state| state.path.clone()).collect()
    }

    /// The paths for C, in the order of the shards.
    pub(crate) fn c_paths(&self) -> Result<Vec<CString>> {
        self.states.iter().map(|state| c_path(&state.path)).collect()
    }

    /// Stands for the model: the headers of its files, which hold all hyperparameters, tokens and tensor shapes, the
    /// files' sizes, and samples of the weights, which tell models of one family apart.
    pub(crate) fn fingerprint(&self) -> Result<u128> {
        let mut hash = Xxh3::new();
        for (file, state) in self.shards.iter().zip(&self.states) {
            hash.update(&state.len.to_le_bytes());
            state.hash(file.data_offset(), &mut hash)?;
        }
        Ok(hash.digest128())
    }

    /// Maps the files, in the order of the shards.
    pub(crate) fn map(&self) -> std::io::Result<Vec<MappedFile>> {
        self.states.iter().map(|state| MappedFile::new(&state.file)).collect()
    }

    pub(crate) fn into_states(self) -> Vec<FileState> {
        self.states
    }
}

impl FileState {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(error, "cannot open the model", Some(path));
        let file = File::open(path).map_err(failed)?;
        let attributes = file.metadata().map_err(failed)?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            len: attributes.len(),
            modified: attributes.modified().ok(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Hashes the header and blocks of the data at even distances.
    fn hash(&self, data_offset: u64, hash: &mut Xxh3) -> Result<()> {
        // A handle of its own: `file` is shared between threads, and reading moves its position.
        let hashed = File::open(&self.path).and_then(|mut file| {
            hash_range(&mut file, 0, data_offset, hash)?;
            let stride = self.len.saturating_sub(data_offset) / SAMPLES;
            for sample in 0..SAMPLES {
                hash_range(&mut file, data_offset + sample * stride, SAMPLE_BYTES, hash)?;
            }
            Ok(())
        });
        hashed.map_err(|error| Error::io(error, "cannot read the model", Some(&self.path)))
    }

    /// Refuses to go on if the file has lost bytes.
    pub(crate) fn check_not_shortened(&self) -> Result<()> {
        let len = self.file.metadata().map_or(0, |attributes| attributes.len());
        if len >= self.len {
            return Ok(());
        }
        let message = format!(
            "the file was shortened from {} to {len} bytes while the model was loaded; load it again",
            self.len
        );
        Err(Error::new(ErrorKind::FileChanged, message).with_path(&self.path))
    }

    /// Refuses a model whose file changed between the check and the end of loading.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let now = std::fs::metadata(&self.path).ok();
        let same =
            now.is_some_and(|now| now.len() == self.len && now.modified().ok() == self.modified);
        if same {
            return Ok(());
        }
        let message = "the file changed while the model was loading; load it again";
        Err(Error::new(ErrorKind::FileChanged, message).with_path(&self.path))
    }
}

fn hash_range(file: &mut File, from: u64, bytes: u64, hash: &mut Xxh3) -> std::io::Result<()> {
    file.seek(SeekFrom::Start(from))?;
    let mut range = file.take(bytes);
    let mut buffer = vec![0; bytes.min(1 << 18) as usize];
    loop {
        match range.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The path as a C string.
pub(crate) fn c_path(path: &Path) -> Result<CString> {
    #[cfg(unix)]
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec();
    #[cfg(not(unix))]
    let bytes = path
        .to_str()
        .map(|text| text.as_bytes().to_vec())
        .ok_or_else(|| Error::invalid("the path is not valid Unicode").with_path(path))?;
    CString::new(bytes).map_err(|_| Error::invalid("the path contains a NUL").with_path(path))
}

/// An error of the GGUF reader or validator as one of this crate.
pub(crate) fn gguf_error(error: smol_gguf::Error, path: &Path) -> Error {
    let place = error.path().unwrap_or(path).to_path_buf();
    let message = error.kind().to_string();
    let kind = match error.kind() {
        smol_gguf::ErrorKind::Io(error) => ErrorKind::Io(error.kind()),
        smol_gguf::ErrorKind::MissingShards { missing, .. } => {
            ErrorKind::MissingShards(missing.clone())
        }
        _ => ErrorKind::Gguf,
    };
    Error::new(kind, message).with_path(place).with_source(error)
}

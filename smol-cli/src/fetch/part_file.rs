//! A file that is being fetched: hashed as it grows, renamed when it is whole.

use super::Error;
use crate::failure::Failure;
use anyhow::{Context as _, Result, anyhow};
use indicatif::ProgressBar;
use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

/// Unfinished content of a file whose size and hash are known.
pub(super) struct PartFile {
    file: File,
    path: PathBuf,
    len: u64,
    hasher: Sha256,
    size: u64,
    sha256: String,
    bar: ProgressBar,
}

impl PartFile {
    /// Opens the part file of `path` and goes on with what an earlier pull has left in it.
    pub(super) fn open(path: &Path, size: u64, sha256: &str, bar: ProgressBar) -> Result<Self> {
        let path = path.with_extension("gguf.part");
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let sha256 = sha256.to_owned();
        let mut part = Self { file, path, len: 0, hasher: Sha256::new(), size, sha256, bar };
        part.take_up().with_context(|| format!("cannot read {}", part.path.display()))?;
        Ok(part)
    }

    /// Hashes what is there already.
    fn take_up(&mut self) -> io::Result<()> {
        if self.file.metadata()?.len() > self.size {
            self.file.set_len(0)?;
        }
        self.len = hash_rest(&mut self.file, &mut self.hasher)?;
        self.bar.set_position(self.len);
        Ok(())
    }

    /// Returns how many bytes are there.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns how many bytes there must be in the end.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Throws away what is there.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.hasher = Sha256::new();
        self.len = 0;
        self.bar.set_position(0);
        self.file
            .set_len(0)
            .and_then(|()| self.file.rewind())
            .with_context(|| format!("cannot empty {}", self.path.display()))
    }

    /// Appends bytes; more than the known size are refused, so that no source fills the disk.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() as u64 > self.size - self.len {
            let error = anyhow!("it gives more than the expected {} bytes", self.size);
            self.restart().map_err(Error::Local)?;
            return Err(Error::Source(error));
        }
        if let Err(error) = self.file.write_all(bytes) {
            return Err(Error::Local(self.write_error(error)));
        }
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        self.bar.set_position(self.len);
        Ok(())
    }

    /// Checks size and hash, and gives the file its final name. A wrong hash empties it.
    pub(super) fn finish(&mut self, path: &Path) -> Result<(), Error> {
        if self.len != self.size {
            let (len, size) = (self.len, self.size);
            return Err(Error::Source(anyhow!("it gave {len} bytes instead of {size}")));
        }
        let hash = hex(&std::mem::take(&mut self.hasher).finalize());
        if hash != self.sha256 {
            let error = anyhow!("it gave another file: sha256 {hash} instead of {}", self.sha256);
            self.restart().map_err(Error::Local)?;
            return Err(Error::Source(error));
        }
        self.bar.finish_and_clear();
        if let Err(error) = self.file.sync_all() {
            return Err(Error::Local(self.write_error(error)));
        }
        std::fs::rename(&self.path, path)
            .with_context(|| format!("cannot rename {} to {}", self.path.display(), path.display()))
            .map_err(Error::Local)?;
        // The new name must last as well; not all systems can sync a folder.
        if let Some(Ok(folder)) = path.parent().map(File::open) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Explains a failed write. A full disk gets its space back.
    fn write_error(&mut self, error: io::Error) -> anyhow::Error {
        self.bar.finish_and_clear();
        let full = matches!(
            error.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        );
        let mut failure = Failure::new(format!("cannot write {}", self.path.display()));
        if full {
            let _ = std::fs::remove_file(&self.path);
            failure = failure
                .advice("free some space, or name another folder for models with --cache DIR");
        }
        anyhow::Error::new(error).context(failure)
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        // Nothing to go on from; a file that was finished has another name by now.
        if self.len == 0 {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the hash of a file's content, in hexadecimal digits.
pub(super) fn sha256(mut file: File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    hash_rest(&mut file, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

/// Hashes a file from where it stands to its end, and returns how many bytes that were.
fn hash_rest(file: &mut File, hasher: &mut Sha256) -> io::Result<u64> {
    let mut block = vec![0; 1 << 18];
    let mut len = 0;
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(len),
            Ok(read) => {
                hasher.update(&block[..read]);
                len += read as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sha256 of `abc` (FIPS 180-2).
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn open(path: &Path) -> PartFile {
        PartFile::open(path, 3, ABC, ProgressBar::hidden()).unwrap()
    }

    #[test]
    fn goes_on_and_finishes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        let mut part = open(&path);
        assert!(part.append(b"ab").is_ok());
        drop(part);
        let mut part = open(&path);
        assert_eq!(part.len(), 2);
        assert!(!path.exists());
        assert!(matches!(part.finish(&path), Err(Error::Source(_))), "too short");
        assert!(part.append(b"c").is_ok());
        assert!(part.finish(&path).is_ok());
        drop(part);
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn wrong_bytes_never_get_the_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        let mut part = open(&path);
        assert!(matches!(part.append(b"abcd"), Err(Error::Source(_))), "too long");
        assert_eq!(part.len(), 0);
        assert!(part.append(b"abd").is_ok());
        assert!(matches!(part.finish(&path), Err(Error::Source(_))));
        assert_eq!(part.len(), 0);
        drop(part);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_are_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(sha256(File::open(&path).unwrap()).unwrap(), ABC);
    }

    #[test]
    fn longer_remains_are_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        std::fs::write(folder.path().join("x.gguf.part"), "abcdef").unwrap();
        assert_eq!(open(&path).len(), 0);
    }
}

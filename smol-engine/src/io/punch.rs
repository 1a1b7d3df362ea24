//! Freeing a part of a file: the space goes back to the file system, the bytes read as zeros.

use super::{Error, Result};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::Path;

/// Frees parts of files in a file system that can.
///
/// # Examples
///
/// ```no_run
/// use smol_engine::io::HolePunch;
///
/// let punch = HolePunch::probe("models")?;
/// let file = std::fs::File::options().write(true).open("models/model.gguf")?;
/// println!("{} bytes freed", punch.free(&file, 10_000..1_000_000)?); // whole blocks in there
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolePunch {
    block: u64,
}

impl HolePunch {
    /// Finds out whether the file system of `folder` can free parts of files, by doing so with a
    /// temporary file there.
    ///
    /// # Errors
    /// [`Error::Holes`] if it cannot, with the reason; others if no file can be written there.
    pub fn probe(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let file = tempfile::tempfile_in(folder)
            .map_err(|e| Error::access(folder, "create a temporary file", e))?;
        Self::try_on(file).map_err(|error| match error {
            Trial::Io(source) => Error::access(folder, "write a temporary file", source),
            Trial::Refused(reason) => Error::Holes { path: folder.to_owned(), reason },
        })
    }

    fn try_on(mut file: File) -> Result<Self, Trial> {
        let block = sys::block(&file)?.max(4096).next_power_of_two();
        if block > 16 << 20 {
            return Err(Trial::Refused(format!("its blocks have {block} bytes")));
        }
        let punch = Self { block };
        // Large enough that what a file system allocates beside the data doesn't matter, and of
        // bytes that none can compress.
        let hole = block..block + block.max(1 << 20);
        let mut bytes = vec![0; (hole.end + block) as usize];
        fill_with_noise(&mut bytes);
        file.write_all(&bytes)?;
        file.sync_all()?;
        let before = sys::allocated(&file)?;
        punch.free(&file, hole.clone()).map_err(|e| Trial::Refused(e.to_string()))?;
        file.sync_all()?;
        let after = sys::allocated(&file)?;

        let mut found = Vec::with_capacity(bytes.len());
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut found)?;
        bytes[hole.start as usize..hole.end as usize].fill(0);
        if found != bytes {
            return Err(Trial::Refused("other bytes changed when a part was freed".to_owned()));
        }
        if before.saturating_sub(after) < (hole.end - hole.start) / 2 {
            return Err(Trial::Refused("no space became free".to_owned()));
        }
        Ok(punch)
    }

    /// Returns the size of what is freed at least, in bytes: a power of two.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Frees the whole blocks in `range` of a file open for writing, and returns how many bytes
    /// they have. The file keeps its length; all other bytes stay.
    ///
    /// # Errors
    /// If the system refuses, of kind [`Unsupported`](io::ErrorKind::Unsupported) where the file
    /// system cannot do it.
    pub fn free(&self, file: &File, range: Range<u64>) -> io::Result<u64> {
        let start = range.start.checked_next_multiple_of(self.block).unwrap_or(u64::MAX);
        let end = range.end - range.end % self.block;
        if start >= end {
            return Ok(0);
        }
        sys::punch(file, start, end - start)?;
        Ok(end - start)
    }
}

/// Reports whether any program, this one included, has the file open in another way than through
/// `file`, mapped files included; `None` where the system doesn't tell.
///
/// `file` must be open for writing, and the only handle that the caller has.
pub fn is_used_elsewhere(file: &File) -> Option<bool> {
    sys::is_used_elsewhere(file)
}

enum Trial {
    Io(io::Error),
    Refused(String),
}

impl From<io::Error> for Trial {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Fills with bytes that have no pattern (xorshift64).
fn fill_with_noise(bytes: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

#[cfg(unix)]
fn retry(mut call: impl FnMut() -> libc::c_int) -> io::Result<()> {
    loop {
        if call() != -1 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // Some of these are not of this kind everywhere.
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY | libc::EINVAL) => {
                return Err(io::Error::new(io::ErrorKind::Unsupported, error.to_string()));
            }
            _ => return Err(error),
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod sys {
    use super::{File, io, retry};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    pub(super) fn block(file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.blksize())
    }

    pub(super) fn allocated(file: &File) -> io::Result<u64> {
        // In units of 512 bytes, whatever the block size.
        Ok(file.metadata()?.blocks() * 512)
    }

    pub(super) fn punch(file: &File, start: u64, len: u64) -> io::Result<()> {
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (start, len) = (offset(start)?, offset(len)?);
        retry(|| {
            // SAFETY: the descriptor is open as long as `file` lives, and the call touches no
            // memory of this process.
            unsafe { libc::fallocate64(file.as_raw_fd(), flags, start, len) }
        })
    }

    fn offset(value: u64) -> io::Result<libc::off64_t> {
        libc::off64_t::try_from(value).map_err(io::Error::other)
    }

    /// Of include/uapi/asm-generic/fcntl.h; libc has it for few targets.
    const F_SETSIG: libc::c_int = 10;

    /// A write lease is granted only while nobody else has the file open.
    pub(super) fn is_used_elsewhere(file: &File) -> Option<bool> {
        let control = |command: libc::c_int, argument: libc::c_int| {
            // SAFETY: the descriptor is open as long as `file` lives; both commands used here,
            // F_SETSIG and F_SETLEASE, take an int and touch no memory of this process.
            match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // Whoever opens the file while it is leased has this sent to us: by default a signal that
        // ends the process, this one is ignored by default.
        control(F_SETSIG, libc::SIGURG).ok()?;
        match control(libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(()) => {
                // It would make others wait until it is given up.
                control(libc::F_SETLEASE, libc::F_UNLCK).ok()?;
                Some(false)
            }
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Some(true),
            Err(_) => None,
        }
    }
}

#[cfg(target_vendor = "apple")]
mod sys {
    use super::{File, io, retry};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;

    pub(super) fn block(file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.blksize())
    }

    pub(super) fn allocated(file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.blocks() * 512)
    }

    pub(super) fn punch(file: &File, start: u64, len: u64) -> io::Result<()> {
        let hole = libc::fpunchhole_t {
            fp_flags: 0,
            reserved: 0,
            fp_offset: libc::off_t::try_from(start).map_err(io::Error::other)?,
            fp_length: libc::off_t::try_from(len).map_err(io::Error::other)?,
        };
        retry(|| {
            // SAFETY: the descriptor is open as long as `file` lives; F_PUNCHHOLE reads one
            // fpunchhole_t, which lives until the call returns.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_PUNCHHOLE, &raw const hole) }
        })
    }

    pub(super) fn is_used_elsewhere(_: &File) -> Option<bool> {
        None
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod sys {
    use super::{File, io};

    pub(super) fn block(_: &File) -> io::Result<u64> {
        Ok(4096)
    }

    pub(super) fn allocated(_: &File) -> io::Result<u64> {
        Ok(0)
    }

    pub(super) fn punch(_: &File, _: u64, _: u64) -> io::Result<()> {
        let message = "this system has no way to free a part of a file that is known here";
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }

    pub(super) fn is_used_elsewhere(_: &File) -> Option<bool> {
        None
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    /// Folders on a disk and in memory, those that can be written to.
    fn folders() -> Vec<tempfile::TempDir> {
        let beside = std::env::current_exe().unwrap();
        [beside.parent().unwrap(), Path::new("/dev/shm")]
            .into_iter()
            .filter_map(|folder| tempfile::tempdir_in(folder).ok())
            .collect()
    }

    #[test]
    fn whole_blocks_are_freed_and_nothing_else() {
        for folder in folders() {
            let punch = HolePunch::probe(folder.path()).expect("ext4, xfs, btrfs, tmpfs can");
            let block = punch.block();
            let path = folder.path().join("file");
            let mut bytes = vec![0; (block * 64) as usize];
            fill_with_noise(&mut bytes);
            std::fs::write(&path, &bytes).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            file.sync_all().unwrap();
            let before = file.metadata().unwrap().blocks();
            for (range, freed) in [
                (block + 1..block * 4 - 1, block * 2..block * 3),
                (block * 10..block * 20, block * 10..block * 20),
                (block * 30 + 1..block * 31 - 1, 0..0), // inside one block
                (block * 31 - 1..block * 32, block * 31..block * 32),
                (7..7, 0..0),
            ] {
                assert_eq!(punch.free(&file, range).unwrap(), freed.end - freed.start);
                bytes[freed.start as usize..freed.end as usize].fill(0);
            }
            file.sync_all().unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "other bytes changed");
            let after = file.metadata().unwrap().blocks();
            assert_eq!((before - after) * 512, block * 12);
        }
    }

    #[test]
    fn freed_room_can_be_written_again() {
        for folder in folders() {
            let punch = HolePunch::probe(folder.path()).unwrap();
            let path = folder.path().join("file");
            std::fs::write(&path, vec![1; 1 << 20]).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            punch.free(&file, 0..1 << 20).unwrap();
            file.write_all_at(&[2; 5], 500_000).unwrap();
            let mut expected = vec![0; 1 << 20];
            expected[500_000..500_005].fill(2);
            assert!(std::fs::read(&path).unwrap() == expected);
        }
    }

    #[test]
    fn probing_leaves_nothing_behind() {
        for folder in folders() {
            HolePunch::probe(folder.path()).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn refusals_have_the_reason() {
        // A pipe has no blocks that could be freed.
        let (_reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let punch = HolePunch { block: 4096 };
        assert!(punch.free(&file, 0..8192).is_err());
        // procfs has no files that could be created.
        let error = HolePunch::probe("/proc").unwrap_err().to_string();
        assert!(error.starts_with("/proc: cannot create a temporary file"), "{error}");
        let error = Error::Holes { path: "dir".into(), reason: "why".into() }.to_string();
        assert!(error.contains("dir") && error.contains("why"), "{error}");
    }

    #[test]
    fn open_files_are_noticed() {
        let beside = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        if is_used_elsewhere(&file).is_some() {
            assert_eq!(is_used_elsewhere(&file), Some(false));
            let reader = File::open(&path).unwrap();
            assert_eq!(is_used_elsewhere(&file), Some(true));
            drop(reader);
            assert_eq!(is_used_elsewhere(&file), Some(false));
        }
    }
}

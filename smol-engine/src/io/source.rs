//! Files that parallel positioned reads come from.

use super::{DirectFile, Mode, Result};
use std::fmt;
use std::io;
use std::path::Path;

/// A file that several threads read at once, at places of their choice.
///
/// [`DirectFile`] is one; tests have others that fail in all the ways that files do.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Reads into `buf` from `offset` on and returns the number of bytes read, which may be less
    /// than asked for. 0 is the end of the file.
    ///
    /// Offset, length and memory address are multiples of [`alignment`](Self::alignment).
    ///
    /// # Errors
    /// If the system fails to read. [`io::ErrorKind::Interrupted`] asks to try again.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns what offsets, lengths and memory addresses of reads must be multiples of, in
    /// bytes: a power of two.
    fn alignment(&self) -> usize;

    /// Returns the length in bytes that the file had when it was opened.
    fn len(&self) -> u64;

    /// Returns whether the file was empty when it was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the path that it was opened by.
    fn path(&self) -> &Path;

    /// Returns how reads are done.
    fn mode(&self) -> &Mode;

    /// Checks that the file is the one that was opened: same device, inode, size and time of
    /// modification. A file that was only unlinked stays the same.
    ///
    /// # Errors
    /// [`Error::Changed`](super::Error::Changed) if it was replaced, written to or truncated;
    /// [`Error::Access`](super::Error::Access) if that cannot be told.
    fn check_unchanged(&self) -> Result<()>;
}

impl ReadAt for DirectFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_once_at(buf, offset)
    }

    fn alignment(&self) -> usize {
        self.alignment()
    }

    fn len(&self) -> u64 {
        self.len()
    }

    fn path(&self) -> &Path {
        self.path()
    }

    fn mode(&self) -> &Mode {
        self.mode()
    }

    fn check_unchanged(&self) -> Result<()> {
        self.check_unchanged()
    }
}

//! Memory maps of files. The only unsafe code of the crate.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;

/// A read-only map of a whole file.
#[derive(Debug)]
pub(crate) struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps a file.
    ///
    /// # Safety
    ///
    /// Nobody may write to the file or shorten it while the map exists: changes show through the
    /// slices it lends, and reading behind the new end raises SIGBUS.
    pub(crate) unsafe fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the caller promises that the file stays as it is, which is what
        // `memmap2::Mmap::map` asks for.
        unsafe { memmap2::Mmap::map(file) }.map(Self)
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

//! Memory maps of cache files. The only unsafe code of the cache.

use std::fs::File;
use std::io;
use std::ops::Deref;

/// A whole file, readable; nothing that is written there by others is lost or passed on.
#[derive(Debug)]
pub(super) struct Mapping(memmap2::Mmap);

impl Mapping {
    pub(super) fn new(file: &File) -> io::Result<Self> {
        let mut options = memmap2::MmapOptions::new();
        options.len(usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?);
        // SAFETY: the bytes must not change while slices of them live. Cache files are written before they get their
        // name and never after that; another one comes under the same name as a new file. As with any map of a file,
        // that cannot be enforced against programs that write to files of others.
        let map = unsafe { options.map_copy_read_only(file) };
        map.map(Self)
    }

    /// Lets the system read the file ahead of its use.
    pub(super) fn read_ahead(&self) {
        // Advice: where it can't be given, pages are read when they are used.
        #[cfg(unix)]
        let _ = self.0.advise(memmap2::Advice::WillNeed);
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

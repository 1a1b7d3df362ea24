//! Memory maps of files. The only unsafe code of the cache.

use std::fs::File;
use std::io;
use std::ops::Deref;

/// A whole file, readable; nothing that is written there by others is lost or passed on.
///
/// What others write to the file may show, and if they shorten it the pages behind its end are lost, as with every map of
/// a file.
#[derive(Debug)]
pub struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// If the system refuses, as it does for what is no regular file.
    pub fn new(file: &File) -> io::Result<Self> {
        let mut options = memmap2::MmapOptions::new();
        options.len(usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?);
        // SAFETY: the bytes must not change while slices of them live. Cache files are written before they get their
        // name and never after that; another one comes under the same name as a new file. Models' files are not written
        // to either once they are whole. As with any map of a file, that cannot be enforced against programs that write
        // to files of others.
        let map = unsafe { options.map_copy_read_only(file) }.map(Self);
        map.map_err(|error| io::Error::new(error.kind(), format!("cannot map the file: {error}")))
    }

    /// Lets the system read a part of the file ahead of its use.
    pub(super) fn read_ahead(&self, start: usize, len: usize) {
        // Advice: where it can't be given, pages are read when they are used.
        #[cfg(unix)]
        let _ = self.0.advise_range(memmap2::Advice::WillNeed, start, len);
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Enters a part of the file into the page table, after reading what is not in memory; `false` where the system
    /// doesn't do that.
    pub(super) fn populate(&self, start: usize, len: usize) -> bool {
        #[cfg(target_os = "linux")]
        return self.0.advise_range(memmap2::Advice::PopulateRead, start, len).is_ok();
        #[cfg(not(target_os = "linux"))]
        {
            let _ = (start, len);
            false
        }
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

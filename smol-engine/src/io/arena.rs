//! Anonymous memory in blocks that go back to the system one by one.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Returns how many bytes [`allocate`] takes from the system; `None` is more than there are
/// addresses.
pub(crate) fn block_len(lens: &[usize], alignment: usize) -> Option<usize> {
    let mut len = 0_usize;
    for &region in lens {
        len = len.checked_next_multiple_of(alignment)?.checked_add(region)?;
    }
    let page = memory::page_size();
    let slack = alignment.saturating_sub(page);
    len.max(1).checked_next_multiple_of(page)?.checked_add(slack)
}

/// Takes a block of zeros from the system and cuts it into regions of `lens` bytes, each of which
/// starts at a multiple of `alignment`, a power of two.
///
/// The block goes back to the system when its last region is dropped.
///
/// # Errors
/// If the system gives no memory.
pub(crate) fn allocate(lens: &[usize], alignment: usize) -> io::Result<Vec<Region>> {
    let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
    let len = block_len(lens, alignment).ok_or_else(too_large)?;
    let block = Arc::new(memory::Block::new(len, alignment)?);
    // The system's pages may be smaller than what is to be aligned to.
    let base = block.base().addr().get();
    let first = base.next_multiple_of(alignment) - base;
    let mut start = 0_usize;
    let mut regions = Vec::with_capacity(lens.len());
    for &len in lens {
        start = start.next_multiple_of(alignment);
        // SAFETY: first + start is within the block: block_len() has summed up the same lengths
        // with the same rounding, and kept slack for a base that is not aligned.
        let ptr = unsafe { block.base().add(first + start) };
        regions.push(Region { ptr, len, _block: Arc::clone(&block) });
        start += len;
    }
    Ok(regions)
}

/// Takes one region of so many bytes; none for 0. An error comes with the bytes.
pub(crate) fn room(len: usize, alignment: usize) -> Result<Option<Region>, (usize, io::Error)> {
    let mut regions = allocate(&[len], alignment).map_err(|error| (len, error))?;
    Ok(regions.pop().filter(|_| len > 0))
}

/// A reader's own memory.
pub(crate) struct Buffers {
    pub(crate) bounce: Option<Region>,
    /// For a second read to compare with.
    pub(crate) second: Option<Region>,
}

impl Buffers {
    /// Takes the memory of all readers; `rooms` are the bytes of the two buffers.
    pub(crate) fn of_readers(
        readers: usize,
        (bounce, second): (usize, usize),
        alignment: usize,
    ) -> Result<Vec<Self>, (usize, io::Error)> {
        let of_one =
            || Ok(Self { bounce: room(bounce, alignment)?, second: room(second, alignment)? });
        (0..readers).map(|_| of_one()).collect()
    }
}

/// A part of a block that belongs to its holder alone.
pub(crate) struct Region {
    ptr: NonNull<u8>,
    len: usize,
    /// Keeps the memory.
    _block: Arc<memory::Block>,
}

impl Region {
    /// Returns the address of its first byte, valid as long as the region is.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr.as_ptr()
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: ptr points to len bytes of the block, which lives as long as the region and
        // was zeroed when it was made; no other region overlaps (allocate() cuts them one after
        // the other), and the borrow of self keeps these bytes from being written.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref(); the exclusive borrow of self makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region").field("ptr", &self.ptr).field("len", &self.len).finish()
    }
}

// SAFETY: a region is plain memory that it alone gives access to, tied to no thread.
unsafe impl Send for Region {}
// SAFETY: a shared reference only allows reading.
unsafe impl Sync for Region {}

/// Mappings, which go back to the system at once.
#[cfg(all(unix, not(miri)))]
mod memory {
    use super::{NonNull, io};
    use std::sync::OnceLock;

    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    const NO_RESERVE: libc::c_int = libc::MAP_NORESERVE;
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    const NO_RESERVE: libc::c_int = 0;

    #[derive(Debug)]
    pub(super) struct Block {
        base: NonNull<u8>,
        len: usize,
    }

    impl Block {
        pub(super) fn new(len: usize, _alignment: usize) -> io::Result<Self> {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // Memory is taken page by page as experts come; until then none is set aside.
            let kind = libc::MAP_PRIVATE | libc::MAP_ANON | NO_RESERVE;
            // SAFETY: a new anonymous mapping at an address of the kernel's choice touches
            // nothing that exists.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
            // Neighbouring blocks become one area, in which huge pages fit; a kernel without them
            // refuses, and nothing changes.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            // SAFETY: advice about the mapping that was just made; its bytes stay what they are.
            unsafe {
                libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
            }
            Ok(Self { base, len })
        }

        pub(super) fn base(&self) -> NonNull<u8> {
            self.base
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            // SAFETY: exactly the mapping that new() made; all regions, which hold this block,
            // are gone.
            let code = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
            debug_assert_eq!(code, 0, "a whole mapping can be unmapped");
        }
    }

    pub(super) fn page_size() -> usize {
        static SIZE: OnceLock<usize> = OnceLock::new();
        *SIZE.get_or_init(|| {
            // SAFETY: sysconf reads a constant of the system.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
        })
    }
}

/// The allocator's memory, where there are no mappings.
#[cfg(not(all(unix, not(miri))))]
mod memory {
    use super::{NonNull, io};
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    #[derive(Debug)]
    pub(super) struct Block {
        base: NonNull<u8>,
        layout: Layout,
    }

    impl Block {
        pub(super) fn new(len: usize, alignment: usize) -> io::Result<Self> {
            let none = || io::Error::from(io::ErrorKind::OutOfMemory);
            let layout = Layout::from_size_align(len, alignment).map_err(|_| none())?;
            // SAFETY: block_len() is never 0.
            let base = unsafe { alloc_zeroed(layout) };
            Ok(Self { base: NonNull::new(base).ok_or_else(none)?, layout })
        }

        pub(super) fn base(&self) -> NonNull<u8> {
            self.base
        }
    }

    impl Drop for Block {
        fn drop(&mut self) {
            // SAFETY: came from alloc_zeroed with this layout; all regions are gone.
            unsafe { dealloc(self.base.as_ptr(), self.layout) }
        }
    }

    // SAFETY: a block is plain memory, tied to no thread.
    unsafe impl Send for Block {}
    // SAFETY: it gives away nothing but its address.
    unsafe impl Sync for Block {}

    pub(super) fn page_size() -> usize {
        4096
    }
}

#[cfg(all(unix, not(miri)))]
// SAFETY: a block is plain memory, tied to no thread.
unsafe impl Send for memory::Block {}
#[cfg(all(unix, not(miri)))]
// SAFETY: it gives away nothing but its address.
unsafe impl Sync for memory::Block {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zeroed_and_apart() {
        for alignment in [64, 4096, 65_536] {
            let lens = [1, 5000, 0, 64, 4096];
            let mut regions = allocate(&lens, alignment).unwrap();
            assert!(block_len(&lens, alignment).unwrap() >= lens.iter().sum());
            for (value, (region, len)) in regions.iter_mut().zip(lens).enumerate() {
                assert_eq!(region.len(), len);
                assert!(region.as_ptr().addr().is_multiple_of(alignment));
                assert_eq!(region[..], vec![0; len]);
                region.fill(value as u8 + 1);
            }
            for (value, region) in regions.iter().enumerate() {
                assert_eq!(region[..], vec![value as u8 + 1; region.len()]);
            }
        }
    }

    #[test]
    fn a_block_lives_as_long_as_its_last_region() {
        let mut regions = allocate(&[100, 200], 64).unwrap();
        let mut last = regions.pop().unwrap();
        drop(regions);
        let last = std::thread::spawn(move || {
            last.fill(3);
            last
        });
        assert!(last.join().unwrap().iter().all(|&byte| byte == 3));
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert!(allocate(&[usize::MAX, 1], 64).is_err());
        // Miri ends the program where an allocator would return null.
        #[cfg(not(miri))]
        assert!(allocate(&[isize::MAX as usize / 2], 64).is_err());
        assert_eq!(block_len(&[usize::MAX - 10], 4096), None);
    }
}

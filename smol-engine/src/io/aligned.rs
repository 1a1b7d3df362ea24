//! Memory with an alignment of choice, for direct I/O.

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A fixed-size, zero-initialized block of bytes whose address is a multiple of an alignment.
///
/// ```
/// let block = smol_engine::io::AlignedBuf::new(8192, 4096);
/// assert_eq!(block.as_ptr().addr() % 4096, 0);
/// assert!(block.iter().all(|&byte| byte == 0));
/// ```
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    layout: Layout,
}

impl AlignedBuf {
    /// Allocates `len` bytes of zeros at a multiple of `alignment`.
    ///
    /// # Panics
    /// If `alignment` is not a power of two, or `len` rounded up to it exceeds `isize::MAX`.
    /// Calls [`std::alloc::handle_alloc_error`] if there is no memory.
    pub fn new(len: usize, alignment: usize) -> Self {
        let layout = Layout::from_size_align(len, alignment)
            .expect("alignment must be a power of two and the size within the address space");
        if len == 0 {
            // Any multiple of the alignment that is not null will do.
            let ptr = NonNull::new(std::ptr::without_provenance_mut(alignment))
                .expect("an alignment is not zero");
            return Self { ptr, layout };
        }
        // SAFETY: the layout's size is not zero (checked above).
        let ptr = unsafe { alloc::alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { alloc::handle_alloc_error(layout) };
        Self { ptr, layout }
    }

    /// Returns the alignment in bytes.
    pub fn alignment(&self) -> usize {
        self.layout.align()
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: ptr points to layout.size() bytes, initialized with zeros, that this value
        // owns until it is dropped (or the size is 0 and ptr is aligned and not null); the
        // borrow of self keeps them from being written.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref; the exclusive borrow of self makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: ptr came from alloc_zeroed with this very layout and is freed once.
            unsafe { alloc::dealloc(self.ptr.as_ptr(), self.layout) }
        }
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len())
            .field("alignment", &self.alignment())
            .finish()
    }
}

// SAFETY: the block is owned, plain memory; nothing about it is tied to a thread.
unsafe impl Send for AlignedBuf {}
// SAFETY: a shared reference only allows reading.
unsafe impl Sync for AlignedBuf {}

#[cfg(test)]
mod tests {
    use super::AlignedBuf;

    #[test]
    fn aligned_zeroed_and_writable() {
        for alignment in [1, 512, 4096, 65536] {
            for len in [1, 511, 4096, 10_000] {
                let mut block = AlignedBuf::new(len, alignment);
                assert_eq!((block.len(), block.alignment()), (len, alignment));
                assert_eq!(block.as_ptr().addr() % alignment, 0);
                // At once: byte by byte takes Miri as long as all else.
                assert_eq!(block[..], vec![0; len]);
                block.fill(7);
                assert_eq!(block[len - 1], 7);
            }
        }
    }

    #[test]
    fn empty_blocks_allocate_nothing() {
        let mut block = AlignedBuf::new(0, 4096);
        assert!(block.is_empty());
        block.fill(1);
    }

    #[test]
    fn moves_between_threads() {
        let mut block = AlignedBuf::new(64, 64);
        block[3] = 9;
        let third = std::thread::spawn(move || block[3]).join().unwrap();
        assert_eq!(third, 9);
    }

    #[test]
    #[should_panic(expected = "power of two")]
    fn refuses_odd_alignments() {
        let _ = AlignedBuf::new(1, 3);
    }
}

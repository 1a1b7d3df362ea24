//! One piece of memory, of which parts are read into while others are used.

use super::arena::{self, Region};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that is given out in parts, none of which overlaps another one.
pub(crate) struct Zones {
    base: NonNull<u8>,
    len: usize,
    /// Start and end of each part that is given out.
    taken: Mutex<BTreeMap<usize, usize>>,
    /// Keeps the memory. It is never looked at: all access is through `base`.
    _memory: Region,
}

impl Zones {
    /// Takes `len` bytes of zeros from the system, at a multiple of `alignment`, a power of two.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub(crate) fn new(len: usize, alignment: usize) -> io::Result<Arc<Self>> {
        let none = || io::Error::from(io::ErrorKind::OutOfMemory);
        let mut memory = arena::allocate(&[len], alignment)?.pop().ok_or_else(none)?;
        let base = NonNull::new(memory.as_mut_ptr()).ok_or_else(none)?;
        Ok(Arc::new(Self { base, len, taken: Mutex::default(), _memory: memory }))
    }

    /// Returns the address of a byte, valid as long as this or a part of it is.
    pub(crate) fn address(&self, at: usize) -> *const u8 {
        self.base.as_ptr().wrapping_add(at)
    }

    /// Gives a part out; `None` if it is not all there, or some of it is given out already.
    pub(crate) fn take(self: &Arc<Self>, range: Range<usize>) -> Option<Zone> {
        if range.start >= range.end || range.end > self.len {
            return None;
        }
        let mut taken = self.taken();
        let before = taken.range(..range.end).next_back();
        if before.is_some_and(|(_, &end)| end > range.start) {
            return None;
        }
        taken.insert(range.start, range.end);
        Some(Zone { zones: Arc::clone(self), start: range.start, len: range.len() })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Zones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zones").field("base", &self.base).field("len", &self.len).finish()
    }
}

// SAFETY: plain memory, tied to no thread.
unsafe impl Send for Zones {}
// SAFETY: what is shared gives access to bytes only through zones, each of which has its own;
// take() hands them out under a lock.
unsafe impl Sync for Zones {}

/// A part of some [`Zones`] that belongs to its holder alone.
pub(crate) struct Zone {
    zones: Arc<Zones>,
    start: usize,
    len: usize,
}

impl Zone {
    fn ptr(&self) -> *mut u8 {
        // SAFETY: take() has checked that start..start + len is within the memory at base.
        unsafe { self.zones.base.as_ptr().add(self.start) }
    }
}

impl Deref for Zone {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: len bytes within memory that `zones` keeps and that was zeroed when it was
        // made; no other zone overlaps (take() refuses that until this one is dropped), and the
        // borrow of self keeps these bytes from being written.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.len) }
    }
}

impl DerefMut for Zone {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref(); the exclusive borrow of self makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.len) }
    }
}

impl Drop for Zone {
    fn drop(&mut self) {
        self.zones.taken().remove(&self.start);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zone").field("start", &self.start).field("len", &self.len).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let zones = Zones::new(1000, 64).unwrap();
        assert!(zones.address(0).addr().is_multiple_of(64));
        let mut first = zones.take(100..200).unwrap();
        let second = zones.take(200..1000).unwrap();
        for range in [0..101, 0..1000, 100..200, 120..130, 199..201, 199..300, 999..1000] {
            assert!(zones.take(range.clone()).is_none(), "{range:?}");
        }
        let mut before = zones.take(0..100).unwrap();
        assert!(second.iter().all(|&byte| byte == 0));
        drop(second);
        let mut last = zones.take(999..1000).unwrap();
        assert!(zones.take(200..999).is_some());
        for (value, zone) in [&mut before, &mut first, &mut last].into_iter().enumerate() {
            zone.fill(value as u8 + 1);
        }
        assert!(before.iter().all(|&byte| byte == 1) && first.iter().all(|&byte| byte == 2));
        assert_eq!(first.as_ptr(), zones.address(100));
        assert_eq!(&last[..], [3]);
    }

    #[test]
    fn what_is_not_there_is_not_given_out() {
        let zones = Zones::new(100, 64).unwrap();
        for range in [0..0, 50..50, 0..101, 100..101] {
            assert!(zones.take(range).is_none());
        }
        #[expect(clippy::reversed_empty_ranges, reason = "that is what is refused")]
        let reversed = 60..50;
        assert!(zones.take(reversed).is_none());
    }

    #[test]
    fn a_part_keeps_the_memory_and_may_go_to_another_thread() {
        let zones = Zones::new(256, 64).unwrap();
        let halves = [zones.take(0..128).unwrap(), zones.take(128..256).unwrap()];
        let first = zones.address(0);
        let filled = halves.into_iter().enumerate().map(|(number, mut zone)| {
            std::thread::spawn(move || {
                zone.fill(number as u8 + 7);
                zone
            })
        });
        let filled: Vec<_> =
            filled.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap()).collect();
        // SAFETY: nobody writes to the first half any more, and its zone keeps it.
        assert_eq!(unsafe { first.read() }, 7);
        drop(zones);
        assert!(filled[0].iter().all(|&byte| byte == 7) && filled[1].iter().all(|&byte| byte == 8));
    }
}

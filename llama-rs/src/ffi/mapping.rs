//! Survives the shortening of a file that is mapped.
//!
//! Reading a mapped page that the file has lost raises SIGBUS, which ends the process. While a mapped model lives, its
//! address ranges are registered here, and a handler puts zeros in the place of lost pages, so that the running decode
//! ends and its caller can be told. Faults anywhere else go to whoever handled them before.

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) use linux::MappingGuard;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) use other::MappingGuard;

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod other {
    use std::path::PathBuf;

    /// Guards nothing: these systems don't list a process's mappings.
    #[derive(Debug)]
    pub(crate) struct MappingGuard;

    impl MappingGuard {
        pub(crate) fn new(_files: Vec<PathBuf>) -> Self {
            Self
        }

        pub(crate) fn refresh(&self) {}

        pub(crate) fn was_hit(&self) -> bool {
            false
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::ffi::{c_int, c_void};
    use std::path::PathBuf;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
    use std::sync::{Mutex, Once, PoisonError};

    /// Mappings that can be guarded at once. A model has one a file, or two once parts of it are unmapped.
    const REGIONS: usize = 256;

    /// An address range that may lose its file. Free if `end` is 0. The handler reads these without a lock.
    struct Region {
        start: AtomicUsize,
        end: AtomicUsize,
        hit: AtomicBool,
    }

    static TABLE: [Region; REGIONS] = [const {
        Region { start: AtomicUsize::new(0), end: AtomicUsize::new(0), hit: AtomicBool::new(false) }
    }; REGIONS];

    /// The handler that was there before ours, once ours is installed.
    static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

    static PAGE_SIZE: AtomicUsize = AtomicUsize::new(4096);

    /// Guards the mappings of some files until it is dropped.
    #[derive(Debug)]
    pub(crate) struct MappingGuard {
        files: Vec<PathBuf>,
        slots: Mutex<Vec<usize>>,
        hit: AtomicBool,
    }

    impl MappingGuard {
        /// Prepares to guard files; call [`refresh`](Self::refresh) when they are mapped.
        pub(crate) fn new(files: Vec<PathBuf>) -> Self {
            static INSTALLED: Once = Once::new();
            INSTALLED.call_once(install);
            let files = files.into_iter().map(|file| file.canonicalize().unwrap_or(file)).collect();
            Self { files, slots: Mutex::new(Vec::new()), hit: AtomicBool::new(false) }
        }

        /// Looks up where the files are mapped now.
        pub(crate) fn refresh(&self) {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            self.release(&mut slots);
            for (start, end) in self.find(&maps) {
                slots.extend(claim(start, end));
            }
        }

        /// Whether a page of the files was lost and replaced.
        pub(crate) fn was_hit(&self) -> bool {
            let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            self.hit.load(Ordering::Acquire)
                || slots.iter().any(|slot| TABLE[*slot].hit.load(Ordering::Acquire))
        }

        fn release(&self, slots: &mut Vec<usize>) {
            for slot in slots.drain(..) {
                TABLE[slot].end.store(0, Ordering::Release);
                if TABLE[slot].hit.swap(false, Ordering::AcqRel) {
                    self.hit.store(true, Ordering::Release);
                }
            }
        }

        /// The ranges of this process's memory map that show one of the files.
        fn find<'a>(&'a self, maps: &'a str) -> impl Iterator<Item = (usize, usize)> + 'a {
            maps.lines().filter_map(|line| {
                // start-end permissions offset device inode path
                let path = line.splitn(6, ' ').nth(5)?.trim_start();
                // The system marks files that were removed meanwhile.
                let path = path.strip_suffix(" (deleted)").unwrap_or(path);
                if !self.files.iter().any(|file| file.as_os_str() == path) {
                    return None;
                }
                let (start, end) = line.split_once(' ')?.0.split_once('-')?;
                let address = |text| usize::from_str_radix(text, 16).ok();
                Some((address(start)?, address(end)?))
            })
        }
    }

    impl Drop for MappingGuard {
        fn drop(&mut self) {
            let mut slots =
                std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner));
            self.release(&mut slots);
        }
    }

    /// Enters a range into the table, or nothing if it is full.
    fn claim(start: usize, end: usize) -> Option<usize> {
        static CLAIMING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = CLAIMING.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = TABLE.iter().position(|region| region.end.load(Ordering::Acquire) == 0)?;
        TABLE[slot].hit.store(false, Ordering::Release);
        TABLE[slot].start.store(start, Ordering::Release);
        TABLE[slot].end.store(end, Ordering::Release);
        Some(slot)
    }

    fn install() {
        // SAFETY: a query without pointers (POSIX sysconf).
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE_SIZE.store(usize::try_from(page).unwrap_or(4096), Ordering::Release);
        // SAFETY: a C struct of numbers, pointers and a signal set, for which zeros are valid.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = on_bus_error as *const () as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: as above.
        let previous = Box::into_raw(Box::new(unsafe { std::mem::zeroed::<libc::sigaction>() }));
        // Known to the handler before it can run; never freed, as the handler may run at any time.
        PREVIOUS.store(previous, Ordering::Release);
        // SAFETY: both structs are valid; the handler has the signature that SA_SIGINFO asks for and does only what a
        // signal handler may: it reads atomics and calls mmap and sigaction.
        unsafe { libc::sigaction(libc::SIGBUS, &ours, previous) };
    }

    extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the system passes a valid siginfo_t to handlers with SA_SIGINFO.
        let info_ref = unsafe { &*info };
        // SAFETY: SIGBUS carries an address (POSIX, si_addr).
        let address = unsafe { info_ref.si_addr() } as usize;
        if put_zeros(address) {
            return;
        }
        // SAFETY: set before the handler was installed, never freed.
        let previous = unsafe { &*PREVIOUS.load(Ordering::Acquire) };
        let handler = previous.sa_sigaction;
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            // The instruction runs again and meets what was there before us.
            // SAFETY: puts back the struct that sigaction itself filled in.
            unsafe { libc::sigaction(signal, previous, ptr::null_mut()) };
        } else if previous.sa_flags & libc::SA_SIGINFO != 0 {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: with SA_SIGINFO the field holds a function of this type (POSIX sigaction).
            let handler = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(handler) };
            handler(signal, info, context);
        } else {
            // SAFETY: without SA_SIGINFO the field holds a function of this type (POSIX sigaction).
            let handler =
                unsafe { std::mem::transmute::<libc::sighandler_t, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }

    /// Replaces the rest of the guarded range from a lost page on, if the address lies in one.
    fn put_zeros(address: usize) -> bool {
        let within = |region: &&Region| {
            address >= region.start.load(Ordering::Acquire)
                && address < region.end.load(Ordering::Acquire)
        };
        let Some(region) = TABLE.iter().find(within) else { return false };
        let page = address & !(PAGE_SIZE.load(Ordering::Acquire) - 1);
        let length = region.end.load(Ordering::Acquire).saturating_sub(page);
        region.hit.store(true, Ordering::Release);
        // SAFETY: replaces pages of a live, read-only mapping of a model's file, registered by its owner, by pages that
        // read as zeros; nobody holds a Rust reference to them.
        let mapped = unsafe {
            libc::mmap(
                page as *mut c_void,
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        mapped != libc::MAP_FAILED
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn mappings_are_found_by_their_path() {
            let maps = "7f1200000000-7f1200100000 r--s 00000000 fd:01 1234                       /m/a b.gguf\n\
                        7f1200200000-7f1200300000 r--s 00100000 fd:01 1234                       /m/a b.gguf (deleted)\n\
                        7f1300000000-7f1300100000 r--p 00000000 fd:01 99                         /m/other\n\
                        7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0                          [stack]\n\
                        7ffd10000000-7ffd10001000 rw-p 00000000 00:00 0 \n";
            let guard = MappingGuard::new(vec!["/m/a b.gguf".into()]);
            let found: Vec<_> = guard.find(maps).collect();
            let expected =
                [(0x7f12_0000_0000, 0x7f12_0010_0000), (0x7f12_0020_0000, 0x7f12_0030_0000)];
            assert_eq!(found, expected);
        }

        #[test]
        fn the_table_hands_out_free_slots_only() {
            let one = claim(16, 32).unwrap();
            let other = claim(48, 64).unwrap();
            assert_ne!(one, other);
            for slot in [one, other] {
                TABLE[slot].end.store(0, Ordering::Release);
            }
        }
    }
}

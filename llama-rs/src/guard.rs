//! Gives memory back before the system takes it by ending the process, and ends the work when nothing is left to give.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use smol_engine::expert::Pager;
use smol_engine::machine::Memory;
use smol_engine::stream::Stream;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::human;

/// How often memory is looked at. Pools can't be filled faster than flash is read, which is far less than the reserve in
/// that time.
const INTERVAL: Duration = Duration::from_millis(250);
/// The same while memory is short.
const SHORT_INTERVAL: Duration = Duration::from_millis(50);
/// The part of all memory that is to stay available, at least [`LEAST_RESERVE`] bytes.
const RESERVE_PART: u64 = 32;
const LEAST_RESERVE: u64 = 24 << 20;
/// The part of the reserve from which on the system may end the process at any time, and the least that is: the kernel
/// needs some itself, and other programs take a few MiB in one go.
const LAST_PART: u64 = 6;
const LEAST_LAST: u64 = 8 << 20;
/// Looks in a row that find no more than that before the work is ended: one may be a moment's peak of another program.
const STRIKES: u32 = 4;

/// What can give memory back.
pub(crate) trait Relieve: Send + Sync {
    /// Adapts to the bytes that are available, of which `reserve` should be.
    fn relieve(&self, available: u64, reserve: u64);
}

impl Relieve for Pager {
    fn relieve(&self, available: u64, reserve: u64) {
        Self::relieve(self, available, reserve);
    }
}

impl Relieve for Stream {
    fn relieve(&self, available: u64, reserve: u64) {
        Self::relieve(self, available, reserve);
    }
}

/// A thread that watches the memory that is available, as long as this lives.
pub(crate) struct Guard {
    short: Arc<AtomicBool>,
    /// What was available when `short` was set, in bytes.
    left: Arc<AtomicU64>,
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is decided at each look.
struct Watch {
    /// Bytes that are to stay available.
    reserve: u64,
    /// Looks in a row that found the last of them in use.
    strikes: u32,
    short: Arc<AtomicBool>,
    left: Arc<AtomicU64>,
}

impl Watch {
    /// Bytes with which the system may end the process at any time.
    fn last(&self) -> u64 {
        (self.reserve / LAST_PART).max(LEAST_LAST)
    }

    /// Reacts to what is available; tells when to look again.
    fn look(&mut self, available: u64, relieved: &[Weak<dyn Relieve>]) -> Duration {
        for one in relieved.iter().filter_map(Weak::upgrade) {
            one.relieve(available, self.reserve);
        }
        self.strikes = if available < self.last() { self.strikes + 1 } else { 0 };
        if self.strikes >= STRIKES {
            self.left.store(available, Ordering::Relaxed);
            self.short.store(true, Ordering::Release);
        } else if available >= self.last() * 2 {
            self.short.store(false, Ordering::Release);
        }
        if available < self.reserve { SHORT_INTERVAL } else { INTERVAL }
    }
}

impl Guard {
    /// Watches, lets `relieved` give memory back when it gets short and take it again afterwards, and ends the work of the
    /// model when that does not help.
    pub(crate) fn watch(relieved: Vec<Weak<dyn Relieve>>) -> Result<Self> {
        let (short, left) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let reserve = reserve_of(&Memory::probe());
        let mut watch =
            Watch { reserve, strikes: 0, short: Arc::clone(&short), left: Arc::clone(&left) };
        let (over, told) = mpsc::channel();
        let body = move || {
            let mut interval = INTERVAL;
            while told.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                if let Some(available) = Memory::probe().usable_ram() {
                    interval = watch.look(available, &relieved);
                }
            }
        };
        let thread = thread::Builder::new()
            .name("memory".to_owned())
            .spawn(body)
            .map_err(|error| Error::io(error, "cannot start a thread", None))?;
        Ok(Self { short, left, over: Some(over), thread: Some(thread) })
    }

    /// What is set while the work should end.
    pub(crate) fn short(&self) -> &Arc<AtomicBool> {
        &self.short
    }

    /// The error for work that is not begun, or was ended, because memory is used up.
    pub(crate) fn error(&self) -> Option<Error> {
        self.short.load(Ordering::Acquire).then(|| error(self.left.load(Ordering::Relaxed)))
    }
}

fn error(left: u64) -> Error {
    let message = format!(
        "{} of memory were left and nothing could be given back: the work was ended before the system would end the process; \
         ask for less RAM or a smaller context, or end other programs",
        human(left)
    );
    Error::new(ErrorKind::OutOfMemory { needed: None, available: Some(left) }, message)
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by its hook.
            let _ = thread.join();
        }
    }
}

/// Bytes that are to stay available.
pub(crate) fn reserve_of(memory: &Memory) -> u64 {
    let total = [memory.total, memory.cgroup_limit].into_iter().flatten().min();
    (total.unwrap_or(0) / RESERVE_PART).max(LEAST_RESERVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A pool that gives what it is asked for, until it has nothing left.
    struct Pool(AtomicU64);

    impl Relieve for Pool {
        fn relieve(&self, available: u64, reserve: u64) {
            let missing = reserve.saturating_sub(available);
            let held = self.0.load(Ordering::Relaxed);
            self.0.store(held.saturating_sub(missing), Ordering::Relaxed);
        }
    }

    fn watch() -> Watch {
        Watch { reserve: 24 * MIB, strikes: 0, short: Arc::default(), left: Arc::default() }
    }

    #[test]
    fn pools_give_back_before_the_work_is_ended() {
        let pool = Arc::new(Pool(AtomicU64::new(30 * MIB)));
        let relieved: Vec<Weak<dyn Relieve>> = vec![Arc::downgrade(&pool) as _];
        let mut watch = watch();
        // Another program takes all that is given back.
        let mut looks = 0;
        while !watch.short.load(Ordering::Relaxed) {
            assert_eq!(watch.look(MIB, &relieved), SHORT_INTERVAL);
            looks += 1;
        }
        assert_eq!(looks, STRIKES);
        assert_eq!(watch.left.load(Ordering::Relaxed), MIB);
        assert_eq!(pool.0.load(Ordering::Relaxed), 0);
        // Memory is back: work may go on.
        assert_eq!(watch.look(15 * MIB, &relieved), SHORT_INTERVAL);
        assert!(watch.short.load(Ordering::Relaxed));
        assert_eq!(watch.look(30 * MIB, &relieved), INTERVAL);
        assert!(!watch.short.load(Ordering::Relaxed));
    }

    #[test]
    fn a_moment_of_shortage_ends_nothing() {
        let mut watch = watch();
        for _ in 0..10 {
            for _ in 1..STRIKES {
                watch.look(0, &[]);
            }
            watch.look(9 * MIB, &[]);
        }
        assert!(!watch.short.load(Ordering::Relaxed));
    }

    #[test]
    fn the_reserve_is_a_part_of_what_the_process_may_have() {
        let memory = |total, cgroup_limit| {
            let mut memory = Memory::default();
            memory.total = total;
            memory.cgroup_limit = cgroup_limit;
            reserve_of(&memory)
        };
        assert_eq!(memory(None, None), LEAST_RESERVE);
        assert_eq!(memory(Some(64 << 30), None), 2 << 30);
        assert_eq!(memory(Some(64 << 30), Some(1 << 30)), 32 * MIB);
    }

    #[test]
    fn a_guard_ends_with_what_it_watches_for() {
        let guard = Guard::watch(Vec::new()).unwrap();
        assert!(guard.error().is_none());
        guard.short().store(true, Ordering::Relaxed);
        let error = guard.error();
        // Unless the thread has looked meanwhile, and found enough.
        if let Some(error) = error {
            assert!(matches!(error.kind(), ErrorKind::OutOfMemory { .. }), "{error}");
        }
    }
}

//! Reading a mapped file while something else goes on.

use super::mapping::MappedFile;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// What is read ahead of the pages that are entered.
const AHEAD: usize = 64 << 20;
/// What is entered at once: other threads that change the memory map wait so long.
const STEP: usize = 2 << 20;

/// A thread that gets the pages of a file ready in their order. Dropping it ends it.
#[derive(Debug)]
pub struct Prefetch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts with the first byte of `range`; where there can't be a thread the system is told what is needed.
    pub(super) fn start(map: Arc<MappedFile>, range: Range<usize>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (map, range, stop) = (Arc::clone(&map), range.clone(), Arc::clone(&stop));
            let work = move || run(&map, range, &stop);
            thread::Builder::new().name("prefetch".into()).spawn(work).ok()
        };
        if thread.is_none() {
            map.read_ahead(range.start, range.len());
        }
        Self { stop, thread }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It can't panic, and if it did nobody would miss it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(map: &MappedFile, range: Range<usize>, stop: &AtomicBool) {
    let mut ahead = range.start;
    for start in range.clone().step_by(STEP) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // Half of it at a time, so that reads are large.
        if ahead < range.end && ahead < start + AHEAD / 2 {
            let len = AHEAD.min(range.end - ahead);
            map.read_ahead(ahead, len);
            ahead += len;
        }
        if !map.populate(start, STEP.min(range.end - start)) {
            map.read_ahead(ahead, range.end - ahead);
            return;
        }
    }
}

//! Threads that read, and how they read a piece of a file completely.

use super::{Error, ReadAt, Result};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Threads that read if nobody says how many: enough that flash has something to do while it
/// seeks.
pub(crate) const DEFAULT_READERS: usize = 4;
/// More threads than any disk has queues.
pub(crate) const MOST_READERS: usize = 256;
/// Reads that bring nothing, one after the other, after which a file counts as unreadable.
const MOST_IDLE_READS: u32 = 1000;
/// How long a file is read from without a look at whether it is still the same.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Returns the bytes from the last possible start of a read to `offset`.
pub(crate) fn skew(file: &dyn ReadAt, offset: u64) -> usize {
    (offset % file.alignment() as u64) as usize
}

/// Returns the room in memory that a read of `len` bytes at `offset` takes.
pub(crate) fn room(file: &dyn ReadAt, offset: u64, len: usize) -> usize {
    (skew(file, offset) + len).next_multiple_of(file.alignment())
}

/// A file and what is known about its being the one that was opened.
#[derive(Debug)]
pub(crate) struct WatchedFile {
    file: Arc<dyn ReadAt>,
    opened: Instant,
    /// Milliseconds from `opened` to the last check.
    checked: AtomicU64,
    /// Whether bytes were read since.
    unchecked: AtomicBool,
    /// Held during a check: who finds nothing to check has waited for the one that goes on.
    checking: Mutex<()>,
}

impl WatchedFile {
    pub(crate) fn new(file: Arc<dyn ReadAt>) -> Self {
        Self {
            file,
            opened: Instant::now(),
            checked: AtomicU64::new(0),
            unchecked: AtomicBool::new(true),
            checking: Mutex::new(()),
        }
    }

    pub(crate) fn file(&self) -> &dyn ReadAt {
        &*self.file
    }

    /// Checks that all bytes read so far came from the file that was opened.
    pub(crate) fn check(&self) -> Result<()> {
        let _checking = self.checking.lock().unwrap_or_else(PoisonError::into_inner);
        // Reads that end from here on ask for a check of their own.
        if self.unchecked.swap(false, Ordering::AcqRel) {
            let now = self.opened.elapsed().as_millis() as u64;
            self.checked.store(now, Ordering::Relaxed);
            self.file.check_unchanged().inspect_err(|_| {
                self.unchecked.store(true, Ordering::Release);
            })?;
        }
        Ok(())
    }

    /// Reads `len` bytes at `offset` into `buf`, where they start at [`skew`], and returns the
    /// number of bytes that came from the file.
    ///
    /// # Errors
    /// If the read fails or the file ends early; if the file was changed, that is the error.
    pub(crate) fn read(&self, offset: u64, len: usize, buf: &mut [u8]) -> Result<u64> {
        let read = read_fully(&*self.file, offset, len, buf);
        self.unchecked.store(true, Ordering::Release);
        let now = self.opened.elapsed().as_millis() as u64;
        let due = now.saturating_sub(self.checked.load(Ordering::Relaxed))
            >= CHECK_INTERVAL.as_millis() as u64;
        if due || read.is_err() {
            self.check()?;
        }
        read
    }
}

fn read_fully(file: &dyn ReadAt, offset: u64, len: usize, buf: &mut [u8]) -> Result<u64> {
    let alignment = file.alignment();
    let skew = skew(file, offset);
    let start = offset - skew as u64;
    let buf = &mut buf[..room(file, offset, len)];
    let needed = skew + len;
    let failed = |source| Error::Read { path: file.path().to_owned(), offset, len, source };
    // `done` is a multiple of the alignment whenever a read starts.
    let (mut done, mut idle) = (0, 0);
    loop {
        let mut came = 0;
        match file.read_at(&mut buf[done..], start + done as u64) {
            Ok(0) => {
                let file_len = start + done as u64;
                return Err(Error::Truncated {
                    path: file.path().to_owned(),
                    offset,
                    len,
                    file_len,
                });
            }
            Ok(read) => came = read.min(buf.len() - done),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
        let reached = done + came;
        if reached >= needed {
            return Ok(reached as u64);
        }
        if start + reached as u64 >= file.len() {
            let file_len = start + reached as u64;
            return Err(Error::Truncated { path: file.path().to_owned(), offset, len, file_len });
        }
        // A read that stopped within a block goes on from the block's start.
        let aligned = reached - reached % alignment;
        idle = if aligned > done { 0 } else { idle + 1 };
        if idle > MOST_IDLE_READS {
            let source =
                io::Error::new(io::ErrorKind::TimedOut, "reads stop short again and again");
            return Err(failed(source));
        }
        done = aligned;
    }
}

/// Threads that do one thing until it returns.
#[derive(Debug)]
pub(crate) struct Readers(Vec<JoinHandle<()>>);

impl Readers {
    /// Starts one thread for each body.
    ///
    /// # Errors
    /// If the system gives no thread. Those that have been started run on in the second value.
    pub(crate) fn spawn<B>(bodies: impl IntoIterator<Item = B>) -> (io::Result<()>, Self)
    where
        B: FnOnce() + Send + 'static,
    {
        let mut threads = Vec::new();
        for (number, body) in bodies.into_iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("smol-reader-{number}"));
            match thread.spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(e) => return (Err(e), Self(threads)),
            }
        }
        (Ok(()), Self(threads))
    }

    /// Waits until all threads have returned.
    pub(crate) fn join(&mut self) {
        for thread in self.0.drain(..) {
            // The last owner may be one of them.
            if thread.thread().id() != std::thread::current().id() {
                // A reader that panicked has said so; there is nobody to tell.
                let _ = thread.join();
            }
        }
    }
}

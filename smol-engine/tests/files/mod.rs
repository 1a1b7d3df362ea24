//! Files that fail in all the ways that files do, for the tests of all that reads.
#![allow(dead_code, reason = "each program of tests uses a part")]

use smol_engine::expert::Packer;
use smol_engine::io::{Error, Mode, ReadAt, Result};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Marsaglia's 64-bit xorshift generator.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns `count` different numbers below `limit`.
    pub fn choose(&mut self, count: usize, limit: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..limit).collect();
        for index in 0..count {
            let other = index + self.below(all.len() - index);
            all.swap(index, other);
        }
        all.truncate(count);
        all
    }
}

/// What a read comes to.
pub enum Outcome {
    Good,
    /// No more bytes than this.
    Short(usize),
    Fails(io::ErrorKind),
    /// Other bytes than there are.
    Wrong,
}

type Script = dyn FnMut(u64, usize) -> Outcome + Send;

/// A file in memory that does as it is told.
pub struct Fake {
    pub data: Vec<u8>,
    alignment: usize,
    mode: Mode,
    path: PathBuf,
    script: Mutex<Option<Box<Script>>>,
    delay: Mutex<Duration>,
    open: Mutex<bool>,
    opened: Condvar,
    pub changed: AtomicBool,
    pub reads: AtomicU64,
    pub reading: AtomicU64,
    pub bytes: AtomicU64,
    /// Offsets in the order of the reads.
    pub offsets: Mutex<Vec<u64>>,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fake").field("len", &self.data.len()).finish_non_exhaustive()
    }
}

impl Fake {
    pub fn new(len: usize, alignment: usize) -> Arc<Self> {
        let mut random = Random(len as u64 + 77);
        Self::of((0..len).map(|_| random.next() as u8).collect(), alignment)
    }

    pub fn of(data: Vec<u8>, alignment: usize) -> Arc<Self> {
        Arc::new(Self {
            data,
            alignment,
            mode: Mode::Direct,
            path: "/models/fake.gguf".into(),
            script: Mutex::new(None),
            delay: Mutex::new(Duration::ZERO),
            open: Mutex::new(true),
            opened: Condvar::new(),
            changed: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            reading: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            offsets: Mutex::new(Vec::new()),
        })
    }

    pub fn script(&self, script: impl FnMut(u64, usize) -> Outcome + Send + 'static) {
        *self.script.lock().unwrap() = Some(Box::new(script));
    }

    pub fn set_delay(&self, delay: Duration) {
        *self.delay.lock().unwrap() = delay;
    }

    /// Lets no read return until the gate is opened, by dropping it.
    pub fn close_gate(self: &Arc<Self>) -> Gate {
        *self.open.lock().unwrap() = false;
        Gate(Arc::clone(self))
    }

    /// Waits until `count` reads are in flight.
    pub fn await_reading(&self, count: u64) {
        eventually(|| self.reading.load(Ordering::SeqCst) >= count);
    }
}

/// Keeps reads from returning. A test that fails drops it too, so that readers can end.
pub struct Gate(Arc<Fake>);

impl Gate {
    pub fn open(self) {}
}

impl Drop for Gate {
    fn drop(&mut self) {
        *self.0.open.lock().unwrap() = true;
        self.0.opened.notify_all();
    }
}

/// Waits until something is so.
pub fn eventually(is_so: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("it did not happen within a minute");
}

impl ReadAt for Fake {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let odd = buf.as_ptr().addr() | buf.len() | offset as usize;
        assert!(odd.is_multiple_of(self.alignment), "{offset} {}", buf.len());
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.reading.fetch_add(1, Ordering::SeqCst);
        self.offsets.lock().unwrap().push(offset);
        let delay = *self.delay.lock().unwrap();
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
        let outcome = match &mut *self.script.lock().unwrap() {
            Some(script) => script(offset, buf.len()),
            None => Outcome::Good,
        };
        self.reading.fetch_sub(1, Ordering::SeqCst);
        let start = (offset as usize).min(self.data.len());
        let mut len = buf.len().min(self.data.len() - start);
        match outcome {
            Outcome::Good | Outcome::Wrong => {}
            Outcome::Short(most) => len = len.min(most),
            Outcome::Fails(kind) => return Err(kind.into()),
        }
        buf[..len].copy_from_slice(&self.data[start..start + len]);
        if matches!(outcome, Outcome::Wrong) {
            buf[len / 2] ^= 1;
        }
        self.bytes.fetch_add(len as u64, Ordering::SeqCst);
        Ok(len)
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn len(&self) -> u64 {
        self.data.len() as u64
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn mode(&self) -> &Mode {
        &self.mode
    }

    fn check_unchanged(&self) -> Result<()> {
        if self.changed.load(Ordering::SeqCst) {
            let what = "it was written to".to_owned();
            return Err(Error::Changed { path: self.path.clone(), what });
        }
        Ok(())
    }
}

/// A form that differs from the file's in every byte, and in size.
pub struct Reversed;

impl Packer for Reversed {
    fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        let (front, rest) = packed.split_at_mut(plain.len());
        for (to, from) in front.iter_mut().zip(plain.iter().rev()) {
            *to = !from;
        }
        rest.fill(0xab);
    }
}

/// A file on a real file system, and the ways in which it may become another one.
pub struct ChangingFile {
    folder: tempfile::TempDir,
    data: Vec<u8>,
}

impl ChangingFile {
    /// Number of changes.
    pub const CHANGES: usize = 3;

    pub fn new(data: &[u8]) -> Self {
        let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let folder = tempfile::tempdir_in(beside).unwrap();
        Self { folder, data: data.to_owned() }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    /// Writes the file as it is meant to be.
    pub fn write(&self) {
        std::fs::write(self.path(), &self.data).unwrap();
    }

    /// Replaces it by another one, cuts it, or writes to it.
    pub fn change(&self, number: usize) {
        let writable = || std::fs::File::options().write(true).open(self.path()).unwrap();
        match number {
            0 => {
                let other = self.folder.path().join("other.gguf");
                std::fs::write(&other, &self.data).unwrap();
                std::fs::rename(other, self.path()).unwrap();
            }
            1 => writable().set_len(20_000).unwrap(),
            _ => {
                // Times of modification have the grain of the kernel's clock.
                std::thread::sleep(Duration::from_millis(20));
                io::Write::write_all(&mut writable(), b"other bytes").unwrap();
            }
        }
    }
}

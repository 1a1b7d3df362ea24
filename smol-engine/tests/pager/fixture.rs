//! Models to page from, and files that fail in all the ways that files do.

use smol_engine::expert::{ExpertLayer, ExpertTensor, Packer, Pager, PagerConfig};
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
        Arc::new(Self {
            data: (0..len).map(|_| random.next() as u8).collect(),
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
    for _ in 0..5000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("it did not happen within 10 seconds");
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

/// What a model to page from looks like.
#[derive(Clone, Copy)]
pub struct Shape {
    pub layers: u32,
    pub experts: u32,
    pub used: u32,
    pub packed: bool,
}

/// Bytes of the gate, up and down tensor of an expert: on no boundary of anything.
pub const SIZES: [usize; 3] = [5000, 5000, 7300];

impl Shape {
    pub const SMALL: Self = Self { layers: 3, experts: 8, used: 2, packed: false };

    /// Returns the layers and the bytes of a file that they lie in.
    pub fn layers(self) -> (Vec<ExpertLayer>, usize) {
        let mut offset = 1234_u64;
        let mut layers = Vec::new();
        for block in 0..self.layers {
            let mut tensors = Vec::new();
            for (number, size) in SIZES.into_iter().enumerate() {
                let packed = self.packed && number != 1;
                tensors.push(ExpertTensor {
                    name: format!("blk.{block}.{number}"),
                    file: 0,
                    offset,
                    stride: size as u64,
                    bytes: if packed { size + 96 } else { size },
                    packer: packed.then(|| Arc::new(Reversed) as Arc<dyn Packer>),
                });
                offset += size as u64 * u64::from(self.experts) + 160;
            }
            layers.push(ExpertLayer { block, experts: self.experts, used: self.used, tensors });
        }
        (layers, offset as usize)
    }

    /// Returns the least budget.
    pub fn floor(self, config: &PagerConfig, alignment: usize) -> u64 {
        let (layers, len) = self.layers();
        let files: [Arc<dyn ReadAt>; 1] = [Fake::new(len, alignment)];
        Pager::least_budget(&files, &layers, config).unwrap()
    }

    /// Makes a pager of a file in memory.
    pub fn pager(self, config: &PagerConfig, alignment: usize) -> (Arc<Pager>, Arc<Fake>) {
        let (layers, len) = self.layers();
        let file = Fake::new(len, alignment);
        (Pager::new(vec![Arc::clone(&file) as Arc<dyn ReadAt>], layers, config).unwrap(), file)
    }
}

/// Waits for an item and checks its bytes. `false`: the run has failed.
pub fn check(
    pager: &Pager,
    data: &[u8],
    (run, layer, tensor): (usize, usize, usize),
    index: usize,
    expert: u32,
) -> bool {
    let Some(weights) = pager.wait(run, index) else { return false };
    let tensor = &pager.layers()[layer].tensors[tensor];
    // SAFETY: wait() has returned the address of so many bytes, and done() is called later.
    let weights = unsafe { std::slice::from_raw_parts(weights, tensor.bytes) };
    let start = (tensor.offset + u64::from(expert) * tensor.stride) as usize;
    let plain = &data[start..start + tensor.stride as usize];
    match &tensor.packer {
        None => assert!(weights == plain, "expert {expert} of {}", tensor.name),
        Some(packer) => {
            let mut packed = vec![0; tensor.bytes];
            packer.pack(plain, &mut packed);
            assert!(weights == packed, "expert {expert} of {}, packed", tensor.name);
        }
    }
    true
}

/// Computes one layer with one thread. `false`: the run has failed.
pub fn layer(pager: &Pager, data: &[u8], run: usize, layer: usize, experts: &[u32]) -> bool {
    for tensor in 0..pager.layers()[layer].tensors.len() {
        pager.begin(run, layer, tensor, experts, &vec![1; experts.len()]);
        for (index, &expert) in experts.iter().enumerate() {
            if !check(pager, data, (run, layer, tensor), index, expert) {
                return false;
            }
            pager.done(run, index);
        }
    }
    true
}

//! Reads weights in the order in which they are used, ahead of the computation.

use super::config::{StreamConfig, StreamTensor};
use super::plan::{Plan, READS};
use super::state::{Begun, Job, Loaded, Poll, State};
use super::statistics::ratio;
use super::{Error, Result, Stop, StreamStatistics, rows};
use crate::io::arena::Buffers;
use crate::io::readers::{self, Readers, WatchedFile};
use crate::io::zones::{Zone, Zones};
use crate::io::{self, DirectFile, Mode, ReadAt};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// How often a thread that waits asks whether its run is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// Reads weights in the order in which they are used, ahead of the computation.
///
/// The stream owns one *ring* of memory. Each use of a tensor has a place in it, and is read
/// there by threads of the stream, past the page cache, in pieces of up to 1 MiB and in the form
/// that kernels read. A place is free again when the use is over; what is used later is read
/// then. After what a graph uses comes what the next one is likely to: what came after it the last
/// time, or else the same, from the start.
/// A read that comes late costs time, never correctness.
///
/// A *run* is one computation of a graph, named by a number of the caller's choice, by several
/// threads:
///
/// 1. [`begin`](Self::begin) with the tensors in the order of use; it returns where each will be.
/// 2. For each use: [`wait`](Self::wait) by each thread that computes with it.
/// 3. [`end`](Self::end), which tells whether all went well.
///
/// Several contexts may share a stream; only one run at a time has begun, the others wait in
/// [`begin`](Self::begin) for their turn.
///
/// ```
/// use smol_engine::stream::{Stream, StreamConfig, StreamTensor};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let file = tempfile::NamedTempFile::new()?;
/// # let path = file.path();
/// // Three tensors of 1000 bytes.
/// std::fs::write(path, (0..3000).map(|i| (i / 1000) as u8).collect::<Vec<_>>())?;
/// let tensor = |number: u64| StreamTensor {
///     name: format!("blk.{number}.ffn_up.weight"),
///     file: 0,
///     offset: number * 1000,
///     file_bytes: 1000,
///     bytes: 1000,
///     row_bytes: 100,
///     rows: 10,
///     packed: None,
///     packer: None,
///     group_rows: 0,
/// };
/// let tensors = (0..3).map(tensor).collect();
/// let stream = Stream::open([path], tensors, &StreamConfig::default())?;
///
/// let run = 1;
/// let weights = stream.begin(run, &[0, 1, 2]).expect("no other run is active");
/// for use_ in 0..3 {
///     assert!(stream.wait(run, use_));
///     // A kernel computes with the 1000 bytes at `weights[use_]`.
/// }
/// stream.end(run)?;
/// assert_eq!(stream.statistics().passes, 1);
///
/// let mut row = [0; 100];
/// stream.rows(2, &[7], &mut row)?;
/// assert_eq!(row, [2; 100]);
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    shared: Arc<Shared>,
    readers: Readers,
}

/// What the stream's callers and its readers share.
struct Shared {
    plan: Arc<Plan>,
    tensors: Vec<StreamTensor>,
    files: Vec<WatchedFile>,
    verify: bool,
    locked: Mutex<Locked>,
    /// Something can be read.
    work: Condvar,
    /// Weights have come, or a run is over.
    came: Condvar,
}

struct Locked {
    state: State<Zone>,
    /// `None`: there is nothing that comes as a whole, or the system gave no memory.
    ring: Option<Arc<Zones>>,
    /// Length that the ring is to have as soon as nobody uses it.
    wanted: u64,
    /// Bytes that the stream may take.
    zone: u64,
    stops: Vec<(usize, Stop)>,
    /// Readers that wait for work.
    idle: usize,
    /// Threads that wait for weights or for their turn.
    waiting: usize,
    /// Whether readers are to return.
    over: bool,
}

impl Stream {
    /// Opens files as [`StreamConfig::io`] says and makes a stream of the tensors in them.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if a file cannot be opened.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        tensors: Vec<StreamTensor>,
        config: &StreamConfig,
    ) -> Result<Arc<Self>> {
        Self::new(DirectFile::open_all(paths, config.io)?, tensors, config)
    }

    /// Makes a stream of the tensors in open files. Nothing is read yet.
    ///
    /// # Errors
    /// If the tensors make no sense or reach past the end of a file, the zone does not hold the
    /// largest of them ([`Error::Zone`], with both numbers), or the system gives no memory or no
    /// thread.
    pub fn new(
        files: Vec<Arc<dyn ReadAt>>,
        tensors: Vec<StreamTensor>,
        config: &StreamConfig,
    ) -> Result<Arc<Self>> {
        Self::with_reads(files, tensors, config, READS)
    }

    /// Makes a stream whose reads have one of these lengths, the largest first.
    pub(super) fn with_reads(
        files: Vec<Arc<dyn ReadAt>>,
        tensors: Vec<StreamTensor>,
        config: &StreamConfig,
        reads: &[usize],
    ) -> Result<Arc<Self>> {
        let plan = Arc::new(Plan::new(&files, &tensors, config, reads)?);
        let failed = |(room, source)| Error::Memory { bytes: room as u64, source };
        let rooms = (plan.bounce_room, plan.second_room);
        let buffers = Buffers::of_readers(plan.readers, rooms, plan.alignment).map_err(failed)?;
        let hash: fn(&Zone) -> u64 = |zone| xxh3_64(zone);
        let state = State::new(Arc::clone(&plan), 0, config.verify.then_some(hash));
        let mut locked = Locked {
            state,
            ring: None,
            wanted: plan.ring(config.zone),
            zone: config.zone,
            stops: Vec::new(),
            idle: 0,
            waiting: 0,
            over: false,
        };
        locked.settle(&plan)?;
        let shared = Arc::new(Shared {
            plan,
            tensors,
            files: files.into_iter().map(WatchedFile::new).collect(),
            verify: config.verify,
            locked: Mutex::new(locked),
            work: Condvar::new(),
            came: Condvar::new(),
        });
        let bodies = buffers.into_iter().map(|mut buffers| {
            let shared = Arc::clone(&shared);
            move || shared.read(&mut buffers)
        });
        let (started, readers) = Readers::spawn(bodies);
        // From here on dropping the stream ends the threads.
        let stream = Self { shared, readers };
        started.map_err(Error::Thread)?;
        Ok(Arc::new(stream))
    }

    /// Returns the least zone for these tensors and options, in bytes: that of the largest tensor
    /// and of the readers' buffers. Tensors that [`new`](Self::new) refuses need more than there
    /// is.
    pub fn floor(
        files: &[Arc<dyn ReadAt>],
        tensors: &[StreamTensor],
        config: &StreamConfig,
    ) -> u64 {
        Plan::least(files, tensors, config, READS)
    }

    /// Returns the tensors, as they were given.
    pub fn tensors(&self) -> &[StreamTensor] {
        &self.shared.tensors
    }

    /// Begins a graph that uses tensors in this order, and returns where each use finds its
    /// tensor: [`StreamTensor::bytes`] bytes, once [`wait`](Self::wait) has returned `true`, and
    /// until the use is over.
    ///
    /// Packed weights start at a multiple of 64 bytes, others at the same remainder of 64 as in
    /// the file where that is read past the page cache.
    ///
    /// Waits while another run has begun and not ended. Ends the run's graph before, if it did
    /// not end.
    ///
    /// Returns `None` if the run has failed or was stopped, which [`end`](Self::end) tells.
    pub fn begin(&self, run: usize, order: &[u32]) -> Option<Vec<*const u8>> {
        let shared = &*self.shared;
        let mut locked = shared.lock();
        locked.state.queue(run);
        let mut locked = shared.block(locked, run, |state| state.is_due(run).then_some(())).0;
        if !locked.state.is_active()
            && let Err(error) = locked.settle(&shared.plan)
        {
            locked.state.fail(run, error);
        }
        let begun = locked.state.begin(run, order);
        shared.wake(&mut locked);
        let Begun::Places(places) = begun else { return None };
        let address = |(place, &tensor): (u64, &u32)| {
            let skew = shared.plan.tensors[tensor as usize].skew;
            let ring = locked.ring.as_ref()?;
            Some(ring.address(place as usize + skew))
        };
        places.into_iter().zip(order).map(address).collect()
    }

    /// Waits until a use, by its index in [`begin`](Self::begin)'s order, can be computed.
    ///
    /// All uses before it must be over for all threads of the run: their places are read into
    /// from now on.
    ///
    /// Returns `false` if the run has failed or was stopped, which [`end`](Self::end) tells.
    pub fn wait(&self, run: usize, index: usize) -> bool {
        let shared = &*self.shared;
        let mut locked = shared.lock();
        locked.state.reach(run, index);
        let mut poll = locked.state.poll(run, index);
        shared.wake(&mut locked);
        if poll == Poll::Pending {
            locked.state.start_waiting(index);
            (locked, poll) = shared.block(locked, run, |state| {
                Some(state.poll(run, index)).filter(|poll| *poll != Poll::Pending)
            });
            locked.state.stop_waiting(run);
        }
        poll == Poll::Ready
    }

    /// Copies rows of a tensor as they are in the file, one after the other:
    /// [`StreamTensor::row_bytes`] bytes each. Reads them in the calling thread, needs no run and
    /// waits for none.
    ///
    /// # Errors
    /// If there is no such tensor or row, `out` is not as long as the rows, or a read fails.
    pub fn rows(&self, tensor: u32, ids: &[u32], out: &mut [u8]) -> Result<()> {
        let shared = &*self.shared;
        let Some(tensor) = shared.tensors.get(tensor as usize) else {
            let count = shared.tensors.len();
            return Err(Error::Request(format!("there is no streamed tensor {tensor} of {count}")));
        };
        let bytes = rows::read(tensor, &shared.files[tensor.file], ids, out)?;
        shared.lock().state.counters.bytes_read += bytes;
        Ok(())
    }

    /// Ends a run. No thread of it may compute any more.
    ///
    /// Checks that the files that were read from are still those that were opened.
    ///
    /// # Errors
    /// If a read that the run needed has failed, or it was stopped while it waited
    /// ([`Error::Stopped`]): what it has computed is worthless.
    pub fn end(&self, run: usize) -> Result<()> {
        let shared = &*self.shared;
        let checked = shared.files.iter().try_for_each(WatchedFile::check);
        let mut locked = shared.lock();
        let mut failure = locked.state.end(run);
        if let Err(error) = checked {
            let error = Error::Io(error);
            locked.state.break_all(&error);
            failure.get_or_insert(error);
        }
        if !locked.state.is_active() {
            // The next run will be told if there is no memory.
            let _ = locked.settle(&shared.plan);
        }
        shared.wake(&mut locked);
        failure.map_or(Ok(()), Err)
    }

    /// Sets what tells a run to stop: asked about every 20 ms by each of its threads that waits.
    ///
    /// It stays from one computation to the next until it is taken away by `None`.
    pub fn set_stop(&self, run: usize, stop: Option<Stop>) {
        let mut locked = self.shared.lock();
        locked.stops.retain(|(other, _)| *other != run);
        locked.stops.extend(stop.map(|stop| (run, stop)));
        // Those that wait without a limit ask from now on.
        self.shared.came.notify_all();
    }

    /// Changes the bytes that the stream may hold, and returns those that it holds now.
    ///
    /// While a run computes nothing changes; its end does it. Weights that were read ahead are
    /// read again. A zone below [`floor`](Self::floor) is that.
    pub fn set_zone(&self, bytes: u64) -> u64 {
        let mut locked = self.shared.lock();
        locked.zone = bytes;
        let ring = self.shared.plan.ring(bytes);
        self.resize(locked, ring)
    }

    /// Adapts to the memory that the machine has left, and returns the bytes that the stream
    /// holds now.
    ///
    /// With fewer than `reserve` bytes `available` it gives back what is missing, as far as it
    /// can. With much more than that it takes back half of the surplus, up to its zone. While a
    /// run computes nothing changes; its end does it.
    pub fn relieve(&self, available: u64, reserve: u64) -> u64 {
        let plan = &self.shared.plan;
        let locked = self.shared.lock();
        let held = plan.bytes(locked.state.capacity());
        let surplus = available.saturating_sub(reserve);
        let (now, most) = (locked.state.capacity(), plan.ring(locked.zone));
        let ring = if available < reserve {
            plan.ring(held.saturating_sub(reserve - available)).min(now)
        } else if now < most && surplus > reserve / 4 {
            let ring = plan.ring(held.saturating_add(surplus / 2)).min(most);
            // What was read ahead is lost by it: not for a little.
            if ring < most && ring < now + now / 8 { now } else { ring }
        } else {
            locked.wanted
        };
        self.resize(locked, ring)
    }

    /// Returns the bytes that the stream holds: weights and buffers.
    pub fn held(&self) -> u64 {
        self.shared.plan.bytes(self.shared.lock().state.capacity())
    }

    /// Returns what has been done so far.
    pub fn statistics(&self) -> StreamStatistics {
        let plan = &self.shared.plan;
        let locked = self.shared.lock();
        let counters = &locked.state.counters;
        let modes = self.shared.files.iter().map(|file| file.file().mode());
        let mut buffered = modes.filter_map(|mode| match mode {
            Mode::Direct => None,
            Mode::Buffered { reason } => Some(format!("buffered: {reason}")),
        });
        StreamStatistics {
            passes: counters.passes,
            mb_per_pass: ratio(counters.bytes_read as f64 / 1e6, counters.passes),
            wait_ms_per_pass: ratio(counters.waited_ns as f64 / 1e6, counters.passes),
            late: counters.late,
            wasted_mb: counters.wasted as f64 / 1e6,
            zone_mb: plan.bytes(locked.state.capacity()) as f64 / 1e6,
            readers: plan.readers,
            bytes_read: counters.bytes_read,
            io_mode: buffered.next().unwrap_or_else(|| "direct".to_owned()),
        }
    }

    /// Gives the ring another length, now or as soon as no run is active.
    fn resize(&self, mut locked: MutexGuard<'_, Locked>, ring: u64) -> u64 {
        let plan = &self.shared.plan;
        locked.wanted = ring;
        if !locked.state.is_active() {
            // What the system does not give is missing in the number; the next run tries again.
            let _ = locked.settle(plan);
        }
        self.shared.wake(&mut locked);
        plan.bytes(locked.state.capacity())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.work.notify_all();
        self.readers.join();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("tensors", &self.shared.tensors.len())
            .field("readers", &self.shared.plan.readers)
            .finish_non_exhaustive()
    }
}

impl Locked {
    /// Gives the ring the length that it is to have. No run may be active.
    fn settle(&mut self, plan: &Plan) -> Result<()> {
        if self.state.capacity() == self.wanted {
            return Ok(());
        }
        // The old memory goes first, or both would be held for a moment. A read that goes on
        // keeps it until then.
        self.state.set_capacity(0);
        self.ring = None;
        let bytes = plan.bytes(self.wanted);
        let len = usize::try_from(self.wanted).unwrap_or(usize::MAX);
        let ring = Zones::new(len, plan.alignment);
        self.ring = Some(ring.map_err(|source| Error::Memory { bytes, source })?);
        self.state.set_capacity(self.wanted);
        Ok(())
    }

    fn stop(&self, run: usize) -> Option<Stop> {
        let found = self.stops.iter().find(|(other, _)| *other == run);
        found.map(|(_, stop)| Arc::clone(stop))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        // A panic in a transition is a bug that its thread reports; the others go on.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whom a change of the state concerns.
    fn wake(&self, locked: &mut Locked) {
        // One reader: it wakes the next one when it has taken its piece and there are others.
        if locked.idle > 0 && locked.state.has_job() {
            self.work.notify_one();
        }
        if locked.state.take_wake() && locked.waiting > 0 {
            self.came.notify_all();
        }
    }

    /// Waits until `look` finds something; what tells the run to stop may make it.
    fn block<'a, T>(
        &'a self,
        mut locked: MutexGuard<'a, Locked>,
        run: usize,
        look: impl Fn(&State<Zone>) -> Option<T>,
    ) -> (MutexGuard<'a, Locked>, T) {
        let mut asked: Option<Instant> = None;
        loop {
            self.wake(&mut locked);
            if let Some(found) = look(&locked.state) {
                return (locked, found);
            }
            let Some(stop) = locked.stop(run) else {
                locked.waiting += 1;
                locked = self.came.wait(locked).unwrap_or_else(PoisonError::into_inner);
                locked.waiting -= 1;
                continue;
            };
            let left =
                asked.map_or(Duration::ZERO, |asked| STOP_INTERVAL.saturating_sub(asked.elapsed()));
            if left.is_zero() {
                // Whatever it does, it does not do it under the lock.
                drop(locked);
                let stopped = stop();
                asked = Some(Instant::now());
                locked = self.lock();
                if stopped && look(&locked.state).is_none() {
                    locked.state.fail(run, Error::Stopped);
                }
                continue;
            }
            locked.waiting += 1;
            let woken = self.came.wait_timeout(locked, left);
            locked = woken.unwrap_or_else(PoisonError::into_inner).0;
            locked.waiting -= 1;
        }
    }

    /// Reads what is needed until the stream is dropped.
    fn read(&self, buffers: &mut Buffers) {
        let mut locked = self.lock();
        while !locked.over {
            let Some(job) = locked.state.next_job() else {
                locked.idle += 1;
                locked = self.work.wait(locked).unwrap_or_else(PoisonError::into_inner);
                locked.idle -= 1;
                continue;
            };
            let range = job.range.start as usize..job.range.end as usize;
            let zone = locked.ring.as_ref().and_then(|ring| ring.take(range));
            self.wake(&mut locked);
            drop(locked);
            let name = &self.tensors[job.tensor as usize].name;
            let result = match zone {
                Some(zone) => {
                    let load = AssertUnwindSafe(|| self.load(&job, zone, buffers));
                    let panicked = || Error::Panic { tensor: name.clone() };
                    catch_unwind(load).unwrap_or_else(|_| Err(panicked()))
                }
                None => Err(Error::Request(format!("the place of `{name}` is in use"))),
            };
            locked = self.lock();
            locked.state.finish(&job, result);
            self.wake(&mut locked);
        }
    }

    /// Reads a piece of a tensor into a part of the ring.
    fn load(&self, job: &Job, mut zone: Zone, buffers: &mut Buffers) -> Result<Loaded<Zone>> {
        let tensor = &self.tensors[job.tensor as usize];
        let piece = &self.plan.tensors[job.tensor as usize].pieces[job.piece];
        let file = &self.files[tensor.source().0.file];
        let (offset, len) = (piece.offset, piece.len);
        let skew = readers::skew(file.file(), offset);
        let (plain, packed) = match (tensor.packs(), &mut buffers.bounce) {
            (Some(packer), Some(bounce)) => (&mut bounce[..], Some((packer, &mut zone))),
            _ => (&mut zone[..], None),
        };
        let bytes = file.read(offset, len, plain)?;
        let plain = &plain[skew..skew + len];
        if let (true, Some(second)) = (self.verify, &mut buffers.second) {
            file.read(offset, len, second)?;
            if xxh3_64(plain) != xxh3_64(&second[skew..skew + len]) {
                file.check()?;
                let path = file.file().path().to_owned();
                return Err(io::Error::Corrupt { path, offset, len }.into());
            }
        }
        if let Some((packer, zone)) = packed {
            packer.pack(plain, zone);
        }
        let hash = if self.verify { xxh3_64(&zone) } else { 0 };
        Ok(Loaded { memory: zone, hash, bytes })
    }
}

#[cfg(test)]
mod tests;

//! Keeps the experts that are used in memory, and reads those that are not there.

use super::config::{ExpertLayer, ExpertTensor, PagerConfig};
use super::plan::Plan;
use super::prefetch::{PrefetchCounts, WarmExpert};
use super::residency::Residency;
use super::run::Stop;
use super::state::{Job, Poll, State};
use super::watch::{ReadDone, ReadWatch};
use super::{Error, PagerStatistics, Result};
use crate::io::arena::{self, Buffers, Region};
use crate::io::readers::{self, Readers, WatchedFile};
use crate::io::{self, DirectFile, Mode, ReadAt};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// How often a thread that waits asks whether its run is to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);

/// Keeps the experts that are used in memory, and reads those that are not there.
///
/// A *pool* of slots holds experts in the form that kernels read. What a token's router chooses
/// and the pool lacks is read by threads of the pager, past the page cache, into the slots of
/// experts that can best be spared ([`Policy`](super::Policy)). A batch that needs more experts
/// than there are slots gets the rest through a *ring* of small buffers, one after the other.
///
/// A *run* is one computation of a graph, named by a number of the caller's choice. Several may
/// go on at once, each by several threads:
///
/// 1. [`want`](Self::want), as soon as a layer's experts are chosen: reads start.
/// 2. For each tensor of the layer: [`begin`](Self::begin) by one thread; then, by all threads
///    and for each expert, [`wait`](Self::wait), and [`done`](Self::done) by one of them when
///    all have computed with it.
/// 3. [`end`](Self::end), which tells whether all went well.
///
/// From `want` on a run holds its layer's experts: nothing takes their slots until all tensors
/// of the layer are computed, another layer is begun, or the run ends.
///
/// Nothing here can lock up, as long as no run keeps another one from going on with the experts
/// that it was given.
///
/// ```
/// use smol_engine::expert::{ExpertLayer, ExpertTensor, Pager, PagerConfig};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let file = tempfile::NamedTempFile::new()?;
/// # let path = file.path();
/// // Eight experts of 1000 bytes.
/// std::fs::write(path, (0..8000).map(|i| (i / 1000) as u8).collect::<Vec<_>>())?;
/// let tensor = ExpertTensor {
///     name: "blk.0.ffn_up_exps.weight".to_owned(),
///     file: 0,
///     offset: 0,
///     stride: 1000,
///     bytes: 1000,
///     packer: None,
/// };
/// let layer = ExpertLayer { block: 0, experts: 8, used: 2, tensors: vec![tensor] };
/// let pager = Pager::open([path], vec![layer], &PagerConfig::default())?;
///
/// let run = 1;
/// pager.begin(run, 0, 0, &[3, 5], &[1, 1]);
/// for index in 0..2 {
///     let weights = pager.wait(run, index).expect("no read has failed");
///     // A kernel computes with the 1000 bytes at `weights`.
///     pager.done(run, index);
/// }
/// pager.end(run)?;
/// assert!(pager.is_resident(0, 3) && !pager.is_resident(0, 4));
/// assert_eq!(pager.statistics().misses, 2);
/// # Ok(())
/// # }
/// ```
pub struct Pager {
    shared: Arc<Shared>,
    readers: Readers,
    budget: Mutex<Budget>,
}

/// What the pager's callers and its readers share.
struct Shared {
    plan: Arc<Plan>,
    layers: Vec<ExpertLayer>,
    files: Vec<WatchedFile>,
    residency: Arc<Residency>,
    verify: bool,
    locked: Mutex<Locked>,
    /// A read waits for a thread.
    work: Condvar,
    /// An expert has come, or a run is over.
    came: Condvar,
    watch: ReadWatch,
}

struct Locked {
    state: State<Region>,
    /// Readers that wait for work.
    idle: usize,
    /// Threads that wait for an expert.
    waiting: usize,
    /// Whether readers are to return.
    over: bool,
}

/// Bytes that the pager may hold.
struct Budget {
    /// As it was asked for.
    asked: u64,
    /// As pressure leaves it.
    now: u64,
}

impl Pager {
    /// Opens files as [`PagerConfig::io`] says and makes a pager of the experts in them.
    ///
    /// # Errors
    /// As [`new`](Self::new), or if a file cannot be opened.
    pub fn open<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        layers: Vec<ExpertLayer>,
        config: &PagerConfig,
    ) -> Result<Arc<Self>> {
        Self::new(DirectFile::open_all(paths, config.io)?, layers, config)
    }

    /// Makes a pager of the experts in open files. Nothing is read yet.
    ///
    /// # Errors
    /// If the layers make no sense or reach past the end of a file, the budget is less than one
    /// token needs ([`Error::Budget`], with both numbers), or the system gives no memory or no
    /// thread.
    pub fn new(
        files: Vec<Arc<dyn ReadAt>>,
        layers: Vec<ExpertLayer>,
        config: &PagerConfig,
    ) -> Result<Arc<Self>> {
        let plan = Arc::new(Plan::new(&files, &layers, config)?);
        let failed = |(room, source)| Error::Memory { bytes: room as u64, source };
        let ring = (0..plan.ring).map(|_| arena::room(plan.ring_room, plan.alignment));
        let ring = ring.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let rooms = (plan.bounce_room, plan.second_room);
        let buffers = Buffers::of_readers(plan.readers, rooms, plan.alignment).map_err(failed)?;

        let residency = Arc::new(Residency::new(layers.iter().map(|layer| layer.experts).sum()));
        let ring = ring.into_iter().flatten();
        let state = State::new(Arc::clone(&plan), config.policy, &residency, ring);
        let shared = Arc::new(Shared {
            plan,
            layers,
            files: files.into_iter().map(WatchedFile::new).collect(),
            residency,
            verify: config.verify,
            locked: Mutex::new(Locked { state, idle: 0, waiting: 0, over: false }),
            work: Condvar::new(),
            came: Condvar::new(),
            watch: ReadWatch::default(),
        });
        let bodies = buffers.into_iter().map(|mut buffers| {
            let shared = Arc::clone(&shared);
            move || shared.read(&mut buffers)
        });
        let (started, readers) = Readers::spawn(bodies);
        let budget = Mutex::new(Budget { asked: config.budget, now: config.budget });
        // From here on dropping the pager ends the threads.
        let pager = Self { shared, readers, budget };
        started.map_err(Error::Thread)?;
        pager.resize(config.budget)?;
        Ok(Arc::new(pager))
    }

    /// Returns the layers, as they were given.
    pub fn layers(&self) -> &[ExpertLayer] {
        &self.shared.layers
    }

    /// Lets `watch` be called after each read that came to something, by the thread that read:
    /// it has to be quick. Returns whether there was nobody who watched; the first one stays.
    pub fn watch_reads(&self, watch: impl Fn(&ReadDone) + Send + Sync + 'static) -> bool {
        self.shared.watch.set(watch)
    }

    /// Starts to read those of a layer's experts that the router chose for `run`, and holds
    /// them.
    ///
    /// No thread of the run may compute with an expert of another layer any more. The experts
    /// in front are read first. Nothing waits here. A layer or an expert that does not exist
    /// makes the run fail.
    pub fn want(&self, run: usize, layer: usize, experts: &[u32]) {
        self.shared.with(|state| state.want(run, layer, experts));
    }

    /// Reads experts ahead that a layer is likely to choose, the likeliest first.
    ///
    /// Such reads wait for all that are needed, and keep at most half of the threads busy. They
    /// take free slots and those of at most half of the pool's experts, never one that a run
    /// holds, and are given up when the layer is begun or predicted anew without those experts.
    /// What does not exist is ignored.
    pub fn predict(&self, layer: usize, experts: &[u32]) {
        self.shared.with(|state| state.predict(layer, experts));
    }

    /// Reads experts into slots that are free, the first of the list first, when there is nothing
    /// else to read; for the start ([`warm_list`](super::prefetch::warm_list)).
    ///
    /// What finds no free slot in its pool is left out, as is what does not exist. Nothing waits
    /// here. These reads count neither as predictions nor as misses.
    pub fn warm(&self, list: &[WarmExpert]) {
        self.shared.with(|state| state.warm(list.iter().map(|warm| (warm.layer, warm.expert))));
    }

    /// Begins a product with one tensor of a layer's experts for `run`; `uses` are the rows of
    /// the batch that each expert computes.
    ///
    /// Ends the run's product before, if some of it is not done. Nothing waits here: what is not
    /// in the pool is being read when this returns. A layer, tensor or expert that does not
    /// exist makes the run fail.
    pub fn begin(&self, run: usize, layer: usize, tensor: usize, experts: &[u32], uses: &[u32]) {
        self.shared.with(|state| state.begin(run, layer, tensor, experts, uses));
    }

    /// Writes the indexes of [`begin`](Self::begin)'s experts in the order in which they are
    /// best waited for: those that are there, then those that come into the pool, then the
    /// others.
    ///
    /// `order` is as long as `begin`'s experts. All threads of a run must go through them in
    /// one order: this one, or that of `begin`.
    pub fn order(&self, run: usize, order: &mut [u32]) {
        self.shared.lock().state.order(run, order);
    }

    /// Waits for an expert, by its index in [`begin`](Self::begin)'s, and returns its weights:
    /// [`ExpertTensor::bytes`] bytes that stay where they are until [`done`](Self::done), or the
    /// pager is dropped.
    ///
    /// Packed weights start at a multiple of 64 bytes, others at the same remainder of 64 as in
    /// the file where that is read past the page cache.
    ///
    /// Returns `None` if the run has failed or was stopped, which [`end`](Self::end) tells.
    pub fn wait(&self, run: usize, index: usize) -> Option<*const u8> {
        let shared = &*self.shared;
        let mut locked = shared.lock();
        if let Some(outcome) = shared.look(&locked, run, index) {
            return outcome;
        }
        locked.state.start_waiting(run);
        let mut asked: Option<Instant> = None;
        let outcome = loop {
            if let Some(outcome) = shared.look(&locked, run, index) {
                break outcome;
            }
            let stop = locked.state.known_run(run).and_then(|run| run.stop.clone());
            let Some(stop) = stop else {
                locked.waiting += 1;
                locked = shared.came.wait(locked).unwrap_or_else(PoisonError::into_inner);
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
                if stopped {
                    shared.with(|state| state.stop(run));
                }
                locked = shared.lock();
                continue;
            }
            locked.waiting += 1;
            let woken = shared.came.wait_timeout(locked, left);
            locked = woken.unwrap_or_else(PoisonError::into_inner).0;
            locked.waiting -= 1;
        };
        locked.state.stop_waiting(run);
        outcome
    }

    /// Lets go of an expert's weights, by its index in [`begin`](Self::begin)'s. All threads of
    /// the run must be through with them.
    pub fn done(&self, run: usize, index: usize) {
        self.shared.with(|state| state.done(run, index));
    }

    /// Ends a run and lets go of all that it holds. No thread of the run may compute any more.
    ///
    /// Checks that the files that were read from are still those that were opened.
    ///
    /// # Errors
    /// If a read that the run waited for has failed, or it was stopped while it waited
    /// ([`Error::Stopped`]): what it has computed is worthless.
    pub fn end(&self, run: usize) -> Result<()> {
        let checked = self.shared.files.iter().try_for_each(WatchedFile::check);
        let failure = self.shared.with(|state| {
            let failure = state.end(run);
            if let Err(error) = checked {
                let error = Error::Io(error);
                state.break_all(&error);
                return failure.or(Some(error));
            }
            failure
        });
        failure.map_or(Ok(()), Err)
    }

    /// Sets what tells a run to stop: asked about every 20 ms by each of its threads that waits.
    ///
    /// It stays from one computation to the next until it is taken away by `None`.
    pub fn set_stop(&self, run: usize, stop: Option<Stop>) {
        self.shared.with(|state| state.set_stop(run, stop));
    }

    /// Returns whether all of an expert is in the pool. Takes no lock.
    pub fn is_resident(&self, layer: usize, expert: u32) -> bool {
        let layer = self.shared.plan.layers.get(layer);
        layer.is_some_and(|layer| {
            expert < layer.experts && self.shared.residency.get(layer.first + expert)
        })
    }

    /// Returns the least bytes that the pager can work with.
    pub fn floor(&self) -> u64 {
        self.shared.plan.floor()
    }

    /// Changes the bytes that the pager may hold, and returns those that it holds now.
    ///
    /// Memory that is too much goes back to the system at once, except for slots that are read
    /// into or held, which follow as soon as they can. A budget below [`floor`](Self::floor) is
    /// that.
    pub fn set_budget(&self, bytes: u64) -> u64 {
        {
            let mut budget = self.lock_budget();
            budget.asked = bytes;
            budget.now = bytes;
        }
        // What the system does not give is missing in the number.
        let _ = self.resize(bytes);
        self.held()
    }

    /// Adapts to the memory that the machine has left, and returns the bytes that the pager
    /// holds now.
    ///
    /// With fewer than `reserve` bytes `available` it gives back what is missing, down to its
    /// [`floor`](Self::floor). With much more than that it takes back half of the surplus, up to
    /// its budget.
    pub fn relieve(&self, available: u64, reserve: u64) -> u64 {
        let held = self.held();
        let target = {
            let mut budget = self.lock_budget();
            let surplus = available.saturating_sub(reserve);
            let target = if available < reserve {
                held.saturating_sub(reserve - available)
            } else if held < budget.asked && surplus > reserve / 4 {
                held.saturating_add(surplus / 2).min(budget.asked)
            } else {
                return held;
            };
            budget.now = target;
            target
        };
        let _ = self.resize(target);
        self.held()
    }

    /// Returns the bytes that the pager holds: slots and buffers.
    pub fn held(&self) -> u64 {
        let locked = self.shared.lock();
        self.shared.plan.bytes(locked.state.pools.iter().map(|pool| pool.committed()))
    }

    /// Returns what has been done so far.
    pub fn statistics(&self) -> PagerStatistics {
        let plan = &self.shared.plan;
        let locked = self.shared.lock();
        let state = &locked.state;
        let counters = &state.counters;
        let tokens = |(chosen, layer): (&u64, &super::plan::LayerPlan)| {
            chosen.div_ceil(u64::from(layer.used))
        };
        let tokens = counters.chosen.iter().zip(&plan.layers).map(tokens).max().unwrap_or(0);
        let per = |sum: f64, count: u64| if count == 0 { 0.0 } else { sum / count as f64 };
        PagerStatistics {
            hits: counters.hits,
            misses: counters.misses,
            miss_rate: per(counters.misses as f64, counters.hits + counters.misses),
            tokens,
            mb_per_token: per(counters.bytes_read as f64 / 1e6, tokens),
            wait_ms_per_token: per(counters.waited_ns as f64 / 1e6, tokens),
            useful: counters.useful,
            late: counters.late,
            wasted: state.pools.iter().map(|pool| pool.wasted).sum(),
            streamed: counters.streamed,
            bytes_read: counters.bytes_read,
            slots: state.pools.iter().map(|pool| pool.committed() as u64).sum(),
            pool_mb: plan.bytes(state.pools.iter().map(|pool| pool.committed())) as f64 / 1e6,
            readers: plan.readers,
            io_mode: self.io_mode(),
        }
    }

    /// Returns what has come of predictions, and what reads took.
    pub(super) fn counts(&self) -> PrefetchCounts {
        let locked = self.shared.lock();
        let (state, counters) = (&locked.state, &locked.state.counters);
        PrefetchCounts {
            useful: counters.useful,
            late: counters.late,
            wasted: state.pools.iter().map(|pool| pool.wasted).sum(),
            reads: counters.reads,
            read_time: Duration::from_nanos(counters.read_ns),
            behind: Duration::from_nanos(counters.behind_ns),
            late_wait: Duration::from_nanos(counters.late_ns),
            wait: Duration::from_nanos(state.waited_ns()),
        }
    }

    fn io_mode(&self) -> String {
        let modes = self.shared.files.iter().map(|file| file.file().mode());
        let buffered = modes.filter_map(|mode| match mode {
            Mode::Direct => None,
            Mode::Buffered { reason } => Some(format!("buffered: {reason}")),
        });
        buffered.into_iter().next().unwrap_or_else(|| "direct".to_owned())
    }

    fn lock_budget(&self) -> MutexGuard<'_, Budget> {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives and takes slots' memory.
    fn resize(&self, bytes: u64) -> Result<()> {
        // One at a time.
        let _budget = self.lock_budget();
        let plan = &self.shared.plan;
        let mut capacities = plan.divide(bytes);
        let committed = self.shared.with(|state| {
            state.set_capacities(&capacities);
            state.pools.iter().map(|pool| pool.committed()).collect::<Vec<_>>()
        });
        let mut failure = Ok(());
        for (number, pool) in plan.pools.iter().enumerate() {
            for committed in committed[number]..capacities[number] {
                match arena::allocate(&pool.rooms, plan.alignment) {
                    Ok(regions) => self.shared.with(|state| state.pools[number].commit(regions)),
                    Err(source) => {
                        capacities[number] = committed;
                        let bytes = plan.bytes(plan.divide(bytes));
                        failure = Err(Error::Memory { bytes, source });
                        break;
                    }
                }
            }
        }
        if failure.is_err() {
            self.shared.with(|state| state.set_capacities(&capacities));
        }
        failure
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.work.notify_all();
        self.readers.join();
    }
}

impl fmt::Debug for Pager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pager")
            .field("layers", &self.shared.layers.len())
            .field("readers", &self.shared.plan.readers)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Locked> {
        // A panic in a transition is a bug that its thread reports; the others go on.
        self.locked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the state, and wakes whom that concerns.
    fn with<T>(&self, change: impl FnOnce(&mut State<Region>) -> T) -> T {
        let mut locked = self.lock();
        let value = change(&mut locked.state);
        self.unlock(locked);
        value
    }

    fn unlock(&self, mut locked: MutexGuard<'_, Locked>) {
        let wake = locked.state.take_wake();
        let freed = locked.state.take_freed();
        let readers = wake.reads.min(locked.idle);
        let waiters = wake.waiters && locked.waiting > 0;
        drop(locked);
        match readers {
            0 => {}
            1 => self.work.notify_one(),
            _ => self.work.notify_all(),
        }
        if waiters {
            self.came.notify_all();
        }
        // Without the lock: giving memory back takes its time.
        drop(freed);
    }

    /// Returns what has become of an expert: `None` if it has yet to come.
    fn look(&self, locked: &Locked, run: usize, index: usize) -> Option<Option<*const u8>> {
        match locked.state.poll(run, index) {
            Poll::Pending => None,
            Poll::Failed => Some(None),
            Poll::Ready(region, name, tensor) => {
                let tensor = &self.layers[name.layer as usize].tensors[tensor as usize];
                let skew = match tensor.packer {
                    Some(_) => 0,
                    None => readers::skew(self.file(tensor).file(), offset(tensor, name.expert)),
                };
                Some(Some(region.as_ptr().wrapping_add(skew)))
            }
        }
    }

    fn file(&self, tensor: &ExpertTensor) -> &WatchedFile {
        &self.files[tensor.file]
    }

    /// Reads what is needed until the pager is dropped.
    fn read(&self, buffers: &mut Buffers) {
        let mut locked = self.lock();
        loop {
            if locked.over {
                return;
            }
            let Some(mut job) = locked.state.next_job() else {
                locked.idle += 1;
                locked = self.work.wait(locked).unwrap_or_else(PoisonError::into_inner);
                locked.idle -= 1;
                continue;
            };
            let (started, waited) = (Instant::now(), locked.state.waited_ns());
            self.unlock(locked);
            let result = catch_unwind(AssertUnwindSafe(|| {
                let bytes = self.load(&mut job, buffers)?;
                self.watch.tell(job.name.layer as usize, job.name.expert, started, bytes);
                Ok(bytes)
            }));
            let result = result.unwrap_or_else(|_| {
                let layer = &self.layers[job.name.layer as usize];
                let tensor = layer.tensors[job.tensor as usize].name.clone();
                Err(Error::Panic { tensor, expert: job.name.expert })
            });
            self.with(|state| {
                state.count_read(&job, started, waited);
                state.finish(job, result);
            });
            locked = self.lock();
        }
    }

    /// Reads a tensor of an expert into its region, and returns the bytes that came from the
    /// file.
    fn load(&self, job: &mut Job<Region>, buffers: &mut Buffers) -> Result<u64> {
        let tensor = &self.layers[job.name.layer as usize].tensors[job.tensor as usize];
        let file = self.file(tensor);
        let (offset, len) = (offset(tensor, job.name.expert), tensor.stride as usize);
        let skew = readers::skew(file.file(), offset);
        let (plain, packed) = match (&tensor.packer, &mut buffers.bounce) {
            (Some(packer), Some(bounce)) => (bounce, Some((packer, &mut job.region))),
            _ => (&mut job.region, None),
        };
        let read = file.read(offset, len, plain)?;
        let plain = &plain[skew..skew + len];
        if let (true, Some(second)) = (self.verify, &mut buffers.second) {
            file.read(offset, len, second)?;
            if xxh3_64(plain) != xxh3_64(&second[skew..skew + len]) {
                file.check()?;
                let path = file.file().path().to_owned();
                return Err(io::Error::Corrupt { path, offset, len }.into());
            }
        }
        if let Some((packer, region)) = packed {
            packer.pack(plain, &mut region[..tensor.bytes]);
        }
        Ok(read)
    }
}

/// Returns where an expert starts in its file.
fn offset(tensor: &ExpertTensor, expert: u32) -> u64 {
    tensor.offset + u64::from(expert) * tensor.stride
}

#[cfg(test)]
mod tests;

//! Which piece is read next, into which part of the ring, and what has come.
//!
//! The *ring* is `capacity` bytes. Each use of a tensor gets a *place* in it, after that of the
//! use before; where a place would reach past the ring's end, it starts at the ring's beginning.
//! Places are counted in bytes ever given out: byte `p` lies at `p % capacity`. All places from
//! that of the oldest use that is not over until `capacity` bytes later may hold something; a
//! piece is read as soon as it ends within these.

use super::Error;
use super::history::History;
use super::plan::Plan;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What one read of a thread is: a piece of a use's tensor, to a part of the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    /// Names the use, once for all.
    pub(super) id: u64,
    pub(super) tensor: u32,
    pub(super) piece: usize,
    /// Part of the ring.
    pub(super) range: Range<u64>,
}

/// What came of a read.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct Loaded<R> {
    /// The memory that was read into.
    pub(super) memory: R,
    /// Of what it holds.
    pub(super) hash: u64,
    /// Bytes that came from the file.
    pub(super) bytes: u64,
}

/// One use of a tensor: a product of a graph, or of one that is likely to come.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
struct Use<R> {
    id: u64,
    tensor: u32,
    /// Where its place starts.
    start: u64,
    /// Pieces that were given to threads.
    started: usize,
    came: Vec<Loaded<R>>,
    /// A read that nobody needed so far has failed.
    failed: bool,
    /// Somebody had to wait.
    late: bool,
}

impl<R> Use<R> {
    fn bytes(&self) -> u64 {
        self.came.iter().map(|loaded| loaded.bytes).sum()
    }
}

/// The run that computes.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
struct Active {
    run: usize,
    /// Uses of its graph.
    count: usize,
    /// Those of them that are over.
    over: usize,
    failure: Option<Error>,
    /// Threads that wait, and since when there are any.
    waiting: usize,
    since: Option<Instant>,
}

/// What has been done so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) passes: u64,
    pub(super) late: u64,
    pub(super) waited_ns: u64,
    pub(super) bytes_read: u64,
    pub(super) wasted: u64,
}

/// What a waiter finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Poll {
    Pending,
    Ready,
    Failed,
}

/// What a run that wants to begin finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Begun {
    /// Another run computes.
    Pending,
    Failed,
    /// Where each use's place is in the ring.
    Places(Vec<u64>),
}

#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct State<R> {
    plan: Arc<Plan>,
    capacity: u64,
    /// Those of the active run that are not over, then those that are likely to come.
    uses: VecDeque<Use<R>>,
    /// The first of the uses with a piece that no thread has.
    cursor: usize,
    /// Where the next place may start.
    head: u64,
    next_id: u64,
    /// What threads read now, uses that are gone included.
    reading: Vec<Job>,
    active: Option<Active>,
    /// Runs that wait for their turn.
    turns: VecDeque<usize>,
    /// What the next graph is likely to use.
    order: Arc<[u32]>,
    history: History,
    /// Of runs that are not active.
    failures: Vec<(usize, Error)>,
    broken: Option<Error>,
    /// Whether waiting threads are to look again.
    wake: bool,
    /// Hashes memory, if what was read is to be compared with what was used.
    verify: Option<fn(&R) -> u64>,
    pub(super) counters: Counters,
}

impl<R> State<R> {
    pub(super) fn new(plan: Arc<Plan>, capacity: u64, verify: Option<fn(&R) -> u64>) -> Self {
        Self {
            plan,
            capacity,
            uses: VecDeque::new(),
            cursor: 0,
            head: 0,
            next_id: 0,
            reading: Vec::new(),
            active: None,
            turns: VecDeque::new(),
            order: Arc::from([]),
            history: History::default(),
            failures: Vec::new(),
            broken: None,
            wake: false,
            verify,
            counters: Counters::default(),
        }
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Changes the ring's length; what it held is gone. No run may be active.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        debug_assert!(self.active.is_none());
        self.drop_from(0);
        self.capacity = capacity;
    }

    /// Returns whether waiting threads are to look again.
    pub(super) fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.wake)
    }

    /// Lets a run wait for its turn. What it did before is over.
    pub(super) fn queue(&mut self, run: usize) {
        if self.active.as_ref().is_some_and(|active| active.run == run) {
            self.end(run);
        }
        self.failures.retain(|(other, _)| *other != run);
        if !self.turns.contains(&run) {
            self.turns.push_back(run);
        }
    }

    /// Returns whether a run could begin now, or has failed.
    pub(super) fn is_due(&self, run: usize) -> bool {
        let is_first = self.turns.front() == Some(&run);
        let failed = self.failures.iter().any(|(other, _)| *other == run);
        failed || (is_first && self.active.is_none())
    }

    /// Begins a graph that uses tensors in this order, if it is the run's turn.
    pub(super) fn begin(&mut self, run: usize, order: &[u32]) -> Begun {
        if self.failures.iter().any(|(other, _)| *other == run) {
            return Begun::Failed;
        }
        if !self.is_due(run) {
            return Begun::Pending;
        }
        if let Some(broken) = &self.broken {
            let broken = broken.duplicate();
            self.fail(run, broken);
            return Begun::Failed;
        }
        if let Some(error) = order.iter().find_map(|&tensor| self.refuse(tensor)) {
            self.fail(run, error);
            return Begun::Failed;
        }
        self.turns.pop_front();
        let count = order.len();
        self.active = Some(Active { run, count, over: 0, failure: None, waiting: 0, since: None });
        if count == 0 {
            // Whatever the next graph is likely to use, it does not get likelier.
            return Begun::Places(Vec::new());
        }
        let predicted = self.uses.iter().zip(order);
        let came =
            predicted.take_while(|(there, tensor)| there.tensor == **tensor && !there.failed);
        let came = came.count();
        self.drop_from(came);
        for &tensor in &order[came..] {
            self.push(tensor);
        }
        self.order = self.history.note(order);
        Begun::Places(self.uses.iter().map(|each| each.start % self.capacity).collect())
    }

    /// Says why a tensor cannot be used in a graph.
    fn refuse(&self, tensor: u32) -> Option<Error> {
        let Some(plan) = self.plan.tensors.get(tensor as usize) else {
            let count = self.plan.tensors.len();
            return Some(Error::Request(format!(
                "there is no streamed tensor {tensor} of {count}"
            )));
        };
        plan.pieces
            .is_empty()
            .then(|| Error::Request(format!("`{}` is streamed by row, not as a whole", plan.name)))
    }

    /// Gives a use the next place.
    fn push(&mut self, tensor: u32) {
        let room = self.plan.tensors[tensor as usize].room;
        let at = self.head % self.capacity;
        let start =
            if at + room > self.capacity { self.head + self.capacity - at } else { self.head };
        self.head = start + room;
        let id = self.next_id;
        self.next_id += 1;
        let (came, failed, late) = (Vec::new(), false, false);
        self.uses.push_back(Use { id, tensor, start, started: 0, came, failed, late });
    }

    /// Forgets uses that are not needed after all. What is being read of them comes in vain.
    fn drop_from(&mut self, keep: usize) {
        for gone in self.uses.drain(keep..) {
            self.counters.wasted += gone.bytes();
        }
        self.cursor = self.cursor.min(keep);
        let end =
            self.uses.back().map(|last| last.start + self.plan.tensors[last.tensor as usize].room);
        self.head = end.unwrap_or(0);
    }

    /// Notes that all uses of a run before `index` are over.
    pub(super) fn reach(&mut self, run: usize, index: usize) {
        let Some(active) = self.active.as_ref().filter(|active| active.run == run) else { return };
        if active.failure.is_some() {
            return;
        }
        if index >= active.count || index < active.over {
            let what = if index < active.over { "is over" } else { "does not exist" };
            let text = format!("weights are waited for whose use, number {index}, {what}");
            self.fail(run, Error::Request(text));
            return;
        }
        self.release(index);
    }

    /// Lets go of the uses of the active run before `until`.
    fn release(&mut self, until: usize) {
        let Some(active) = &mut self.active else { return };
        let count = until.saturating_sub(active.over);
        active.over += count;
        let (mut wasted, mut failure) = (0, None);
        for gone in self.uses.drain(..count) {
            let plan = &self.plan.tensors[gone.tensor as usize];
            if gone.came.len() < plan.pieces.len() {
                wasted += gone.bytes();
            }
            let is_other = |loaded: &Loaded<R>| {
                self.verify.is_some_and(|hash| hash(&loaded.memory) != loaded.hash)
            };
            if gone.came.iter().any(is_other) {
                failure.get_or_insert(Error::Overwritten { tensor: plan.name.clone() });
            }
        }
        self.cursor = self.cursor.saturating_sub(count);
        self.counters.wasted += wasted;
        if let Some(error) = failure {
            let run = active.run;
            self.fail(run, error);
        }
    }

    /// Returns what has become of a use.
    pub(super) fn poll(&self, run: usize, index: usize) -> Poll {
        let active = self.active.as_ref().filter(|active| active.run == run);
        let Some(active) = active.filter(|active| active.failure.is_none()) else {
            return Poll::Failed;
        };
        let there = index.checked_sub(active.over).filter(|_| index < active.count);
        let Some(there) = there.and_then(|number| self.uses.get(number)) else {
            return Poll::Failed;
        };
        let pieces = self.plan.tensors[there.tensor as usize].pieces.len();
        if there.came.len() == pieces { Poll::Ready } else { Poll::Pending }
    }

    /// Notes that a thread of the active run has begun to wait for a use.
    pub(super) fn start_waiting(&mut self, index: usize) {
        let Some(active) = &mut self.active else { return };
        active.waiting += 1;
        active.since.get_or_insert_with(Instant::now);
        if let Some(there) = index.checked_sub(active.over).and_then(|i| self.uses.get_mut(i)) {
            self.counters.late += u64::from(!there.late);
            there.late = true;
        }
    }

    /// Notes that a thread of a run waits no longer. The run has waited as long as any did.
    pub(super) fn stop_waiting(&mut self, run: usize) {
        let active = self.active.as_mut().filter(|active| active.run == run);
        let Some(active) = active else { return };
        active.waiting = active.waiting.saturating_sub(1);
        if let Some(since) = active.since.take_if(|_| active.waiting == 0) {
            self.counters.waited_ns += since.elapsed().as_nanos() as u64;
        }
    }

    /// Ends a run or its wish to begin. What its threads still compute with stays until it has
    /// ended.
    pub(super) fn fail(&mut self, run: usize, error: Error) {
        self.wake = true;
        match &mut self.active {
            Some(active) if active.run == run => {
                active.failure.get_or_insert(error);
            }
            _ => {
                self.turns.retain(|&other| other != run);
                if self.failures.iter().all(|(other, _)| *other != run) {
                    self.failures.push((run, error));
                }
            }
        }
    }

    /// Ends all runs, those to come too.
    pub(super) fn break_all(&mut self, error: &Error) {
        self.broken.get_or_insert_with(|| error.duplicate());
        if let Some(run) = self.active.as_ref().map(|active| active.run) {
            self.fail(run, error.duplicate());
        }
    }

    /// Ends a run, of which no thread computes any more, and returns its failure.
    pub(super) fn end(&mut self, run: usize) -> Option<Error> {
        if let Some(number) = self.failures.iter().position(|(other, _)| *other == run) {
            return Some(self.failures.swap_remove(number).1);
        }
        let count = self.active.as_ref().filter(|active| active.run == run)?.count;
        let is_whole = self.active.as_ref().is_some_and(|active| active.over + 1 >= count);
        self.release(count);
        let active = self.active.take()?;
        if let Some(since) = active.since {
            self.counters.waited_ns += since.elapsed().as_nanos() as u64;
        }
        self.wake = true;
        if active.failure.is_some() {
            // Nobody knows what comes next.
            self.order = Arc::from([]);
            self.history.interrupt();
            self.drop_from(0);
        } else if count > 0 && is_whole {
            self.counters.passes += 1;
        }
        active.failure
    }

    /// Returns whether a thread could read something now.
    pub(super) fn has_job(&mut self) -> bool {
        self.seek().is_some()
    }

    /// Finds the next piece that can be read.
    fn seek(&mut self) -> Option<Job> {
        let active = self.active.as_ref();
        let is_over = active.is_some_and(|active| active.failure.is_some());
        if is_over || self.broken.is_some() || self.capacity == 0 {
            return None;
        }
        let needed = active.map_or(0, |active| active.count - active.over);
        loop {
            let Some(there) = self.uses.get(self.cursor) else {
                // What the graph needs is on its way: on to what the next one is likely to need.
                let tensor = *self.order.get(self.uses.len() - needed)?;
                self.push(tensor);
                continue;
            };
            let pieces = &self.plan.tensors[there.tensor as usize].pieces;
            let piece = pieces.get(there.started).filter(|_| !there.failed);
            let Some(piece) = piece else {
                self.cursor += 1;
                continue;
            };
            let oldest = self.uses.front()?.start;
            if there.start + piece.end > oldest + self.capacity {
                return None;
            }
            let place = there.start % self.capacity;
            let range = place + piece.begin..place + piece.end;
            // Somebody may still read there, for a use that is gone.
            let overlaps = |job: &Job| job.range.start < range.end && range.start < job.range.end;
            if self.reading.iter().any(overlaps) {
                return None;
            }
            return Some(Job { id: there.id, tensor: there.tensor, piece: there.started, range });
        }
    }

    /// Takes the next read for a thread to do.
    pub(super) fn next_job(&mut self) -> Option<Job> {
        let job = self.seek()?;
        self.uses[self.cursor].started += 1;
        self.reading.push(job.clone());
        Some(job)
    }

    /// Notes what came of a read.
    pub(super) fn finish(&mut self, job: &Job, result: Result<Loaded<R>, Error>) {
        self.reading.retain(|other| other != job);
        let bytes = result.as_ref().map_or(0, |loaded| loaded.bytes);
        self.counters.bytes_read += bytes;
        if let Err(error @ Error::Io(crate::io::Error::Changed { .. })) = &result {
            self.break_all(error);
        }
        let Ok(number) = self.uses.binary_search_by_key(&job.id, |each| each.id) else {
            self.counters.wasted += bytes;
            return;
        };
        let there = &mut self.uses[number];
        let needed = self.active.as_ref().map_or(0, |active| active.count - active.over);
        match result {
            Ok(loaded) => {
                there.came.push(loaded);
                let pieces = self.plan.tensors[there.tensor as usize].pieces.len();
                self.wake |= number < needed && there.came.len() == pieces;
            }
            Err(error) => {
                there.failed = true;
                if let Some(active) = self.active.as_ref().filter(|_| number < needed) {
                    let run = active.run;
                    self.fail(run, error);
                }
            }
        }
    }
}

// Too many states for Miri, which the code that it walks through has no unsafe blocks for.
#[cfg(all(test, not(miri)))]
mod model;

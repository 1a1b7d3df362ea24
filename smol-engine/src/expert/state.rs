//! All that a pager's lock protects, as transitions that never wait.
//!
//! Threads, condition variables and memory are the business of [`pager`](super::pager); `R` is
//! the type of a region of memory, so that tests can walk through all orders of events.

use super::Error;
use super::plan::Plan;
use super::policy::Policy;
use super::pool::{Ahead, Name, Pool, Target};
use super::residency::Residency;
use super::ring::{Load, Ring};
use super::run::{Item, Mark, Run, Stop};
use crate::io::queue::{Queue, Urgency};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// A read for a thread to do.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct Job<R> {
    pub(super) target: Target,
    pub(super) name: Name,
    pub(super) tensor: u8,
    pub(super) region: R,
    urgency: Urgency,
}

/// What has become of an expert that a run waits for.
#[derive(Debug)]
pub(super) enum Poll<'s, R> {
    /// Its weights are in this region.
    Ready(&'s R, Name, u8),
    Pending,
    /// The run has failed or was stopped.
    Failed,
}

/// Who has to be woken once the lock is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Wake {
    /// Reads that came into the queue or became more urgent.
    pub(super) reads: usize,
    /// Whether something came, failed or was stopped.
    pub(super) waiters: bool,
}

/// Sums for the statistics.
#[derive(Debug, Clone, Default)]
pub(super) struct Counters {
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) useful: u64,
    pub(super) late: u64,
    pub(super) streamed: u64,
    pub(super) bytes_read: u64,
    pub(super) waited_ns: u64,
    /// Experts read, predicted or not, and the time that took.
    pub(super) reads: u64,
    pub(super) read_ns: u64,
    /// Time that runs waited while predicted reads had the flash that no run had chosen yet.
    pub(super) behind_ns: u64,
    /// Time that runs waited while predicted reads had the flash that one had chosen meanwhile.
    pub(super) late_ns: u64,
    /// Of each layer: experts chosen.
    pub(super) chosen: Vec<u64>,
}

/// All that a pager's lock protects.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct State<R> {
    plan: Arc<Plan>,
    queue: Queue<Target>,
    pub(super) pools: Vec<Pool<R>>,
    ring: Ring<R>,
    runs: Vec<Run>,
    /// Runs with streams that have no buffer, in the order of their turns.
    turns: VecDeque<usize>,
    epoch: u64,
    /// Predicted reads that threads are doing, and the most that they may.
    reading_ahead: usize,
    most_ahead: usize,
    /// What ends all runs from now on.
    broken: Option<Error>,
    pub(super) counters: Counters,
    wake: Wake,
    /// Whether slots may have lost their memory, or still have to.
    shrinking: bool,
}

impl<R> State<R> {
    pub(super) fn new(
        plan: Arc<Plan>,
        policy: Policy,
        residency: &Arc<Residency>,
        ring: impl IntoIterator<Item = R>,
    ) -> Self {
        let pools = plan.pools.iter().enumerate();
        Self {
            pools: pools
                .map(|(number, pool)| Pool::new(number, pool, policy, Arc::clone(residency)))
                .collect(),
            queue: Queue::new(),
            ring: Ring::new(ring),
            runs: Vec::new(),
            turns: VecDeque::new(),
            epoch: 0,
            reading_ahead: 0,
            // A read that is needed finds a thread at once, or after one other needed one.
            most_ahead: (plan.readers / 2).max(1),
            broken: None,
            counters: Counters { chosen: vec![0; plan.layers.len()], ..Counters::default() },
            wake: Wake::default(),
            shrinking: false,
            plan,
        }
    }

    /// Returns whom to wake after what has been done.
    pub(super) fn take_wake(&mut self) -> Wake {
        std::mem::take(&mut self.wake)
    }

    /// Changes the number of slots of each pool that may have memory.
    pub(super) fn set_capacities(&mut self, capacities: &[usize]) {
        for (pool, &capacity) in self.pools.iter_mut().zip(capacities) {
            pool.set_capacity(capacity, &mut self.queue);
        }
        self.shrinking = true;
    }

    fn run(&mut self, id: usize) -> usize {
        self.runs.iter().position(|run| run.id == id).unwrap_or_else(|| {
            self.runs.push(Run::new(id));
            self.runs.len() - 1
        })
    }

    /// Returns a run that was begun.
    pub(super) fn known_run(&mut self, id: usize) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    pub(super) fn set_stop(&mut self, id: usize, stop: Option<Stop>) {
        let run = self.run(id);
        self.runs[run].stop = stop;
        // Threads that wait without looking at the clock have to do so from now on.
        self.wake.waiters = true;
    }

    fn name(&self, layer: usize, expert: u32) -> Name {
        let plan = &self.plan.layers[layer];
        Name {
            layer: layer as u32,
            expert,
            number: plan.first + expert,
            key: plan.first_key + expert,
        }
    }

    /// Returns what is wrong with a request, if anything.
    fn wrong(&self, layer: usize, tensor: usize, experts: &[u32]) -> Option<Error> {
        let Some(plan) = self.plan.layers.get(layer) else {
            let layers = self.plan.layers.len();
            return Some(Error::Request(format!("layer {layer} of {layers} was asked for")));
        };
        if tensor >= plan.tensors {
            let tensors = plan.tensors;
            return Some(Error::Request(format!("tensor {tensor} of {tensors} was asked for")));
        }
        let wrong = experts.iter().find(|&&expert| expert >= plan.experts)?;
        let text = format!("expert {wrong} of {} was asked for, layer {layer}", plan.experts);
        Some(Error::Request(text))
    }

    /// Notes which experts of a layer a run needs, and starts to read those that are not there.
    pub(super) fn want(&mut self, id: usize, layer: usize, experts: &[u32]) {
        let run = self.run(id);
        if let Some(error) = self.wrong(layer, 0, experts) {
            self.fail(run, error);
        }
        if self.enter(run, layer) {
            self.choose(run, layer, experts);
        }
    }

    /// Moves a run on to a layer. Returns whether it can go on.
    fn enter(&mut self, run: usize, layer: usize) -> bool {
        if let Some(error) = &self.broken {
            let error = error.duplicate();
            self.fail(run, error);
        }
        if self.runs[run].failure.is_some() {
            return false;
        }
        if self.runs[run].layer != Some(layer) {
            self.leave(run);
            self.epoch += 1;
            let plan = &self.plan.layers[layer];
            let run = &mut self.runs[run];
            run.layer = Some(layer);
            run.epoch = self.epoch;
            run.begun = false;
            run.computed = 0;
            run.marks.clear();
            run.marks.resize(plan.experts as usize, Mark::None);
            if !run.pools.contains(&plan.pool) {
                run.pools.push(plan.pool);
            }
        }
        true
    }

    /// Holds the slots of experts that have or can get one. Those that have one come first, so
    /// that the others do not push them out.
    fn choose(&mut self, run: usize, layer: usize, experts: &[u32]) {
        for &expert in experts {
            if self.runs[run].marks[expert as usize] == Mark::None {
                let name = self.name(layer, expert);
                let pool = self.plan.layers[layer].pool;
                self.pools[pool].ranking().touch(name.key);
                self.runs[run].marks[expert as usize] = Mark::Missing;
                if let Some(slot) = self.pools[pool].find(name.key) {
                    self.hold(run, pool, slot, expert);
                }
            }
        }
        if !self.runs[run].begun {
            // What was predicted for the layer and not chosen keeps no place from what was.
            self.cancel_predictions(layer, &[]);
        }
        for &expert in experts {
            if self.runs[run].marks[expert as usize] == Mark::Missing {
                let name = self.name(layer, expert);
                let epoch = self.runs[run].epoch;
                let plan = &self.plan.layers[layer];
                let pool = &mut self.pools[plan.pool];
                let found = pool.find(name.key);
                if found.is_none() && self.runs[run].begun {
                    continue;
                }
                let new = || {
                    let slot = pool.insert(name, Urgency::Needed, epoch, &mut self.queue)?;
                    self.wake.reads += plan.tensors;
                    Some(slot)
                };
                if let Some(slot) = found.or_else(new) {
                    let pool = plan.pool;
                    self.hold(run, pool, slot, expert);
                }
            }
        }
    }

    fn hold(&mut self, run: usize, pool: usize, slot: u32, expert: u32) {
        let found = self.pools[pool].hold(slot, self.runs[run].epoch, &mut self.queue);
        self.runs[run].marks[expert as usize] = Mark::Held { slot, miss: !found.ready };
        self.wake.reads += found.sooner;
        match found.ahead {
            Some(Ahead::Useful) => self.counters.useful += 1,
            Some(Ahead::Late) => {
                self.counters.late += 1;
                let waited = self.waited_ns();
                self.pools[pool].claim(slot, waited);
            }
            None => {}
        }
    }

    /// Reads experts ahead, in this order, as far as slots can be spared.
    pub(super) fn predict(&mut self, layer: usize, experts: &[u32]) {
        if self.broken.is_some() || self.wrong(layer, 0, experts).is_some() {
            return;
        }
        self.cancel_predictions(layer, experts);
        for &expert in experts {
            let name = self.name(layer, expert);
            let plan = &self.plan.layers[layer];
            let pool = &mut self.pools[plan.pool];
            if let Some(slot) = pool.find(name.key) {
                pool.expect(slot);
                continue;
            }
            if pool.insert(name, Urgency::Predicted, self.epoch, &mut self.queue).is_none() {
                return;
            }
            self.wake.reads += plan.tensors;
        }
    }

    /// Reads experts of some layers into free slots, in this order, when there is nothing else to
    /// read.
    pub(super) fn warm(&mut self, experts: impl IntoIterator<Item = (usize, u32)>) {
        if self.broken.is_some() {
            return;
        }
        for (order, (layer, expert)) in (0..).zip(experts) {
            if self.wrong(layer, 0, &[expert]).is_some() {
                continue;
            }
            let name = self.name(layer, expert);
            let plan = &self.plan.layers[layer];
            let pool = &mut self.pools[plan.pool];
            if pool.find(name.key).is_none() && pool.warm(name, order, &mut self.queue) {
                self.wake.reads += plan.tensors;
            }
        }
    }

    /// Gives up what was predicted for a layer and has not come, except for some experts; what has
    /// come loses its privilege.
    fn cancel_predictions(&mut self, layer: usize, except: &[u32]) {
        let plan = &self.plan.layers[layer];
        let pool = &mut self.pools[plan.pool];
        if pool.due() == 0 {
            return;
        }
        for expert in (0..plan.experts).filter(|expert| !except.contains(expert)) {
            if let Some(slot) = pool.find(plan.first_key + expert) {
                pool.cancel(slot, &mut self.queue);
            }
        }
    }

    /// Begins a product of a run: one tensor of a layer's experts.
    pub(super) fn begin(
        &mut self,
        id: usize,
        layer: usize,
        tensor: usize,
        experts: &[u32],
        uses: &[u32],
    ) {
        let run = self.run(id);
        self.drop_product(run);
        let mut wrong = self.wrong(layer, tensor, experts);
        if experts.len() != uses.len() {
            let (experts, uses) = (experts.len(), uses.len());
            wrong = Some(Error::Request(format!("{experts} experts with {uses} counts of uses")));
        }
        if let Some(error) = wrong {
            self.fail(run, error);
        }
        if !self.enter(run, layer) {
            return;
        }
        self.choose(run, layer, experts);
        let is_first = !std::mem::replace(&mut self.runs[run].begun, true);
        let run = &mut self.runs[run];
        run.product.tensor = tensor as u8;
        run.product.left = experts.len();
        run.product.next = 0;
        let mut streams = false;
        for (&expert, &uses) in experts.iter().zip(uses) {
            let mark = &mut run.marks[expert as usize];
            let item = match *mark {
                Mark::Held { slot, .. } => Item::Slot { expert, slot },
                Mark::None | Mark::Missing | Mark::Streamed => {
                    self.counters.streamed += u64::from(is_first);
                    *mark = Mark::Streamed;
                    streams = true;
                    Item::Stream { expert, buffer: None }
                }
            };
            run.product.items.push(item);
            if is_first {
                let miss = !matches!(mark, Mark::Held { miss: false, .. });
                let misses = u64::from(miss && uses > 0);
                self.counters.misses += misses;
                self.counters.hits += u64::from(uses) - misses;
                self.counters.chosen[layer] += u64::from(uses);
            }
        }
        if streams {
            self.turns.push_back(id);
            self.give_buffers();
        }
        if experts.is_empty() {
            self.computed(id);
        }
    }

    /// Gives free ring buffers to the runs' streams: one each in turn, in the order of a run's
    /// product.
    fn give_buffers(&mut self) {
        while self.ring.has_free() {
            let Some(id) = self.turns.pop_front() else { return };
            let Some(run) = self.runs.iter_mut().find(|run| run.id == id) else { continue };
            let (Some(layer), None) = (run.layer, &run.failure) else { continue };
            let waits = |item: &Item| matches!(item, Item::Stream { buffer: None, .. });
            let product = &mut run.product;
            let Some(ahead) = product.items[product.next..].iter().position(waits) else {
                continue;
            };
            product.next += ahead + 1;
            let (index, tensor, epoch) = (product.next - 1, product.tensor, run.epoch);
            if let Item::Stream { expert, .. } = product.items[index] {
                let load = Load { run: id, name: self.name(layer, expert), tensor };
                let buffer = self.ring.insert(load, epoch, &mut self.queue);
                let run = self.run(id);
                self.runs[run].product.items[index] = Item::Stream { expert, buffer };
                self.wake.reads += 1;
            }
            self.turns.push_back(id);
        }
    }

    /// Writes the indexes of a product's items in the order in which they come.
    pub(super) fn order(&self, id: usize, order: &mut [u32]) {
        for (index, place) in order.iter_mut().enumerate() {
            *place = index as u32;
        }
        let Some(run) = self.runs.iter().find(|run| run.id == id) else { return };
        let Some(layer) = run.layer else { return };
        let pool = &self.pools[self.plan.layers[layer].pool];
        let tensor = run.product.tensor;
        order.sort_by_key(|&index| match run.product.items.get(index as usize) {
            Some(Item::Slot { slot, .. }) => u8::from(pool.ready(*slot, tensor).is_none()),
            _ => 2,
        });
    }

    /// Looks at an item of a run's product.
    pub(super) fn poll(&self, id: usize, index: usize) -> Poll<'_, R> {
        let Some(run) = self.runs.iter().find(|run| run.id == id) else { return Poll::Failed };
        let (Some(layer), None) = (run.layer, &run.failure) else { return Poll::Failed };
        let tensor = run.product.tensor;
        let (expert, region) = match run.product.items.get(index) {
            Some(&Item::Slot { expert, slot }) => {
                (expert, self.pools[self.plan.layers[layer].pool].ready(slot, tensor))
            }
            Some(&Item::Stream { expert, buffer }) => {
                (expert, buffer.and_then(|buffer| self.ring.ready(buffer)))
            }
            Some(Item::Done) | None => return Poll::Failed,
        };
        match region {
            Some(region) => Poll::Ready(region, self.name(layer, expert), tensor),
            None => Poll::Pending,
        }
    }

    /// Lets go of an item of a run's product; all threads are through with it.
    pub(super) fn done(&mut self, id: usize, index: usize) {
        let Some(run) = self.runs.iter_mut().find(|run| run.id == id) else { return };
        let Some(item) = run.product.items.get_mut(index) else { return };
        let item = std::mem::replace(item, Item::Done);
        if item == Item::Done {
            return;
        }
        run.product.left -= 1;
        let left = run.product.left;
        if let Item::Stream { buffer: Some(buffer), .. } = item {
            self.ring.release(buffer, &mut self.queue);
            self.give_buffers();
        }
        if left == 0 {
            self.computed(id);
        }
    }

    /// Notes that a run's product is computed; after the layer's last one it holds nothing.
    fn computed(&mut self, id: usize) {
        let run = self.run(id);
        let Some(layer) = self.runs[run].layer else { return };
        self.runs[run].computed |= 1 << self.runs[run].product.tensor;
        if self.runs[run].computed.count_ones() as usize == self.plan.layers[layer].tensors {
            self.leave(run);
        }
    }

    /// Lets go of what is left of a run's product.
    fn drop_product(&mut self, run: usize) {
        let items = std::mem::take(&mut self.runs[run].product.items);
        for item in &items {
            if let &Item::Stream { buffer: Some(buffer), .. } = item {
                self.ring.release(buffer, &mut self.queue);
            }
        }
        let id = self.runs[run].id;
        self.turns.retain(|&other| other != id);
        // The memory is used again.
        self.runs[run].product.items = items;
        self.runs[run].product.items.clear();
        self.runs[run].product.left = 0;
        self.give_buffers();
    }

    /// Lets go of all that a run holds of its layer.
    fn leave(&mut self, run: usize) {
        self.drop_product(run);
        let Some(layer) = self.runs[run].layer.take() else { return };
        let pool = &mut self.pools[self.plan.layers[layer].pool];
        for mark in self.runs[run].marks.drain(..) {
            if let Mark::Held { slot, .. } = mark {
                pool.unhold(slot, &mut self.queue);
            }
        }
    }

    /// Ends what a run waits for. What its threads still compute with stays until it has ended.
    fn fail(&mut self, run: usize, error: Error) {
        let run = &mut self.runs[run];
        run.failure.get_or_insert(error);
        self.wake.waiters = true;
        let id = run.id;
        self.turns.retain(|&other| other != id);
    }

    /// Notes that a thread of a run has begun to wait.
    pub(super) fn start_waiting(&mut self, id: usize) {
        let run = self.run(id);
        let run = &mut self.runs[run];
        run.waiting += 1;
        run.since.get_or_insert_with(Instant::now);
    }

    /// Notes that a thread of a run waits no longer. The run has waited as long as any did.
    pub(super) fn stop_waiting(&mut self, id: usize) {
        let Some(run) = self.known_run(id) else { return };
        run.waiting = run.waiting.saturating_sub(1);
        if let Some(since) = run.since.take_if(|_| run.waiting == 0) {
            self.counters.waited_ns += since.elapsed().as_nanos() as u64;
        }
    }

    /// Returns how long all runs have waited so far, in nanoseconds.
    pub(super) fn waited_ns(&self) -> u64 {
        let since = self.runs.iter().filter_map(|run| run.since);
        self.counters.waited_ns + since.map(|since| since.elapsed().as_nanos() as u64).sum::<u64>()
    }

    /// Counts a read that began at `started`, when runs had waited for `waited` nanoseconds.
    pub(super) fn count_read(&mut self, job: &Job<R>, started: Instant, waited: u64) {
        let took = started.elapsed().as_nanos() as u64;
        self.counters.reads += u64::from(job.tensor == 0);
        self.counters.read_ns += took;
        if let (Urgency::Predicted, Target::Slot { pool, slot, .. }) = (job.urgency, job.target) {
            let now = self.waited_ns();
            // From then on runs have waited for this very read.
            let claimed = self.pools[pool as usize].claimed(slot).map_or(now, |at| at.max(waited));
            self.counters.behind_ns += claimed.saturating_sub(waited).min(took);
            self.counters.late_ns += now.saturating_sub(claimed).min(took);
        }
    }

    /// Stops a run.
    pub(super) fn stop(&mut self, id: usize) {
        let run = self.run(id);
        self.fail(run, Error::Stopped);
    }

    /// Ends all runs, those to come too.
    pub(super) fn break_all(&mut self, error: &Error) {
        self.broken.get_or_insert_with(|| error.duplicate());
        for run in 0..self.runs.len() {
            if self.runs[run].layer.is_some() {
                self.fail(run, error.duplicate());
            }
        }
    }

    /// Ends a run, which holds nothing any more, and returns its failure.
    pub(super) fn end(&mut self, id: usize) -> Option<Error> {
        let run = self.runs.iter().position(|run| run.id == id)?;
        self.leave(run);
        for pool in std::mem::take(&mut self.runs[run].pools) {
            self.pools[pool].ranking().token();
        }
        let failure = self.runs[run].failure.take();
        if self.runs[run].stop.is_none() {
            self.runs.swap_remove(run);
        }
        failure
    }

    /// Takes the most urgent read for a thread to do.
    pub(super) fn next_job(&mut self) -> Option<Job<R>> {
        let least =
            if self.reading_ahead < self.most_ahead { Urgency::Predicted } else { Urgency::Needed };
        let (urgency, target) = self.queue.pop(least)?;
        let (name, tensor, region) = match target {
            Target::Slot { pool, slot, tensor } => {
                let (name, region) = self.pools[pool as usize].start(slot, tensor)?;
                (name, tensor, region)
            }
            Target::Ring { buffer } => {
                let (load, region) = self.ring.start(buffer)?;
                (load.name, load.tensor, region)
            }
        };
        self.reading_ahead += usize::from(urgency == Urgency::Predicted);
        Some(Job { target, name, tensor, region, urgency })
    }

    /// Takes a read back that a thread has done: the bytes that came, or why none did.
    pub(super) fn finish(&mut self, job: Job<R>, result: Result<u64, Error>) {
        self.reading_ahead -= usize::from(job.urgency == Urgency::Predicted);
        let good = result.is_ok();
        match job.target {
            Target::Slot { pool, slot, tensor } => {
                let queue = &mut self.queue;
                let pool_number = pool as usize;
                let pool = &mut self.pools[pool_number];
                let lost = pool.finish(slot, tensor, job.region, good, queue);
                if let (true, Err(error)) = (lost, &result) {
                    for run in 0..self.runs.len() {
                        let is_member = self.runs[run]
                            .layer
                            .is_some_and(|layer| self.plan.layers[layer].pool == pool_number);
                        let holds = |mark: &Mark| matches!(*mark, Mark::Held { slot: held, .. } if held == slot);
                        if is_member && self.runs[run].marks.iter().any(holds) {
                            self.fail(run, error.duplicate());
                        }
                    }
                }
            }
            Target::Ring { buffer } => {
                let load = self.ring.finish(buffer, job.region, good);
                match (load, &result) {
                    (Some(load), Err(error)) => {
                        let run = self.run(load.run);
                        self.fail(run, error.duplicate());
                    }
                    (None, _) => self.give_buffers(),
                    (Some(_), Ok(_)) => {}
                }
            }
        }
        self.wake.waiters = true;
        match result {
            Ok(bytes) => self.counters.bytes_read += bytes,
            Err(error) => {
                if matches!(error, Error::Io(crate::io::Error::Changed { .. })) {
                    self.break_all(&error);
                }
            }
        }
    }

    /// Takes out memory that is to go back to the system.
    pub(super) fn take_freed(&mut self) -> Vec<Option<R>> {
        if !self.shrinking {
            return Vec::new();
        }
        self.shrinking = self.pools.iter().any(Pool::is_over);
        self.pools.iter_mut().flat_map(Pool::take_freed).collect()
    }
}

#[cfg(test)]
mod tests;

// Too many states for Miri, which the code that it walks through has no unsafe blocks for.
#[cfg(all(test, not(miri)))]
mod model;

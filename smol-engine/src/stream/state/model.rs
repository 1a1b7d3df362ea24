//! Walks through all orders in which threads can take the lock, for small rings and graphs.
//!
//! Threads do nothing to the state but under one lock, so an order of lock holders, with what
//! each read comes to, is all that can differ. Beside the state there is a naive model of the
//! ring: for each byte what it holds, and who writes to it. In every state what a run computes
//! with must be what it asked for, whole, written to by nobody; nobody may read to where
//! somebody else reads; and as long as a run has not ended some thread must be able to go on: a
//! thread that waits does so until it is woken as [`Shared::wake`](crate::stream::streaming)
//! wakes.

use super::*;
use std::collections::HashSet;
use std::fmt::Write as _;
use xxhash_rust::xxh3::xxh3_128;

/// A byte of the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Empty,
    /// A reader writes to it.
    Written,
    /// So many bytes after the start of a tensor.
    Holds(u32, u64),
}

/// A run: some threads that go through graphs in step.
#[derive(Debug, Clone)]
struct Actor {
    run: usize,
    graphs: &'static [&'static [u32]],
    /// Where the graph's uses are; `None` before it has begun.
    places: Option<Vec<u64>>,
    /// Of each thread: uses that it has waited for.
    reached: Vec<usize>,
    parked: Vec<bool>,
    /// Uses that are over for all threads.
    past: usize,
    /// Threads that have noted that they wait.
    waits: Vec<bool>,
    /// Whether the run has noticed that it failed.
    failed: bool,
    /// Whether it waits for its turn already.
    queued: bool,
    /// Whether it may be stopped while it waits.
    may_stop: bool,
    /// Whether the last graph is left before its end, as when it is aborted.
    leaves: bool,
}

#[derive(Debug, Clone)]
enum Reader {
    Awake,
    Parked,
    Reading(Job),
}

#[derive(Clone)]
struct World {
    state: State<u64>,
    cells: Vec<Cell>,
    actors: Vec<Actor>,
    readers: Vec<Reader>,
    /// Reads that may still fail.
    faults: usize,
    /// Lengths that the ring may still get, each between two graphs.
    lengths: &'static [u64],
    /// Failures that runs were told of.
    told: usize,
    finished: usize,
}

/// One lock holder.
#[derive(Debug, Clone, Copy)]
enum Move {
    Thread(usize, usize),
    Stop(usize),
    Take(usize),
    Finish(usize, bool),
    Resize,
}

/// What is walked through.
#[derive(Clone, Copy)]
struct Setup {
    /// Lengths of each tensor's pieces.
    tensors: &'static [&'static [u64]],
    capacity: u64,
    graphs: &'static [&'static [&'static [u32]]],
    threads: usize,
    readers: usize,
    faults: usize,
    may_stop: bool,
    leaves: bool,
    lengths: &'static [u64],
}

const SETUP: Setup = Setup {
    tensors: &[&[1, 1], &[2, 1], &[1]],
    capacity: 4,
    graphs: &[&[&[0, 1, 2], &[0, 1, 2]]],
    threads: 1,
    readers: 2,
    faults: 0,
    may_stop: false,
    leaves: false,
    lengths: &[],
};

impl Setup {
    fn world(self) -> World {
        let plan = Arc::new(Plan::of_lengths(self.tensors));
        let actor = |(number, &graphs): (usize, &&'static [&'static [u32]])| Actor {
            run: 10 + number,
            graphs,
            places: None,
            reached: vec![0; self.threads],
            parked: vec![false; self.threads],
            past: 0,
            waits: vec![false; self.threads],
            failed: false,
            queued: false,
            may_stop: self.may_stop && number == 0,
            leaves: self.leaves,
        };
        World {
            state: State::new(plan, self.capacity, Some(|id| *id)),
            cells: vec![Cell::Empty; self.capacity as usize],
            actors: self.graphs.iter().enumerate().map(actor).collect(),
            readers: vec![Reader::Awake; self.readers],
            faults: self.faults,
            lengths: self.lengths,
            told: 0,
            finished: 0,
        }
    }

    /// Walks through all there is, and returns the number of states.
    fn walk(self) -> usize {
        let mut seen = HashSet::new();
        let mut open = vec![self.world()];
        let (mut finished, mut told) = (0, 0);
        while let Some(world) = open.pop() {
            let moves = world.moves();
            if moves.is_empty() {
                assert!(world.is_over(), "nobody can go on: {}", world.fingerprint());
                world.check_end();
                finished = finished.max(world.finished);
                told = told.max(world.told);
            }
            for step in moves {
                let mut next = world.clone();
                next.step(step);
                next.check();
                if seen.insert(xxh3_128(next.fingerprint().as_bytes())) {
                    open.push(next);
                }
            }
        }
        let graphs: usize = self.graphs.iter().map(|graphs| graphs.len()).sum();
        assert_eq!(finished, graphs, "all can go well");
        assert_eq!(told > 0, self.faults > 0 || self.may_stop, "{told} failures");
        seen.len()
    }

    /// Goes one way of many.
    fn wander(self, seed: u64) {
        let mut random = seed | 1;
        let mut world = self.world();
        loop {
            let moves = world.moves();
            if moves.is_empty() {
                assert!(world.is_over(), "nobody can go on: {}", world.fingerprint());
                world.check_end();
                return;
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            world.step(moves[(random >> 20) as usize % moves.len()]);
            world.check();
        }
    }
}

impl World {
    fn is_over(&self) -> bool {
        self.actors.iter().all(|actor| actor.graphs.is_empty())
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (number, actor) in self.actors.iter().enumerate() {
            for thread in 0..actor.reached.len() {
                if actor.can_go_on(thread) {
                    moves.push(Move::Thread(number, thread));
                }
            }
            if actor.may_stop && actor.parked.contains(&true) {
                moves.push(Move::Stop(number));
            }
        }
        for (number, reader) in self.readers.iter().enumerate() {
            match reader {
                Reader::Awake => moves.push(Move::Take(number)),
                Reader::Parked => {}
                Reader::Reading(_) => {
                    moves.push(Move::Finish(number, true));
                    if self.faults > 0 {
                        moves.push(Move::Finish(number, false));
                    }
                }
            }
        }
        // Between graphs, as the stream does it.
        if !self.lengths.is_empty() && !self.state.is_active() {
            moves.push(Move::Resize);
        }
        moves
    }

    fn step(&mut self, step: Move) {
        match step {
            Move::Thread(actor, thread) => self.go_on(actor, thread),
            Move::Stop(actor) => {
                let run = self.actors[actor].run;
                self.actors[actor].may_stop = false;
                self.state.fail(run, Error::Stopped);
            }
            Move::Take(reader) => {
                self.readers[reader] = match self.state.next_job() {
                    None => Reader::Parked,
                    Some(job) => {
                        for cell in
                            &mut self.cells[job.range.start as usize..job.range.end as usize]
                        {
                            assert_ne!(*cell, Cell::Written, "two read to one place: {job:?}");
                            *cell = Cell::Written;
                        }
                        Reader::Reading(job)
                    }
                };
            }
            Move::Finish(reader, good) => {
                let Reader::Reading(job) = &self.readers[reader] else { unreachable!() };
                let job = job.clone();
                self.readers[reader] = Reader::Awake;
                let begin = self.state.plan.tensors[job.tensor as usize].pieces[job.piece].begin;
                // A ring may have got shorter since.
                let there = job.range.start..job.range.end.min(self.cells.len() as u64);
                for at in there {
                    let held = Cell::Holds(job.tensor, begin + at - job.range.start);
                    self.cells[at as usize] = if good { held } else { Cell::Empty };
                }
                let result = if good {
                    Ok(Loaded {
                        memory: job.id,
                        hash: job.id,
                        bytes: job.range.end - job.range.start,
                    })
                } else {
                    self.faults -= 1;
                    Err(Error::Panic { tensor: job.tensor.to_string() })
                };
                self.state.finish(&job, result);
            }
            Move::Resize => {
                let length = self.lengths[0];
                self.lengths = &self.lengths[1..];
                self.state.set_capacity(length);
                // Readers of the old ring keep it; in this model both are one.
                let written = self.readers.iter().filter_map(|reader| match reader {
                    Reader::Reading(job) => Some(job.range.clone()),
                    _ => None,
                });
                let mut cells = vec![Cell::Empty; length as usize];
                for at in written.flatten().filter(|&at| at < length) {
                    cells[at as usize] = Cell::Written;
                }
                self.cells = cells;
            }
        }
        self.wake();
    }

    fn wake(&mut self) {
        if self.state.has_job()
            && let Some(parked) = self.readers.iter_mut().find(|r| matches!(r, Reader::Parked))
        {
            *parked = Reader::Awake;
        }
        if self.state.take_wake() {
            self.actors.iter_mut().for_each(|actor| actor.parked.fill(false));
        }
    }

    fn go_on(&mut self, number: usize, thread: usize) {
        let actor = &mut self.actors[number];
        let (run, order) = (actor.run, actor.graphs[0]);
        let Some(places) = &actor.places else {
            if !actor.queued {
                actor.queued = true;
                self.state.queue(run);
                return;
            }
            match self.state.begin(run, order) {
                Begun::Pending => actor.parked[thread] = true,
                Begun::Failed => {
                    actor.failed = true;
                    actor.places = Some(Vec::new());
                }
                Begun::Places(places) => {
                    assert_eq!(places.len(), order.len());
                    actor.places = Some(places);
                }
            }
            return;
        };
        let last = actor.leaves && actor.graphs.len() == 1;
        let count = if last { order.len() / 2 } else { order.len() };
        if actor.failed || actor.reached[thread] == count {
            let failure = self.state.end(run);
            assert_eq!(failure.is_some(), actor.failed || failure.is_some());
            self.told += usize::from(failure.is_some());
            self.finished += usize::from(failure.is_none());
            actor.graphs = &actor.graphs[1..];
            actor.places = None;
            actor.queued = false;
            actor.failed = false;
            actor.reached.fill(0);
            actor.past = 0;
            return;
        }
        let index = actor.reached[thread];
        if !actor.waits[thread] {
            self.state.reach(run, index);
            actor.past = index;
        }
        match self.state.poll(run, index) {
            Poll::Pending => {
                if !actor.waits[thread] {
                    self.state.start_waiting(index);
                    actor.waits[thread] = true;
                }
                actor.parked[thread] = true;
                return;
            }
            Poll::Ready => actor.reached[thread] += 1,
            Poll::Failed => actor.failed = true,
        }
        if actor.waits[thread] {
            self.state.stop_waiting(run);
            actor.waits[thread] = false;
        }
        // What it waited for is whole.
        if !actor.failed {
            let tensor = order[index];
            let room = self.state.plan.tensors[tensor as usize].room;
            for at in 0..room {
                let cell = self.cells[(places[index] + at) as usize];
                assert_eq!(cell, Cell::Holds(tensor, at), "use {index} of run {run}");
            }
        }
    }

    /// Checks what must be true whenever no thread is inside.
    fn check(&self) {
        let state = &self.state;
        // What the threads compute with is there until all of them are past it.
        for actor in &self.actors {
            let Some(places) = actor.places.as_ref().filter(|places| !places.is_empty()) else {
                continue;
            };
            // Who waits for the next use has let go of the one before.
            let most = actor.reached.iter().max().filter(|&&most| most > actor.past);
            let computed = most.and_then(|most| most.checked_sub(1));
            let Some(index) = computed else { continue };
            let tensor = actor.graphs[0][index];
            for at in 0..state.plan.tensors[tensor as usize].room {
                let cell = self.cells[(places[index] + at) as usize];
                assert_eq!(cell, Cell::Holds(tensor, at), "use {index} of run {}", actor.run);
            }
        }
        // Places come one after the other, and what is in them fits.
        let mut end = state.uses.front().map_or(0, |oldest| oldest.start);
        for (number, there) in state.uses.iter().enumerate() {
            let plan = &state.plan.tensors[there.tensor as usize];
            let place = there.start % state.capacity;
            assert!(there.start >= end && place + plan.room <= state.capacity);
            end = there.start + plan.room;
            assert!(there.came.len() <= there.started && there.started <= plan.pieces.len());
            if number > state.cursor {
                assert_eq!(there.started, 0, "pieces are read in order");
            }
        }
        assert!(state.uses.is_empty() || state.head == end);
        assert!(state.active.as_ref().is_none_or(|active| {
            active.over <= active.count && state.uses.len() >= active.count - active.over
        }));
        let reading = self.readers.iter().filter(|reader| matches!(reader, Reader::Reading(_)));
        assert_eq!(reading.count(), state.reading.len());
    }

    /// Checks what must be true when all is over.
    fn check_end(&self) {
        assert!(self.state.active.is_none() && self.state.turns.is_empty());
        assert!(self.state.failures.is_empty() && self.state.reading.is_empty());
        let came: u64 = self.state.uses.iter().map(Use::bytes).sum();
        assert!(came + self.state.counters.wasted <= self.state.counters.bytes_read);
    }

    /// Writes all that later behaviour depends on.
    fn fingerprint(&self) -> String {
        let mut out = String::new();
        let state = &self.state;
        for there in &state.uses {
            let place = there.start % state.capacity.max(1);
            let came: Vec<_> = there.came.iter().map(|loaded| loaded.bytes).collect();
            let (id, failed, late) = (state.next_id - there.id, there.failed, there.late);
            write!(
                out,
                "({id} {} {place} {} {came:?} {failed} {late})",
                there.tensor, there.started
            )
            .unwrap();
        }
        let starts = state.uses.iter().map(|there| state.head - there.start);
        write!(out, "{:?} {} {}", starts.collect::<Vec<_>>(), state.cursor, state.capacity)
            .unwrap();
        if state.uses.is_empty() {
            write!(out, "h{}", state.head).unwrap();
        }
        for job in &state.reading {
            let id = state.next_id - job.id;
            write!(out, "[{id} {} {} {:?}]", job.tensor, job.piece, job.range).unwrap();
        }
        if let Some(active) = &state.active {
            let failed = active.failure.is_some();
            write!(
                out,
                "a{} {} {} {failed} {}",
                active.run, active.count, active.over, active.waiting
            )
            .unwrap();
        }
        let failed: Vec<_> = state.failures.iter().map(|(run, _)| run).collect();
        write!(out, "{:?} {:?} {failed:?}", state.turns, state.order).unwrap();
        write!(out, "{:?}", state.history).unwrap();
        for actor in &self.actors {
            write!(
                out,
                "|{} {} {:?} {:?} {:?} {:?} {} {} {}",
                actor.graphs.len(),
                actor.past,
                actor.places,
                actor.reached,
                actor.parked,
                actor.waits,
                actor.failed,
                actor.queued,
                actor.may_stop
            )
            .unwrap();
        }
        for reader in &self.readers {
            match reader {
                Reader::Awake => out.push('w'),
                Reader::Parked => out.push('p'),
                Reader::Reading(job) => write!(out, "r{}", state.next_id - job.id).unwrap(),
            }
        }
        write!(out, "{:?}{}{}", self.cells, self.faults, self.lengths.len()).unwrap();
        write!(out, "{} {}", self.told, self.finished).unwrap();
        out
    }
}

impl Actor {
    /// Returns whether a thread can take the lock: threads compute a use together, and the first
    /// of them begins and ends graphs.
    fn can_go_on(&self, thread: usize) -> bool {
        let Some(order) = self.graphs.first() else { return false };
        if self.parked[thread] {
            return false;
        }
        if self.places.is_none() {
            return thread == 0;
        }
        let least = self.reached.iter().min().copied().unwrap_or(0);
        let last = self.leaves && self.graphs.len() == 1;
        let count = if last { order.len() / 2 } else { order.len() };
        if self.failed || least == count {
            // All others have left what they waited for.
            let is_free =
                self.waits.iter().enumerate().all(|(other, waits)| other == thread || !waits);
            return if self.waits[thread] { true } else { thread == 0 && is_free };
        }
        self.reached[thread] == least
    }
}

#[test]
fn one_run_of_one_and_of_two_threads() {
    let states = SETUP.walk();
    assert!(states > 100, "{states}");
    Setup { threads: 2, ..SETUP }.walk();
    Setup { readers: 3, ..SETUP }.walk();
}

#[test]
fn rings_down_to_the_largest_tensor_and_up_to_all() {
    for capacity in [3, 5, 6, 7, 12] {
        Setup { capacity, ..SETUP }.walk();
    }
}

#[test]
fn orders_that_change() {
    let graphs: &[&[&[u32]]] = &[&[&[0, 1, 2], &[0, 1], &[2, 0], &[], &[2, 0], &[1, 1, 1]]];
    for capacity in [3, 4, 6, 9] {
        Setup { capacity, graphs, ..SETUP }.walk();
    }
}

#[test]
fn orders_that_alternate() {
    let graphs: &[&[&[u32]]] = &[&[&[0, 1], &[2], &[0, 1], &[2], &[0, 1]]];
    for capacity in [3, 6] {
        Setup { capacity, graphs, ..SETUP }.walk();
    }
    let graphs: &[&[&[u32]]] = &[&[&[0, 1], &[0, 1]], &[&[2], &[2]]];
    Setup { capacity: 6, graphs, ..SETUP }.walk();
}

#[test]
fn two_runs_take_turns() {
    let graphs: &[&[&[u32]]] = &[&[&[0, 1], &[0, 1]], &[&[1, 2], &[1, 2]]];
    for capacity in [3, 6] {
        Setup { capacity, graphs, ..SETUP }.walk();
    }
    Setup { graphs: &[&[&[0, 1]], &[&[0, 1]]], threads: 2, ..SETUP }.walk();
}

#[test]
fn reads_that_fail_and_runs_that_are_stopped() {
    for faults in [1, 2] {
        Setup { faults, ..SETUP }.walk();
    }
    Setup { faults: 1, threads: 2, capacity: 3, ..SETUP }.walk();
    Setup { may_stop: true, ..SETUP }.walk();
    let graphs: &[&[&[u32]]] = &[&[&[0, 1]], &[&[1, 2]]];
    Setup { faults: 1, may_stop: true, graphs, ..SETUP }.walk();
}

#[test]
fn graphs_that_are_left_and_rings_that_change() {
    Setup { leaves: true, ..SETUP }.walk();
    Setup { lengths: &[3, 6], ..SETUP }.walk();
    Setup { lengths: &[5, 3], graphs: &[&[&[0, 1]], &[&[2, 0]]], ..SETUP }.walk();
}

#[test]
fn many_ways_through_larger_ones() {
    const TENSORS: &[&[u64]] =
        &[&[4, 4, 4, 2], &[1], &[3, 3], &[4, 4, 4, 4, 4, 1], &[2, 2, 2], &[4, 3], &[1, 1]];
    const WHOLE: &[u32] = &[1, 0, 2, 6, 3, 4, 5, 1, 3];
    const GRAPHS: &[&[&[&[u32]]]] = &[
        &[&[WHOLE, WHOLE, WHOLE, &[1, 0, 2, 6], WHOLE]],
        &[&[WHOLE, &[5, 3], WHOLE, &[5, 3]], &[&[2, 2, 4], WHOLE]],
        &[&[&[3, 3, 3, 0, 0], &[3, 3, 3, 0]], &[&[6, 1, 6], &[6, 1, 6]], &[&[4], &[4, 4]]],
    ];
    for seed in 0..1500 {
        let setup = Setup {
            tensors: TENSORS,
            capacity: [21, 22, 25, 31, 40, 67, 200][seed % 7],
            graphs: GRAPHS[seed % 3],
            threads: 1 + seed % 4,
            readers: 1 + seed % 5,
            faults: [0, 0, 1, 3][seed / 7 % 4],
            may_stop: seed % 11 == 0,
            leaves: seed % 5 == 0,
            lengths: [&[][..], &[21, 60], &[30]][seed / 3 % 3],
        };
        setup.wander(seed as u64 * 0x9e37_79b9_7f4a_7c15 + 1);
    }
}

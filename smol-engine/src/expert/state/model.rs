//! Walks through all orders in which threads can take the lock, for small pools and runs.
//!
//! Threads do nothing to the state but under one lock, so an order of lock holders, with what
//! each read comes to, is all that can differ. In every state the slots, the ring and the queue
//! must agree; what a run computes with must be what it asked for, and stay so until it lets go;
//! and as long as a run has not ended some thread must be able to go on: a thread that waits does
//! so until it is woken as [`Shared::unlock`](crate::expert::pager) wakes.

use super::*;
use crate::expert::Scope;
use crate::expert::plan::{LayerPlan, PoolPlan};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use xxhash_rust::xxh3::xxh3_128;

/// What a thread of a run does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Want(usize, &'static [u32]),
    Begin(usize, usize, &'static [u32]),
    Wait(usize),
    Done(usize),
    End,
    Predict(usize, &'static [u32]),
    Warm(usize, &'static [u32]),
    /// Slots of each pool.
    Resize(&'static [usize]),
    /// A file is not what it was.
    Break,
}
use Step::*;

/// A thread with a script.
#[derive(Debug, Clone)]
struct Actor {
    run: usize,
    script: Vec<Step>,
    next: usize,
    parked: bool,
    /// Whether it may be stopped while it waits.
    may_stop: bool,
    /// By index of the product: the region that it computes with.
    uses: BTreeMap<usize, u32>,
    product: (usize, usize, &'static [u32]),
}

#[derive(Debug, Clone)]
enum Reader {
    Awake,
    Parked,
    Reading(Job<u32>),
}

#[derive(Clone)]
struct World {
    state: State<u32>,
    actors: Vec<Actor>,
    readers: Vec<Reader>,
    /// Reads that may still fail.
    faults: usize,
    /// Of each region: the expert and tensor that it holds.
    contents: BTreeMap<u32, (u32, u8)>,
    regions: u32,
    tensors: usize,
}

/// One lock holder.
#[derive(Debug, Clone, Copy)]
enum Move {
    Actor(usize),
    Stop(usize),
    Take(usize),
    Finish(usize, bool),
}

/// What is walked through.
struct Setup {
    scope: Scope,
    /// Experts of each layer.
    layers: &'static [u32],
    tensors: usize,
    /// Slots of each pool.
    slots: &'static [usize],
    ring: usize,
    readers: usize,
    faults: usize,
    may_stop: bool,
    scripts: Vec<Vec<Step>>,
}

/// Returns the steps of computing one layer, each expert in turn.
fn layer(layer: usize, tensors: usize, experts: &'static [u32]) -> Vec<Step> {
    let product = |tensor| {
        let items = (0..experts.len()).flat_map(|index| [Wait(index), Done(index)]);
        std::iter::once(Begin(layer, tensor, experts)).chain(items)
    };
    (0..tensors).flat_map(product).collect()
}

impl World {
    fn new(setup: &Setup) -> Self {
        let is_global = setup.scope == Scope::Global;
        let sums = setup.layers.iter().scan(0, |sum, experts| {
            *sum += experts;
            Some(*sum - experts)
        });
        let layers =
            setup.layers.iter().zip(sums).enumerate().map(|(number, (&experts, first))| {
                LayerPlan {
                    pool: if is_global { 0 } else { number },
                    first_key: if is_global { first } else { 0 },
                    first,
                    experts,
                    used: 1,
                    tensors: setup.tensors,
                }
            });
        let all = setup.layers.iter().sum::<u32>() as usize;
        let pool = |keys| PoolPlan {
            rooms: vec![1; setup.tensors],
            slot: setup.tensors as u64,
            keys,
            floor: 1,
            layers: 1,
        };
        let pools = if is_global {
            vec![pool(all)]
        } else {
            setup.layers.iter().map(|&experts| pool(experts as usize)).collect()
        };
        let plan = Plan {
            layers: layers.collect(),
            pools,
            alignment: 1,
            readers: setup.readers,
            ring: setup.ring,
            ring_room: 1,
            bounce_room: 0,
            second_room: 0,
        };
        let residency = Arc::new(Residency::new(all as u32));
        let ring = setup.ring as u32;
        let state = State::new(Arc::new(plan), Policy::Lru, &residency, 0..ring);
        let actor = |(run, script): (usize, &Vec<Step>)| Actor {
            run,
            script: script.clone(),
            next: 0,
            parked: false,
            may_stop: setup.may_stop,
            uses: BTreeMap::new(),
            product: (0, 0, &[]),
        };
        let mut world = Self {
            state,
            actors: setup.scripts.iter().enumerate().map(actor).collect(),
            readers: vec![Reader::Awake; setup.readers],
            faults: setup.faults,
            contents: BTreeMap::new(),
            regions: ring,
            tensors: setup.tensors,
        };
        world.resize(setup.slots);
        world
    }

    fn resize(&mut self, slots: &[usize]) {
        self.state.set_capacities(slots);
        for (number, &slots) in slots.iter().enumerate() {
            for _ in self.state.pools[number].committed()..slots {
                let regions = (self.regions..).take(self.tensors).collect();
                self.regions += self.tensors as u32;
                self.state.pools[number].commit(regions);
            }
        }
    }

    fn fork(&self) -> Self {
        let mut world = self.clone();
        let experts = world.state.plan.layers.iter().map(|layer| layer.experts).sum();
        let residency = Arc::new(Residency::new(experts));
        let old = world.state.pools[0].residency();
        (0..experts).for_each(|number| residency.set(number, old.get(number)));
        for pool in &mut world.state.pools {
            pool.set_residency(&residency);
        }
        world
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (number, actor) in self.actors.iter().enumerate() {
            if actor.next < actor.script.len() {
                if !actor.parked {
                    moves.push(Move::Actor(number));
                } else if actor.may_stop {
                    moves.push(Move::Stop(number));
                }
            }
        }
        let mut awake = false;
        for (number, reader) in self.readers.iter().enumerate() {
            match reader {
                // Readers are all alike: which of them comes first makes no difference.
                Reader::Awake if !awake => {
                    awake = true;
                    moves.push(Move::Take(number));
                }
                Reader::Reading(_) => {
                    moves.push(Move::Finish(number, true));
                    if self.faults > 0 {
                        moves.push(Move::Finish(number, false));
                    }
                }
                _ => {}
            }
        }
        moves
    }

    fn apply(&mut self, step: Move) {
        match step {
            Move::Actor(number) => self.act(number),
            Move::Stop(number) => {
                self.state.stop(self.actors[number].run);
                self.actors[number].may_stop = false;
                // The thread that asks whether to stop looks again without being woken.
                self.actors[number].parked = false;
            }
            Move::Take(number) => {
                self.readers[number] = match self.state.next_job() {
                    None => Reader::Parked,
                    Some(job) => {
                        let used = self
                            .actors
                            .iter()
                            .any(|actor| actor.uses.values().any(|&region| region == job.region));
                        assert!(!used, "a run still computes with what is read into");
                        self.contents.remove(&job.region);
                        Reader::Reading(job)
                    }
                };
            }
            Move::Finish(number, good) => {
                let reader = std::mem::replace(&mut self.readers[number], Reader::Awake);
                let Reader::Reading(job) = reader else { unreachable!() };
                let result = if good {
                    self.contents.insert(job.region, (job.name.number, job.tensor));
                    Ok(1)
                } else {
                    self.faults -= 1;
                    Err(Error::Request("a fault".to_owned()))
                };
                self.state.finish(job, result);
            }
        }
        self.wake();
        for region in self.state.take_freed() {
            let region = region.expect("nobody reads into what is given back");
            assert!(
                self.actors.iter().all(|actor| actor.uses.values().all(|&used| used != region))
            );
            self.contents.remove(&region);
        }
        self.check();
    }

    /// Does what the pager does when it gives the lock back.
    fn wake(&mut self) {
        let wake = self.state.take_wake();
        let parked = |reader: &&mut Reader| matches!(reader, Reader::Parked);
        let idle = self.readers.iter().filter(|reader| matches!(reader, Reader::Parked)).count();
        let woken = match wake.reads.min(idle) {
            0 => 0,
            1 => 1,
            _ => idle,
        };
        for reader in self.readers.iter_mut().filter(parked).take(woken) {
            *reader = Reader::Awake;
        }
        if wake.waiters {
            for actor in &mut self.actors {
                actor.parked = false;
            }
        }
    }

    fn act(&mut self, number: usize) {
        let actor = &mut self.actors[number];
        let (run, step) = (actor.run, actor.script[actor.next]);
        actor.next += 1;
        match step {
            Want(layer, experts) => {
                if actor.product.0 != layer {
                    actor.uses.clear();
                }
                self.state.want(run, layer, experts);
            }
            Begin(layer, tensor, experts) => {
                actor.uses.clear();
                actor.product = (layer, tensor, experts);
                self.state.begin(run, layer, tensor, experts, &vec![1; experts.len()]);
            }
            Wait(index) => match self.state.poll(run, index) {
                Poll::Pending => {
                    actor.next -= 1;
                    actor.parked = true;
                }
                Poll::Ready(&region, name, tensor) => {
                    let (layer, asked, experts) = actor.product;
                    assert_eq!((name.layer as usize, name.expert), (layer, experts[index]));
                    assert_eq!(tensor as usize, asked);
                    assert_eq!(self.contents.get(&region), Some(&(name.number, tensor)));
                    actor.uses.insert(index, region);
                }
                Poll::Failed => {
                    actor.next = actor.script.len() - 1;
                    assert_eq!(actor.script[actor.next], End);
                }
            },
            Done(index) => {
                actor.uses.remove(&index);
                self.state.done(run, index);
            }
            End => {
                actor.uses.clear();
                // A failure is none of the model's business: all others are found elsewhere.
                let _ = self.state.end(run);
            }
            Predict(layer, experts) => self.state.predict(layer, experts),
            Warm(layer, experts) => {
                self.state.warm(experts.iter().map(|&expert| (layer, expert)));
            }
            Resize(slots) => self.resize(slots),
            Break => self.state.break_all(&Error::Stopped),
        }
    }

    fn check(&self) {
        for pool in &self.state.pools {
            pool.check(&self.state.queue);
        }
        self.state.ring.check();
        self.check_readers();
        let reading = self.readers.iter().filter_map(|reader| match reader {
            Reader::Reading(job) => Some(job),
            _ => None,
        });
        let ahead = reading.clone().filter(|job| job.urgency == Urgency::Predicted).count();
        assert_eq!(ahead, self.state.reading_ahead);
        let pools = self.state.pools.iter().flat_map(|pool| pool.regions());
        let all = pools.chain(self.state.ring.regions()).chain(reading.map(|job| &job.region));
        let mut seen = HashSet::new();
        for region in all {
            assert!(seen.insert(*region), "region {region} is in two places");
        }
        for actor in &self.actors {
            if let (true, Some(&Wait(index))) = (actor.parked, actor.script.get(actor.next)) {
                let poll = self.state.poll(actor.run, index);
                assert!(matches!(poll, Poll::Pending), "{actor:?} should have been woken");
            }
            for (index, region) in &actor.uses {
                let (layer, tensor, experts) = actor.product;
                let number = self.state.name(layer, experts[*index]).number;
                assert_eq!(self.contents.get(region), Some(&(number, tensor as u8)));
            }
        }
    }

    /// Checks that no reader sleeps while there is something for it to do.
    fn check_readers(&self) {
        let count = |is: fn(&&Reader) -> bool| self.readers.iter().filter(is).count();
        let awake = count(|reader| matches!(reader, Reader::Awake));
        if count(|reader| matches!(reader, Reader::Parked)) > 0 {
            let needed = self.state.queue.iter().filter(|read| read.0 == Urgency::Needed).count();
            assert!(awake >= needed, "{needed} reads are needed, {awake} readers awake");
            let may_read_ahead = self.state.reading_ahead < self.state.most_ahead;
            assert!(awake > 0 || !may_read_ahead || self.state.queue.iter().count() == 0);
        }
    }

    /// Checks what must be true once nothing can move.
    fn check_end(&self) {
        for actor in &self.actors {
            assert_eq!(actor.next, actor.script.len(), "{actor:?} is locked up");
        }
        assert!(self.readers.iter().all(|reader| matches!(reader, Reader::Parked)));
        assert_eq!(self.state.queue.iter().count(), 0, "reads are left behind");
        assert!(self.state.pools.iter().all(|pool| !pool.is_held()));
        assert!(self.state.pools.iter().all(|pool| !pool.is_over()));
        assert_eq!(self.state.ring.in_use(), 0);
        assert!(self.state.turns.is_empty() && self.state.runs.is_empty());
    }

    fn fingerprint(&self) -> u128 {
        let mut text = String::new();
        let state = &self.state;
        state.pools.iter().for_each(|pool| pool.fingerprint(&mut text));
        state.ring.fingerprint(&mut text);
        for (urgency, epoch, stage, job) in state.queue.iter() {
            write!(text, "{urgency:?}{}{stage}{job:?}", state.epoch - epoch).unwrap();
        }
        for run in &state.runs {
            write!(text, "{run:?}{}", state.epoch - run.epoch).unwrap();
        }
        write!(text, "{:?}{}", state.turns, self.faults).unwrap();
        for actor in &self.actors {
            write!(text, "<{} {} {}>", actor.next, actor.parked, actor.may_stop).unwrap();
        }
        let mut readers: Vec<_> = self
            .readers
            .iter()
            .map(|reader| match reader {
                Reader::Awake => "awake".to_owned(),
                Reader::Parked => "parked".to_owned(),
                Reader::Reading(job) => format!("{:?}{:?}{:?}", job.target, job.name, job.urgency),
            })
            .collect();
        readers.sort();
        write!(text, "{readers:?}").unwrap();
        xxh3_128(text.as_bytes())
    }
}

/// Walks through all states and returns their number.
fn walk(setup: &Setup) -> usize {
    let start = World::new(setup);
    let mut seen = HashSet::from([start.fingerprint()]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let moves = world.moves();
        if moves.is_empty() {
            world.check_end();
        }
        for step in moves {
            let mut next = world.fork();
            next.apply(step);
            if seen.insert(next.fingerprint()) {
                open.push(next);
            }
        }
    }
    seen.len()
}

fn setup(scripts: Vec<Vec<Step>>) -> Setup {
    Setup {
        scope: Scope::Layer,
        layers: &[4],
        tensors: 2,
        slots: &[1],
        ring: 2,
        readers: 1,
        faults: 0,
        may_stop: false,
        scripts,
    }
}

fn script(parts: &[&[Step]]) -> Vec<Step> {
    let mut script = parts.concat();
    script.push(End);
    script
}

#[test]
fn two_runs_stream_at_once() {
    let scripts = vec![
        script(&[&layer(0, 2, &[0, 1, 2, 3])]),
        script(&[&[Want(0, &[2, 1])], &layer(0, 2, &[2, 1, 0])]),
    ];
    let states = walk(&Setup { readers: 2, ..setup(scripts) });
    assert!(states > 1000, "{states}");
}

#[test]
fn threads_that_compute_with_several_experts_at_once() {
    let several = [Begin(0, 0, &[0, 1, 2]), Wait(1), Wait(0), Done(0), Wait(2), Done(1), Done(2)];
    let scripts = vec![
        script(&[&several, &[Begin(0, 1, &[0, 1, 2]), Wait(0)]]),
        script(&[&[Want(0, &[3])], &layer(0, 2, &[3, 0])]),
    ];
    walk(&Setup { slots: &[2], readers: 2, ..setup(scripts) });
}

#[test]
fn reads_fail_and_runs_are_stopped() {
    let scripts = vec![
        script(&[&[Want(0, &[0, 1])], &layer(0, 2, &[0, 1]), &layer(0, 2, &[2])]),
        script(&[&layer(0, 2, &[1, 3])]),
    ];
    walk(&Setup { faults: 1, may_stop: true, ..setup(scripts) });
}

#[test]
fn predictions_come_true_or_do_not() {
    let run = [&[Want(0, &[0])][..], &layer(0, 2, &[0, 1]), &layer(1, 2, &[2, 0])].concat();
    let scripts = vec![
        script(&[&run]),
        vec![Predict(1, &[2, 1]), Predict(0, &[1, 3]), Predict(1, &[3, 2]), Predict(0, &[2])],
    ];
    let setup = Setup { layers: &[4, 4], slots: &[2, 2], readers: 2, faults: 1, ..setup(scripts) };
    walk(&setup);
}

#[test]
fn layers_share_a_pool() {
    let scripts = vec![
        script(&[&layer(0, 1, &[0, 1]), &layer(1, 1, &[1, 0])]),
        script(&[&layer(1, 1, &[1, 2]), &[Want(0, &[0])], &layer(0, 1, &[0])]),
        vec![Predict(0, &[2]), Predict(1, &[2])],
    ];
    let setup = Setup {
        scope: Scope::Global,
        layers: &[3, 3],
        tensors: 1,
        slots: &[2],
        readers: 2,
        ..setup(scripts)
    };
    walk(&setup);
}

#[test]
fn the_pool_shrinks_and_grows() {
    let scripts = vec![
        script(&[&layer(0, 2, &[0, 1]), &layer(0, 2, &[2, 0])]),
        script(&[&[Want(0, &[1])], &layer(0, 2, &[1, 3])]),
        vec![Resize(&[1]), Resize(&[3]), Predict(0, &[3])],
    ];
    walk(&Setup { slots: &[2], ..setup(scripts) });
}

#[test]
fn reads_to_warm_up_fail_and_are_overtaken() {
    let scripts = vec![
        script(&[&layer(0, 2, &[0, 1]), &layer(1, 2, &[0])]),
        vec![Warm(0, &[1, 2, 3]), Predict(0, &[3]), Warm(1, &[0]), Resize(&[1, 1])],
    ];
    let setup = Setup { layers: &[4, 2], slots: &[3, 1], readers: 2, faults: 1, ..setup(scripts) };
    walk(&setup);
}

#[test]
fn all_runs_end_when_a_file_has_changed() {
    let scripts = vec![
        script(&[&layer(0, 2, &[0, 1, 2])]),
        script(&[&[Want(0, &[2])], &layer(0, 2, &[2, 3])]),
        vec![Predict(0, &[3]), Break],
    ];
    walk(&Setup { readers: 2, ..setup(scripts) });
}

#[test]
fn a_run_that_begins_anew_lets_go() {
    // Items that are not done when the next product begins, and a layer left half done.
    let scripts = vec![
        script(&[
            &[Begin(0, 0, &[0, 1, 2]), Wait(0), Begin(0, 0, &[1, 2]), Wait(0), Wait(1)],
            &[Want(1, &[0, 1]), Begin(1, 1, &[1]), Wait(0), Done(0)],
        ]),
        script(&[&layer(0, 2, &[2, 3])]),
    ];
    walk(&Setup { layers: &[4, 2], slots: &[1, 1], readers: 2, ..setup(scripts) });
}

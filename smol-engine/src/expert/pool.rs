//! Slots of one pool: what each holds, what is read into it, who holds on to it.

use super::plan::PoolPlan;
use super::policy::{Policy, Ranking};
use super::residency::Residency;
use crate::io::queue::{Queue, Ticket, Urgency};
use std::sync::Arc;

/// Where a read goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// The region of a tensor in a slot.
    Slot {
        /// Number of the pool.
        pool: u32,
        /// Number of the slot in it.
        slot: u32,
        /// Number of the tensor in the layer.
        tensor: u8,
    },
    /// A ring buffer.
    Ring {
        /// Number of the buffer.
        buffer: u32,
    },
}

/// An expert of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) layer: u32,
    pub(super) expert: u32,
    /// Number among the experts of all layers.
    pub(super) number: u32,
    /// Key in the pool.
    pub(super) key: u32,
}

/// Room for one expert. `R` is a tensor's region of memory.
///
/// A slot is *free* (no name), or *in use*: its name is in the pool's map, tensors are queued,
/// being read or ready. A *doomed* slot has lost its place in the map, as a read failed or
/// nobody needs it any more, and becomes free once no thread reads into it and no run holds it.
/// A *vacant* slot has no memory.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct Slot<R> {
    name: Option<Name>,
    /// Of each tensor; `None` while a thread reads into it. Empty: vacant.
    regions: Vec<Option<R>>,
    /// Of each tensor: its read, if that waits for a thread.
    tickets: Vec<Option<Ticket>>,
    /// Bits of the tensors that are being read.
    reading: u8,
    /// Bits of the tensors that are ready.
    ready: u8,
    /// Runs that hold it.
    holds: u32,
    /// Read ahead and not chosen by a router so far.
    ahead: bool,
    /// Read ahead for a layer that is still to come.
    due: bool,
    /// How long runs had waited when one chose it whose reads ahead were not complete.
    claimed: Option<u64>,
    doomed: bool,
}

impl<R> Slot<R> {
    fn may_go(&self) -> bool {
        self.holds == 0 && self.reading == 0
    }
}

/// What became of an expert that was read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    /// It was in the pool when it was chosen.
    Useful,
    /// It was chosen while it was being read, or before.
    Late,
}

/// What [`Pool::hold`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Whether all tensors were ready.
    pub(super) ready: bool,
    /// What became of it if it was read ahead.
    pub(super) ahead: Option<Ahead>,
    /// Reads that became more urgent.
    pub(super) sooner: usize,
}

/// Slots of one pool.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct Pool<R> {
    number: u32,
    tensors: usize,
    slots: Vec<Slot<R>>,
    /// Of each key: its slot.
    map: Vec<Option<u32>>,
    free: Vec<u32>,
    /// Slots that may have memory.
    capacity: usize,
    /// Slots that have memory.
    committed: usize,
    /// Slots read ahead for layers that are still to come.
    due: usize,
    ranking: Ranking,
    residency: Arc<Residency>,
    /// Memory that is to go back to the system once the lock is free.
    freed: Vec<Option<R>>,
    /// Experts read ahead that nobody chose.
    pub(super) wasted: u64,
}

impl<R> Pool<R> {
    pub(super) fn new(
        number: usize,
        plan: &PoolPlan,
        policy: Policy,
        residency: Arc<Residency>,
    ) -> Self {
        Self {
            number: number as u32,
            tensors: plan.rooms.len(),
            slots: Vec::new(),
            map: vec![None; plan.keys],
            free: Vec::new(),
            capacity: 0,
            committed: 0,
            due: 0,
            ranking: Ranking::new(policy, plan.keys, 0),
            residency,
            freed: Vec::new(),
            wasted: 0,
        }
    }

    pub(super) fn committed(&self) -> usize {
        self.committed
    }

    /// Returns whether more slots have memory than may.
    pub(super) fn is_over(&self) -> bool {
        self.committed > self.capacity
    }

    /// Returns the number of experts read ahead for layers that are still to come.
    pub(super) fn due(&self) -> usize {
        self.due
    }

    pub(super) fn ranking(&mut self) -> &mut Ranking {
        &mut self.ranking
    }

    /// Returns the slot that an expert has or gets.
    pub(super) fn find(&self, key: u32) -> Option<u32> {
        self.map[key as usize]
    }

    /// Gives an expert a slot and queues the reads of all its tensors. `None`: all are in use.
    ///
    /// Those read ahead push out others only as long as they are less than half of the pool, and
    /// leave it last until their layer has come.
    pub(super) fn insert(
        &mut self,
        name: Name,
        urgency: Urgency,
        epoch: u64,
        queue: &mut Queue<Target>,
    ) -> Option<u32> {
        debug_assert_eq!(self.map[name.key as usize], None);
        let ahead = urgency == Urgency::Predicted;
        if self.free.is_empty() {
            if ahead && !self.may_guess() {
                return None;
            }
            // A guess does not push out an earlier one that is still to come true.
            let victim = if ahead { self.victim_not_due() } else { self.victim() }?;
            self.vacate(victim, queue);
        }
        let number = self.fill(name, urgency, epoch, queue)?;
        let slot = &mut self.slots[number as usize];
        (slot.ahead, slot.due) = (ahead, ahead);
        self.due += usize::from(ahead);
        Some(number)
    }

    /// Returns whether one more expert may push out others because it is predicted.
    fn may_guess(&self) -> bool {
        self.due < (self.capacity / 2).max(1)
    }

    /// Notes that an expert of the pool is predicted again.
    pub(super) fn expect(&mut self, slot: u32) {
        let may_guess = self.may_guess();
        let slot = &mut self.slots[slot as usize];
        if slot.ahead && !slot.due && may_guess {
            slot.due = true;
            self.due += 1;
        }
    }

    /// The slot whose expert can best be spared: those that are still to come true go last,
    /// although no use speaks for them so far.
    fn victim(&self) -> Option<u32> {
        self.victim_not_due().or_else(|| self.victim_of(Slot::may_go))
    }

    fn victim_not_due(&self) -> Option<u32> {
        self.victim_of(|slot| slot.may_go() && !slot.due)
    }

    fn victim_of(&self, may_go: impl Fn(&Slot<R>) -> bool) -> Option<u32> {
        let slot_of = |key: u32| self.map[key as usize];
        let may_go = |key| slot_of(key).is_some_and(|slot: u32| may_go(&self.slots[slot as usize]));
        self.ranking.victim(may_go).and_then(slot_of)
    }

    /// Gives an expert a free slot, if there is one, and queues the reads of all its tensors after
    /// all that is needed or predicted, in this `order`. It counts as chosen. Returns whether it
    /// has a slot.
    pub(super) fn warm(&mut self, name: Name, order: u32, queue: &mut Queue<Target>) -> bool {
        debug_assert_eq!(self.map[name.key as usize], None);
        let epoch = u64::MAX - u64::from(u32::MAX - order);
        self.committed <= self.capacity
            && self.fill(name, Urgency::Predicted, epoch, queue).is_some()
    }

    /// Puts an expert into a free slot.
    fn fill(
        &mut self,
        name: Name,
        urgency: Urgency,
        epoch: u64,
        queue: &mut Queue<Target>,
    ) -> Option<u32> {
        let number = self.free.pop()?;
        let slot = &mut self.slots[number as usize];
        slot.name = Some(name);
        slot.claimed = None;
        self.map[name.key as usize] = Some(number);
        self.ranking.insert(name.key);
        for tensor in 0..self.tensors {
            let target = Target::Slot { pool: self.number, slot: number, tensor: tensor as u8 };
            slot.tickets[tensor] = Some(queue.push(urgency, epoch, tensor as u8, target));
        }
        Some(number)
    }

    /// Holds a slot for a run that needs it in `epoch`.
    pub(super) fn hold(&mut self, slot: u32, epoch: u64, queue: &mut Queue<Target>) -> Found {
        let all = self.all_ready();
        let slot = &mut self.slots[slot as usize];
        debug_assert!(!slot.doomed && slot.name.is_some());
        slot.holds += 1;
        let ready = slot.ready == all;
        let ahead = std::mem::take(&mut slot.ahead);
        self.due -= usize::from(std::mem::take(&mut slot.due));
        let ahead = ahead.then_some(if ready { Ahead::Useful } else { Ahead::Late });
        let mut sooner = 0;
        for ticket in slot.tickets.iter_mut().flatten() {
            let (new, is_sooner) = queue.promote(*ticket, epoch);
            *ticket = new;
            sooner += usize::from(is_sooner);
        }
        Found { ready, ahead, sooner }
    }

    /// Ends a run's hold. An expert that has not come yet and that nobody holds is given up.
    pub(super) fn unhold(&mut self, number: u32, queue: &mut Queue<Target>) {
        let all = self.all_ready();
        let slot = &mut self.slots[number as usize];
        debug_assert!(slot.holds > 0);
        slot.holds -= 1;
        if slot.holds > 0 {
            return;
        }
        if slot.doomed || slot.ready != all {
            self.vacate(number, queue);
        }
        self.trim(queue);
    }

    /// Notes how long runs had `waited` when one chose an expert whose reads ahead were not
    /// complete.
    pub(super) fn claim(&mut self, slot: u32, waited: u64) {
        self.slots[slot as usize].claimed.get_or_insert(waited);
    }

    /// Returns what [`claim`](Self::claim) has noted.
    pub(super) fn claimed(&self, slot: u32) -> Option<u64> {
        self.slots[slot as usize].claimed
    }

    /// Gives up an expert that is read ahead, unless it has been chosen or has come; if it has
    /// come, it is one among the others from now on.
    pub(super) fn cancel(&mut self, number: u32, queue: &mut Queue<Target>) {
        let all = self.all_ready();
        let slot = &mut self.slots[number as usize];
        self.due -= usize::from(std::mem::take(&mut slot.due));
        if slot.ahead && slot.ready != all {
            self.vacate(number, queue);
            self.trim(queue);
        }
    }

    /// Takes the region of a tensor out for a thread to read into.
    pub(super) fn start(&mut self, slot: u32, tensor: u8) -> Option<(Name, R)> {
        let slot = &mut self.slots[slot as usize];
        slot.tickets[tensor as usize] = None;
        slot.reading |= 1 << tensor;
        Some((slot.name?, slot.regions[tensor as usize].take()?))
    }

    /// Returns a tensor's region after a read. Returns whether the read came to nothing and its
    /// slot has to be given up by those who hold it.
    pub(super) fn finish(
        &mut self,
        number: u32,
        tensor: u8,
        region: R,
        good: bool,
        queue: &mut Queue<Target>,
    ) -> bool {
        let all = self.all_ready();
        let slot = &mut self.slots[number as usize];
        slot.reading &= !(1 << tensor);
        slot.regions[tensor as usize] = Some(region);
        if slot.doomed || !good {
            let failed = !slot.doomed;
            self.vacate(number, queue);
            self.trim(queue);
            return failed;
        }
        slot.ready |= 1 << tensor;
        if let (true, Some(name)) = (slot.ready == all, slot.name) {
            self.residency.set(name.number, true);
        }
        self.trim(queue);
        false
    }

    /// Returns a tensor's region once its weights have come.
    pub(super) fn ready(&self, slot: u32, tensor: u8) -> Option<&R> {
        let slot = &self.slots[slot as usize];
        let ready = slot.ready >> tensor & 1 == 1 && !slot.doomed;
        slot.regions[tensor as usize].as_ref().filter(|_| ready)
    }

    /// Takes a slot's expert out of the map, and frees the slot as soon as that can be.
    fn vacate(&mut self, number: u32, queue: &mut Queue<Target>) {
        let slot = &mut self.slots[number as usize];
        if !slot.doomed {
            slot.doomed = true;
            let touched = slot.ready != 0 || slot.reading != 0;
            for ticket in &mut slot.tickets {
                ticket.take().and_then(|ticket| queue.cancel(ticket));
            }
            self.due -= usize::from(std::mem::take(&mut slot.due));
            if std::mem::take(&mut slot.ahead) {
                self.wasted += u64::from(touched);
            }
            if let Some(name) = slot.name {
                self.map[name.key as usize] = None;
                self.ranking.remove(name.key);
                self.residency.set(name.number, false);
            }
        }
        if slot.may_go() {
            slot.name = None;
            slot.ready = 0;
            slot.doomed = false;
            self.free.push(number);
        }
    }

    /// Changes the number of slots. Those above it that are in use go as soon as they can.
    pub(super) fn set_capacity(&mut self, capacity: usize, queue: &mut Queue<Target>) {
        self.capacity = capacity;
        self.ranking.set_capacity(capacity);
        self.trim(queue);
    }

    /// Gives a new slot memory: one region for each tensor.
    pub(super) fn commit(&mut self, regions: Vec<R>) {
        debug_assert_eq!(regions.len(), self.tensors);
        let regions = regions.into_iter().map(Some).collect();
        let vacant = self.slots.iter().position(|slot| slot.regions.is_empty());
        let number = vacant.unwrap_or_else(|| {
            self.slots.push(Slot {
                name: None,
                regions: Vec::new(),
                tickets: vec![None; self.tensors],
                reading: 0,
                ready: 0,
                holds: 0,
                ahead: false,
                due: false,
                claimed: None,
                doomed: false,
            });
            self.slots.len() - 1
        });
        self.slots[number].regions = regions;
        self.free.push(number as u32);
        self.committed += 1;
    }

    /// Takes memory from slots until no more have any than may.
    fn trim(&mut self, queue: &mut Queue<Target>) {
        while self.committed > self.capacity {
            if let Some(number) = self.free.pop() {
                self.freed.append(&mut self.slots[number as usize].regions);
                self.committed -= 1;
                continue;
            }
            let Some(slot) = self.victim() else { return };
            self.vacate(slot, queue);
        }
    }

    /// Takes out memory that is to go back to the system.
    pub(super) fn take_freed(&mut self) -> Vec<Option<R>> {
        std::mem::take(&mut self.freed)
    }

    fn all_ready(&self) -> u8 {
        u8::MAX >> (8 - self.tensors)
    }
}

#[cfg(all(test, not(miri)))]
impl<R: std::fmt::Debug> Pool<R> {
    /// Checks what must be true whenever no thread is inside.
    pub(super) fn check(&self, queue: &Queue<Target>) {
        let all = self.all_ready();
        let mut committed = 0;
        for (number, slot) in self.slots.iter().enumerate() {
            committed += usize::from(!slot.regions.is_empty());
            let free = self.free.iter().filter(|&&free| free as usize == number).count();
            let mapped = slot.name.filter(|_| !slot.doomed);
            match slot.name {
                None => {
                    assert_eq!(free, usize::from(!slot.regions.is_empty()), "{number} {slot:?}");
                    assert!(slot.may_go() && slot.ready == 0 && !slot.ahead && !slot.doomed);
                    assert!(slot.regions.iter().all(Option::is_some));
                }
                Some(_) => assert_eq!(free, 0),
            }
            if let Some(name) = mapped {
                assert_eq!(self.map[name.key as usize], Some(number as u32));
                assert_eq!(self.residency.get(name.number), slot.ready == all);
            }
            assert!(!slot.doomed || !slot.may_go(), "a doomed slot that may go is free");
            assert!(slot.holds == 0 || !slot.ahead);
            assert!(slot.due <= slot.ahead, "{slot:?}");
            assert!(slot.due || !slot.ahead || slot.ready == all, "a guess that is over comes");
            for (tensor, region) in slot.regions.iter().enumerate() {
                let reading = slot.reading >> tensor & 1 == 1;
                let ready = slot.ready >> tensor & 1 == 1;
                let queued = slot.tickets[tensor].is_some();
                assert_eq!(region.is_none(), reading);
                let states = [reading, ready, queued].into_iter().filter(|&on| on).count();
                assert_eq!(states, usize::from(mapped.is_some()).max(states.min(1)), "{slot:?}");
                let target =
                    Target::Slot { pool: self.number, slot: number as u32, tensor: tensor as u8 };
                assert_eq!(
                    queue.iter().filter(|(.., job)| **job == target).count(),
                    usize::from(queued)
                );
            }
        }
        assert_eq!(committed, self.committed);
        assert_eq!(self.due, self.slots.iter().filter(|slot| slot.due).count());
        let named = self.slots.iter().filter(|slot| slot.name.is_some() && !slot.doomed).count();
        assert_eq!(self.map.iter().flatten().count(), named);
        let may_go = self.slots.iter().any(|slot| slot.name.is_some() && slot.may_go());
        assert!(self.committed <= self.capacity || !may_go, "it keeps more than it may");
    }

    pub(super) fn residency(&self) -> Arc<Residency> {
        Arc::clone(&self.residency)
    }

    /// Gives a copy of a pool bits of its own.
    pub(super) fn set_residency(&mut self, residency: &Arc<Residency>) {
        self.residency = Arc::clone(residency);
    }

    /// Returns the regions that no thread reads into.
    pub(super) fn regions(&self) -> impl Iterator<Item = &R> {
        self.slots.iter().flat_map(|slot| slot.regions.iter().flatten())
    }

    /// Returns whether any run holds any slot.
    pub(super) fn is_held(&self) -> bool {
        self.slots.iter().any(|slot| slot.holds > 0)
    }

    /// Writes all that later behaviour depends on.
    pub(super) fn fingerprint(&self, out: &mut String) {
        use std::fmt::Write as _;
        for slot in &self.slots {
            let key = slot.name.map(|name| name.key);
            write!(
                out,
                "[{key:?} {} {} {} {} {} {} {}]",
                slot.regions.len(),
                slot.reading,
                slot.ready,
                slot.holds,
                slot.ahead,
                slot.due,
                slot.doomed
            )
            .unwrap();
        }
        write!(out, "{:?}{}{:?}", self.free, self.capacity, self.ranking).unwrap();
    }
}

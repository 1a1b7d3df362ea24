//! Buffers for experts that find no place in the pool: one tensor of one expert each.

use super::pool::{Name, Target};
use crate::io::queue::{Queue, Ticket, Urgency};

/// What a buffer is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) run: usize,
    pub(super) name: Name,
    pub(super) tensor: u8,
}

#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
enum State {
    Free,
    Queued(Ticket),
    Reading,
    /// A thread reads into it for somebody who has gone.
    Abandoned,
    Ready,
    Failed,
}

#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
struct Buffer<R> {
    /// `None` while a thread reads into it.
    region: Option<R>,
    load: Option<Load>,
    state: State,
}

/// Ring of buffers, given out in the order in which runs need them.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct Ring<R> {
    buffers: Vec<Buffer<R>>,
    free: Vec<u32>,
}

impl<R> Ring<R> {
    pub(super) fn new(regions: impl IntoIterator<Item = R>) -> Self {
        let buffer = |region| Buffer { region: Some(region), load: None, state: State::Free };
        let buffers: Vec<_> = regions.into_iter().map(buffer).collect();
        Self { free: (0..buffers.len() as u32).rev().collect(), buffers }
    }

    /// Returns whether a buffer is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a free buffer and queues the read into it.
    pub(super) fn insert(
        &mut self,
        load: Load,
        epoch: u64,
        queue: &mut Queue<Target>,
    ) -> Option<u32> {
        let number = self.free.pop()?;
        let target = Target::Ring { buffer: number };
        let ticket = queue.push(Urgency::Needed, epoch, load.tensor, target);
        let buffer = &mut self.buffers[number as usize];
        buffer.load = Some(load);
        buffer.state = State::Queued(ticket);
        Some(number)
    }

    /// Takes a buffer's region out for a thread to read into.
    pub(super) fn start(&mut self, number: u32) -> Option<(Load, R)> {
        let buffer = &mut self.buffers[number as usize];
        buffer.state = State::Reading;
        Some((buffer.load?, buffer.region.take()?))
    }

    /// Returns a buffer's region after a read, and the load if somebody waits for it.
    pub(super) fn finish(&mut self, number: u32, region: R, good: bool) -> Option<Load> {
        let buffer = &mut self.buffers[number as usize];
        buffer.region = Some(region);
        if matches!(buffer.state, State::Abandoned) {
            self.free(number);
            return None;
        }
        buffer.state = if good { State::Ready } else { State::Failed };
        buffer.load
    }

    /// Returns a buffer's region once its weights have come.
    pub(super) fn ready(&self, number: u32) -> Option<&R> {
        let buffer = &self.buffers[number as usize];
        buffer.region.as_ref().filter(|_| matches!(buffer.state, State::Ready))
    }

    /// Lets go of a buffer, whatever has become of its read.
    pub(super) fn release(&mut self, number: u32, queue: &mut Queue<Target>) {
        let buffer = &mut self.buffers[number as usize];
        match buffer.state {
            State::Queued(ticket) => {
                queue.cancel(ticket);
                self.free(number);
            }
            State::Reading => buffer.state = State::Abandoned,
            State::Ready | State::Failed => self.free(number),
            State::Free | State::Abandoned => debug_assert!(false, "it is nobody's"),
        }
    }

    fn free(&mut self, number: u32) {
        let buffer = &mut self.buffers[number as usize];
        buffer.load = None;
        buffer.state = State::Free;
        self.free.push(number);
    }
}

#[cfg(all(test, not(miri)))]
impl<R> Ring<R> {
    /// Checks what must be true whenever no thread is inside.
    pub(super) fn check(&self) {
        for (number, buffer) in self.buffers.iter().enumerate() {
            let free = self.free.iter().filter(|&&free| free as usize == number).count();
            let is_free = matches!(buffer.state, State::Free);
            assert_eq!(free, usize::from(is_free));
            assert_eq!(buffer.load.is_none(), is_free);
            let reading = matches!(buffer.state, State::Reading | State::Abandoned);
            assert_eq!(buffer.region.is_none(), reading);
        }
    }

    /// Returns the number of buffers in use.
    pub(super) fn in_use(&self) -> usize {
        self.buffers.len() - self.free.len()
    }

    /// Returns the regions that no thread reads into.
    pub(super) fn regions(&self) -> impl Iterator<Item = &R> {
        self.buffers.iter().filter_map(|buffer| buffer.region.as_ref())
    }

    /// Writes all that later behaviour depends on.
    pub(super) fn fingerprint(&self, out: &mut String) {
        use std::fmt::Write as _;
        for buffer in &self.buffers {
            let state = match buffer.state {
                State::Free => 'f',
                State::Queued(_) => 'q',
                State::Reading => 'r',
                State::Abandoned => 'a',
                State::Ready => 'd',
                State::Failed => 'x',
            };
            let load = buffer.load.map(|load| (load.run, load.name.number, load.tensor));
            write!(out, "({state}{load:?})").unwrap();
        }
        write!(out, "{:?}", self.free).unwrap();
    }
}

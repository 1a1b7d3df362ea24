//! The pool of one who knows the future.

use super::steps::Step;
use super::{Missing, Replay};
use std::collections::BTreeSet;

/// Keeps the keys that are needed soonest (Belady 1966).
///
/// All keys of a step are in the pool together, as for the pager; of a step that needs more than
/// fit, those stay that are needed again soonest.
#[derive(Debug)]
pub(super) struct Optimum {
    capacity: usize,
    /// Of each key in the pool: the next step that needs it.
    next: Vec<Option<u32>>,
    /// The keys in the pool, soonest first.
    pool: BTreeSet<(u32, u32)>,
}

impl Optimum {
    pub(super) fn new(keys: usize, capacity: usize) -> Self {
        Self { capacity, next: vec![None; keys], pool: BTreeSet::new() }
    }

    fn drop_last(&mut self) {
        if let Some((_, key)) = self.pool.pop_last() {
            self.next[key as usize] = None;
        }
    }
}

impl Replay for Optimum {
    fn step(&mut self, step: &Step<'_>) -> Missing {
        let mut missing = Missing::default();
        for &key in step.keys {
            match self.next[key as usize].take() {
                Some(next) => assert!(self.pool.remove(&(next, key)), "it is in the pool"),
                None => missing.misses += 1,
            }
        }
        missing.streamed = step.keys.len().saturating_sub(self.capacity) as u64;
        if missing.streamed == 0 {
            while self.pool.len() + step.keys.len() > self.capacity {
                self.drop_last();
            }
        }
        for (&key, &next) in step.keys.iter().zip(step.next) {
            self.next[key as usize] = Some(next);
            self.pool.insert((next, key));
        }
        while self.pool.len() > self.capacity {
            self.drop_last();
        }
        missing
    }

    fn end_graph(&mut self) {}
}

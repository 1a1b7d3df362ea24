//! Plays a trace back with other pools and policies, and with the best that could be.
//!
//! The [`Ranking`] and the [`Pools`] are the pager's own, and are used in the same order: all
//! experts of a layer are touched, those in the pool are held, then each of the others gets a
//! free place or that of a victim, and is read past the pool if there is none.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use smol_engine::expert::simulate::{Simulation, Strategy};
//! use smol_engine::expert::trace::{Graph, LayerHeader, TensorSize, Trace, TraceHeader};
//! use smol_engine::expert::{Policy, Scope};
//!
//! let size = TensorSize { file: 1 << 20, memory: 1 << 20 };
//! let layer = LayerHeader { block: 0, experts: 4, used: 1, tensors: vec![size] };
//! let header = TraceHeader { model: "moe".into(), layers: vec![layer] };
//! let graphs = [0, 1, 2, 0, 1, 2].map(|expert| {
//!     let mut graph = Graph::default();
//!     graph.push(0, 1, &[expert]);
//!     graph
//! });
//! let trace = Trace { header, graphs: graphs.to_vec(), damage: None };
//!
//! let simulation = Simulation::new(&trace, Scope::Layer);
//! let lru = simulation.run(Strategy::Policy(Policy::Lru), 2);
//! assert_eq!(lru.generation.misses, 6);
//! let best = simulation.run(Strategy::Optimum, 2);
//! assert_eq!(best.generation.misses, 4);
//! # Ok(())
//! # }
//! ```

mod optimum;
mod speed;
mod steps;

pub use speed::{Speed, recorded_compute, recorded_flash};

use super::policy::{Policy, Ranking};
use super::scope::{Pools, Scope};
use super::trace::{Trace, TraceHeader};
use optimum::Optimum;
use std::fmt;
use std::str::FromStr;
use steps::{Step, Steps};

/// How the expert that leaves the pool is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// By one of the pager's policies.
    Policy(Policy),
    /// By looking ahead in the trace: the expert that is not needed for the longest time goes
    /// (MIN, Belady 1966). No policy misses less.
    Optimum,
}

impl Strategy {
    /// All policies, and the optimum.
    pub fn all() -> impl Iterator<Item = Self> {
        Policy::ALL.into_iter().map(Self::Policy).chain([Self::Optimum])
    }

    /// Returns the name, as [`FromStr`] reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy(policy) => policy.name(),
            Self::Optimum => "belady",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No strategy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{0}`: it must be lru, lfu, decayed, slru or belady")]
pub struct UnknownStrategy(String);

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        let found = Self::all().find(|strategy| strategy.name() == name);
        found.ok_or_else(|| UnknownStrategy(name.to_owned()))
    }
}

/// What a simulation counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Graphs of one token.
    pub generation: Tally,
    /// Graphs of more than one token.
    pub prompts: Tally,
}

/// Sums over some graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Tokens.
    pub tokens: u64,
    /// Experts chosen, counted for each token and layer.
    pub choices: u64,
    /// Experts that were not in the pool; once for each graph, however many of its tokens chose
    /// them.
    pub misses: u64,
    /// Misses for which the pool had no room.
    pub streamed: u64,
    /// Bytes read for the misses.
    pub bytes: u64,
}

impl Tally {
    /// Returns the misses as a share of the choices; 0 without choices.
    pub fn miss_rate(&self) -> f64 {
        self.misses as f64 / self.choices.max(1) as f64
    }

    /// Returns the bytes read for a token; 0 without tokens.
    pub fn bytes_per_token(&self) -> f64 {
        self.bytes as f64 / self.tokens.max(1) as f64
    }
}

/// A trace, ready to be played back.
#[derive(Debug, Clone)]
pub struct Simulation {
    header: TraceHeader,
    pools: Pools,
    scope: Scope,
    steps: Steps,
    skip: u64,
}

impl Simulation {
    /// Prepares a trace for pools of this scope.
    pub fn new(trace: &Trace, scope: Scope) -> Self {
        let layers = &trace.header.layers;
        let pools = Pools::new(scope, layers.iter().map(|layer| (&layer.tensors, layer.experts)));
        let steps = Steps::new(trace, &pools);
        Self { header: trace.header.clone(), pools, scope, steps, skip: 0 }
    }

    /// Leaves the first tokens out of what is counted: they fill the pool.
    ///
    /// The optimum is that of all tokens, so that in what is left a policy may come out better.
    #[must_use]
    pub fn skip(mut self, tokens: u64) -> Self {
        self.skip = tokens;
        self
    }

    /// Returns the places that each pool gets for `slots` places a layer: no fewer than the pager
    /// needs, no more than there are experts.
    fn capacities(&self, slots: usize) -> Vec<usize> {
        let of = |pool| {
            let used = self.pools.layers(pool).map(|layer| self.header.layers[layer].used as usize);
            let keys = self.pools.keys(pool);
            let least = self.scope.least_slots(used.max().unwrap_or(0)).min(keys);
            slots.saturating_mul(self.pools.layers(pool).count()).clamp(least, keys)
        };
        (0..self.pools.len()).map(of).collect()
    }

    /// Returns the bytes of memory that pools of `slots` places a layer take.
    pub fn memory_bytes(&self, slots: usize) -> u64 {
        let bytes = |(pool, capacity): (usize, usize)| {
            let layer = self.pools.layers(pool).next();
            layer.map_or(0, |layer| self.header.layers[layer].memory_bytes() * capacity as u64)
        };
        self.capacities(slots).into_iter().enumerate().map(bytes).sum()
    }

    /// Plays the trace back with `slots` places a layer: as few as the pager needs if that is
    /// fewer, all experts if it is more.
    pub fn run(&self, strategy: Strategy, slots: usize) -> Outcome {
        let capacities = self.capacities(slots);
        match strategy {
            Strategy::Policy(policy) => {
                let pool = |(pool, capacity)| Pool::new(policy, self.pools.keys(pool), capacity);
                self.play(capacities.into_iter().enumerate().map(pool).collect::<Vec<_>>())
            }
            Strategy::Optimum => {
                let pool = |(pool, capacity)| Optimum::new(self.pools.keys(pool), capacity);
                self.play(capacities.into_iter().enumerate().map(pool).collect::<Vec<_>>())
            }
        }
    }

    fn play(&self, mut pools: Vec<impl Replay>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut skip = self.skip;
        for graph in self.steps.graphs() {
            let counts = skip == 0;
            skip = skip.saturating_sub(graph.tokens);
            let tally = match graph.tokens {
                ..=1 => &mut outcome.generation,
                _ => &mut outcome.prompts,
            };
            tally.tokens += if counts { graph.tokens } else { 0 };
            for step in graph.steps() {
                let Missing { misses, streamed } = pools[step.pool].step(&step);
                if counts {
                    tally.choices += step.choices;
                    tally.misses += misses;
                    tally.streamed += streamed;
                    tally.bytes += misses * self.header.layers[step.layer].file_bytes();
                }
            }
            graph.pools().for_each(|pool| pools[pool].end_graph());
        }
        outcome
    }
}

/// What a step missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Missing {
    misses: u64,
    /// Those of them that got no place.
    streamed: u64,
}

/// A pool that steps are played back on.
trait Replay {
    fn step(&mut self, step: &Step<'_>) -> Missing;
    fn end_graph(&mut self);
}

/// A pool as the pager runs it.
#[derive(Debug)]
struct Pool {
    ranking: Ranking,
    /// Of each key: whether it has a place.
    resident: Vec<bool>,
    /// Of each key: the last step in which it had one and was needed.
    held: Vec<u64>,
    step: u64,
    free: usize,
}

impl Pool {
    fn new(policy: Policy, keys: usize, capacity: usize) -> Self {
        Self {
            ranking: Ranking::new(policy, keys, capacity),
            resident: vec![false; keys],
            held: vec![0; keys],
            step: 0,
            free: capacity,
        }
    }
}

impl Replay for Pool {
    fn step(&mut self, step: &Step<'_>) -> Missing {
        self.step += 1;
        for &key in step.keys {
            self.ranking.touch(key);
            if self.resident[key as usize] {
                self.held[key as usize] = self.step;
            }
        }
        let mut missing = Missing::default();
        for &key in step.keys {
            if self.resident[key as usize] {
                continue;
            }
            missing.misses += 1;
            if self.free > 0 {
                self.free -= 1;
            } else {
                let may_go = |key: u32| self.held[key as usize] != self.step;
                let Some(victim) = self.ranking.victim(may_go) else {
                    missing.streamed += 1;
                    continue;
                };
                self.ranking.remove(victim);
                self.resident[victim as usize] = false;
            }
            self.ranking.insert(key);
            self.resident[key as usize] = true;
            self.held[key as usize] = self.step;
        }
        missing
    }

    fn end_graph(&mut self) {
        self.ranking.token();
    }
}

#[cfg(test)]
mod synthetic;
#[cfg(test)]
mod tests;

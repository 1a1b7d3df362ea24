//! Which expert leaves the pool when another one needs its place.
//!
//! Nothing here reads a file or knows of slots: the pager and the simulator of traces run the
//! same code.

mod frequency;
mod lists;
mod segments;

use frequency::Frequency;
use lists::Lists;
use segments::Segments;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How the expert that leaves the pool is chosen.
///
/// ```
/// use smol_engine::expert::policy::Policy;
///
/// assert_eq!("slru".parse(), Ok(Policy::Slru));
/// assert_eq!(Policy::default().to_string(), "decayed");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Policy {
    /// Least recently used.
    Lru,
    /// Least frequently used since the start; of equals the least recently used.
    ///
    /// Uses are counted whether the expert was in the pool or not.
    Lfu,
    /// Least frequently used, where a use counts less the longer ago it was.
    ///
    /// A use loses half of its weight in [`HALF_LIFE`] tokens. Between LRU (half-life 0) and
    /// LFU (no decay); known as LRFU (Lee et al. 2001).
    #[default]
    Decayed,
    /// Segmented LRU (Karedla et al. 1994): experts used once since they came in go before those
    /// used again.
    Slru,
}

/// Tokens after which a use has half of its weight for [`Policy::Decayed`].
///
/// Chosen by simulation of five routers fitted to what a 30-layer model reads (32 to 128 experts,
/// 4 to 8 used), with pools of an eighth to three quarters of each layer's experts: small pools
/// want about 8 tokens, large ones 32, and from 6 to 32 no pool's misses differ by more than a
/// tenth.
pub const HALF_LIFE: f64 = 12.0;

impl Policy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Lru, Self::Lfu, Self::Decayed, Self::Slru];

    /// Returns the name, as [`FromStr`] reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Decayed => "decayed",
            Self::Slru => "slru",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{0}`: it must be lru, lfu, decayed or slru")]
pub struct UnknownPolicy(String);

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Ranks the experts that lie in a pool by how well they can be spared.
///
/// Keys are numbers below `keys`: the experts of one layer, or of all layers that share a pool.
/// Whoever runs the pool reports three things:
///
/// - [`touch`](Self::touch): a graph uses the key. Once for each key and graph, whether the key
///   is in the pool or not, and before it is inserted.
/// - [`insert`](Self::insert) and [`remove`](Self::remove): the key got a place in the pool, or
///   lost it. A key that is inserted without a touch was only predicted: nothing but `may_go`
///   protects it until it is used.
/// - [`token`](Self::token): a graph is over.
///
/// A touch is O(1) for [`Policy::Lru`] and [`Policy::Slru`], O(log n) for the others; so is
/// finding a victim, plus one call of `may_go` for each key that must stay.
///
/// ```
/// use smol_engine::expert::policy::{Policy, Ranking};
///
/// let mut ranking = Ranking::new(Policy::Lru, 8, 2);
/// for key in [3, 5, 3] {
///     ranking.touch(key);
///     ranking.insert(key);
/// }
/// assert_eq!(ranking.victim(|_| true), Some(5));
/// assert_eq!(ranking.victim(|key| key != 5), Some(3));
/// ```
///
/// # Panics
///
/// All methods panic if a key is not below the number of keys.
#[derive(Debug, Clone)]
pub struct Ranking {
    order: Order,
}

#[derive(Debug, Clone)]
enum Order {
    Recency(Lists<1>),
    Frequency(Frequency),
    Segments(Segments),
}

impl Ranking {
    /// Creates the ranking of an empty pool of `capacity` places for keys below `keys`.
    pub fn new(policy: Policy, keys: usize, capacity: usize) -> Self {
        let order = match policy {
            Policy::Lru => Order::Recency(Lists::new(keys)),
            Policy::Lfu => Order::Frequency(Frequency::new(keys, 1.0)),
            Policy::Decayed => Order::Frequency(Frequency::new(keys, (-1.0 / HALF_LIFE).exp2())),
            Policy::Slru => Order::Segments(Segments::new(keys, capacity)),
        };
        Self { order }
    }

    /// As [`Policy::Decayed`], with another half-life.
    #[cfg(test)]
    pub(super) fn decayed(keys: usize, half_life: f64) -> Self {
        let decay = (-1.0 / half_life).exp2();
        Self { order: Order::Frequency(Frequency::new(keys, decay)) }
    }

    /// Notes that a graph uses the key.
    pub fn touch(&mut self, key: u32) {
        match &mut self.order {
            Order::Recency(list) => list.renew(key),
            Order::Frequency(frequency) => frequency.touch(key),
            Order::Segments(segments) => segments.touch(key),
        }
    }

    /// Notes that the key has a place in the pool now. Does nothing if it had one.
    pub fn insert(&mut self, key: u32) {
        match &mut self.order {
            Order::Recency(list) => {
                if list.list_of(key).is_none() {
                    list.push(0, key);
                }
            }
            Order::Frequency(frequency) => frequency.insert(key),
            Order::Segments(segments) => segments.insert(key),
        }
    }

    /// Notes that the key has no place in the pool any more. Does nothing if it had none.
    pub fn remove(&mut self, key: u32) {
        match &mut self.order {
            Order::Recency(list) => list.unlink(key),
            Order::Frequency(frequency) => frequency.remove(key),
            Order::Segments(segments) => segments.remove(key),
        }
    }

    /// Notes that the pool has another number of places now.
    ///
    /// Keys stay: whoever runs the pool removes [victims](Self::victim) until all fit.
    pub fn set_capacity(&mut self, capacity: usize) {
        if let Order::Segments(segments) = &mut self.order {
            segments.set_capacity(capacity);
        }
    }

    /// Notes that a graph is over: a token has been generated or a batch of a prompt read.
    pub fn token(&mut self) {
        if let Order::Frequency(frequency) = &mut self.order {
            frequency.token();
        }
    }

    /// Returns the key in the pool that can best be spared among those that may go.
    pub fn victim(&self, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        let may_go = |key: &u32| may_go(*key);
        match &self.order {
            Order::Recency(list) => list.oldest_first(0).find(may_go),
            Order::Frequency(frequency) => frequency.least_first().find(may_go),
            Order::Segments(segments) => segments.oldest_first().find(may_go),
        }
    }
}

#[cfg(test)]
mod tests;

//! Least frequently used, with or without decay.

use std::collections::BTreeSet;

/// Where the weight of a use is scaled down, long before scores overflow. It is a power of two,
/// so that it rounds no score but those of uses that are hundreds of half-lives ago.
const HIGH: f64 = f64::from_bits((1023 + 512) << 52);

/// Orders the keys by the sum of the weights of their uses.
#[derive(Debug, Clone)]
pub(super) struct Frequency {
    keys: Vec<Key>,
    /// Ranks of the keys in the pool, least first.
    pool: BTreeSet<Rank>,
    /// What is left of a use's weight after a token.
    decay: f64,
    /// Weight of a use now. It grows instead of all scores shrinking, which keeps their order.
    weight: f64,
    /// Counts touches and insertions.
    time: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Key {
    score: f64,
    /// Time of the last touch or insertion.
    time: u64,
    in_pool: bool,
}

/// Bits of the score, which order like the score as it is not negative; time; key.
type Rank = (u64, u64, u32);

impl Frequency {
    /// Creates the order of an empty pool. Without decay (1) uses are only counted.
    pub(super) fn new(keys: usize, decay: f64) -> Self {
        let keys = vec![Key::default(); keys];
        Self { keys, pool: BTreeSet::new(), decay, weight: 1.0, time: 0 }
    }

    pub(super) fn touch(&mut self, key: u32) {
        let weight = self.weight;
        self.renew(key, |entry| entry.score += weight);
    }

    pub(super) fn insert(&mut self, key: u32) {
        if !self.keys[key as usize].in_pool {
            self.renew(key, |entry| entry.in_pool = true);
        }
    }

    pub(super) fn remove(&mut self, key: u32) {
        if self.keys[key as usize].in_pool {
            self.pool.remove(&self.rank(key));
            self.keys[key as usize].in_pool = false;
        }
    }

    pub(super) fn token(&mut self) {
        self.weight /= self.decay;
        if self.weight < HIGH {
            return;
        }
        self.weight /= HIGH;
        self.keys.iter_mut().for_each(|key| key.score /= HIGH);
        let pool = std::mem::take(&mut self.pool);
        self.pool = pool.into_iter().map(|(.., key)| self.rank(key)).collect();
    }

    pub(super) fn least_first(&self) -> impl Iterator<Item = u32> + '_ {
        self.pool.iter().map(|(.., key)| *key)
    }

    fn rank(&self, key: u32) -> Rank {
        let Key { score, time, .. } = self.keys[key as usize];
        (score.to_bits(), time, key)
    }

    /// Changes the key, whose last use is now.
    fn renew(&mut self, key: u32, change: impl FnOnce(&mut Key)) {
        let before = self.rank(key);
        self.time += 1;
        let entry = &mut self.keys[key as usize];
        let was_in_pool = entry.in_pool;
        entry.time = self.time;
        change(entry);
        let is_in_pool = entry.in_pool;
        if was_in_pool {
            self.pool.remove(&before);
        }
        if is_in_pool {
            let after = self.rank(key);
            self.pool.insert(after);
        }
    }
}

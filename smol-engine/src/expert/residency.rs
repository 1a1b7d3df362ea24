//! Which experts are in the pool, for whoever must not wait for a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// One bit for each expert of each layer.
#[derive(Debug)]
pub(super) struct Residency(Box<[AtomicU64]>);

impl Residency {
    pub(super) fn new(experts: u32) -> Self {
        Self((0..experts.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn get(&self, number: u32) -> bool {
        let word = self.0[number as usize / 64].load(Ordering::Relaxed);
        word >> (number % 64) & 1 == 1
    }

    pub(super) fn set(&self, number: u32, resident: bool) {
        let (word, bit) = (&self.0[number as usize / 64], 1 << (number % 64));
        if resident {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Residency;

    #[test]
    fn bits_are_apart() {
        let bits = Residency::new(130);
        for number in [0, 63, 64, 129] {
            bits.set(number, true);
        }
        bits.set(63, false);
        let set: Vec<_> = (0..130).filter(|&number| bits.get(number)).collect();
        assert_eq!(set, [0, 64, 129]);
    }
}

//! A small random number generator whose streams are the same on every machine.
//!
//! Only integer operations, `f32` products and a correctly rounded square root are used: no
//! logarithm or cosine, which differ between C libraries.

/// SplitMix64: one 64-bit state, passes the usual statistical batteries, trivially seekable.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts a stream from a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed ^ 0x6a09_e667_f3bc_c908))
    }

    /// Starts a stream that depends on a seed, a name and an index (a tensor's row, say).
    ///
    /// Each row has a stream of its own, so rows can be made in any order and on any thread.
    pub fn keyed(seed: u64, name: &str, index: u64) -> Self {
        Self::new(mix(seed ^ mix(hash(name))) ^ mix(index.wrapping_add(0x51_7cc1)))
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number in `0..bound`; `bound` must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of a 128-bit product: a bias of at most bound / 2^64.
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Returns a number of a bell-shaped distribution with mean 0 and variance 1.
    ///
    /// It is the sum of four uniform 16-bit numbers, so it never exceeds 3.47 in magnitude.
    pub fn normal(&mut self) -> f32 {
        let bits = self.next_u64();
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        // Variance of one term: (2^32 - 1) / 12; of four: 2^32 / 3.
        const SCALE: f32 = 1.732_050_8 / 65_536.0;
        (sum as i64 - 131_070) as f32 * SCALE
    }

    /// Fills `out` with `mean + deviation * normal()`.
    pub fn fill(&mut self, out: &mut [f32], mean: f32, deviation: f32) {
        for value in out {
            *value = mean + deviation * self.normal();
        }
    }

    /// Returns the numbers `0..n` in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

/// Returns the 64-bit FNV-1a hash of a name: stable, unlike the standard library's hasher.
pub fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_fixed_and_independent() {
        let first: Vec<u64> = (0..3).map(|row| Rng::keyed(1, "blk.0", row).next_u64()).collect();
        assert_eq!(first, (0..3).map(|r| Rng::keyed(1, "blk.0", r).next_u64()).collect::<Vec<_>>());
        assert_ne!(first[0], first[1]);
        assert_ne!(Rng::keyed(1, "a", 0).next_u64(), Rng::keyed(2, "a", 0).next_u64());
        assert_ne!(Rng::keyed(1, "a", 0).next_u64(), Rng::keyed(1, "b", 0).next_u64());
    }

    #[test]
    fn normal_has_mean_zero_and_variance_one() {
        let mut rng = Rng::new(7);
        let n = 200_000;
        let (mut sum, mut squares) = (0.0f64, 0.0f64);
        for _ in 0..n {
            let value = f64::from(rng.normal());
            sum += value;
            squares += value * value;
        }
        assert!((sum / f64::from(n)).abs() < 0.01);
        assert!((squares / f64::from(n) - 1.0).abs() < 0.01);
    }

    #[test]
    fn permutation_holds_every_number_once() {
        let mut order = Rng::new(3).permutation(100);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}

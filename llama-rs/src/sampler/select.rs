//! One pass over the logits that finds the best tokens.
//!
//! Most of a vocabulary is far below the best few tokens, so the pass compares the maximum of a block of logits, which
//! the compiler turns into vector instructions, with the worst token kept so far, and looks at single logits only in
//! the few blocks that reach it.

use crate::error::{Error, ErrorKind, Result};
use crate::sampler::bitset::BitSet;

/// Logits in a block. Larger blocks test faster and are searched more often.
const BLOCK: usize = 64;
const LANES: usize = 16;

/// Largest `k` kept in the heap; above it all logits are gathered and partitioned.
const HEAP_LIMIT: usize = 1024;

/// A token's logit and id as one integer that orders them: higher logit first, then lower id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    pub(crate) fn new(logit: f32, id: usize) -> Self {
        // -0.0 + 0.0 is +0.0: the two zeros tie, as they do in a float comparison.
        let bits = (logit + 0.0).to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        Self(u64::from(ordered) << 32 | u64::from(!(id as u32)))
    }

    pub(crate) fn logit(self) -> f32 {
        let ordered = (self.0 >> 32) as u32;
        f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
    }

    pub(crate) fn id(self) -> usize {
        !(self.0 as u32) as usize
    }
}

/// A bounded heap with the worst kept key at the root.
struct Best<'a> {
    keys: &'a mut Vec<Key>,
    k: usize,
}

impl Best<'_> {
    /// The key that a new one must beat.
    fn floor(&self) -> Option<Key> {
        (self.keys.len() == self.k).then(|| self.keys[0])
    }

    fn offer(&mut self, key: Key) {
        if self.keys.len() < self.k {
            self.keys.push(key);
            let mut child = self.keys.len() - 1;
            while child > 0 {
                let parent = (child - 1) / 2;
                if self.keys[parent] <= self.keys[child] {
                    break;
                }
                self.keys.swap(parent, child);
                child = parent;
            }
        } else if key > self.keys[0] {
            self.keys[0] = key;
            let mut parent = 0;
            loop {
                let mut child = 2 * parent + 1;
                if child >= self.k {
                    break;
                }
                if child + 1 < self.k && self.keys[child + 1] < self.keys[child] {
                    child += 1;
                }
                if self.keys[parent] <= self.keys[child] {
                    break;
                }
                self.keys.swap(parent, child);
                parent = child;
            }
        }
    }
}

/// Whether a logit is NaN or +inf; without a branch, for the vector loop.
fn is_broken(logit: f32) -> bool {
    logit.is_nan() | (logit == f32::INFINITY)
}

/// The maximum of a block, and whether it holds NaN or +inf.
fn block_max(block: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut bad = [false; LANES];
    let (rows, rest) = block.as_chunks::<LANES>();
    for row in rows {
        for lane in 0..LANES {
            max[lane] = if row[lane] > max[lane] { row[lane] } else { max[lane] };
            bad[lane] |= is_broken(row[lane]);
        }
    }
    let mut worst = bad.iter().any(|&b| b);
    let mut best = f32::NEG_INFINITY;
    for &value in max.iter().chain(rest) {
        worst |= is_broken(value);
        best = if value > best { value } else { best };
    }
    (best, worst)
}

/// What to select from: raw logits, the tokens whose logit differs from the raw one, and the tokens allowed.
pub(crate) struct Selection<'a> {
    pub(crate) logits: &'a [f32],
    /// Replacement logits by id, each id once.
    pub(crate) changed: &'a [(usize, f32)],
    /// The ids of `changed`.
    pub(crate) changed_ids: &'a BitSet,
    /// `None` allows every token.
    pub(crate) allowed: Option<&'a BitSet>,
}

impl Selection<'_> {
    fn is_allowed(&self, id: usize) -> bool {
        self.allowed.is_none_or(|set| set.contains(id))
    }

    /// Puts the best `k` tokens into `out`, best first; with `k` 0 all tokens, in no particular order.
    ///
    /// Tokens at -inf are left out. Returns whether `out` is sorted.
    pub(crate) fn select(&self, k: usize, out: &mut Vec<Key>) -> Result<bool> {
        out.clear();
        for &(id, logit) in self.changed {
            if is_broken(logit) {
                return Err(non_finite(id, logit));
            }
        }
        if (1..=HEAP_LIMIT).contains(&k) {
            self.scan(k, out)?;
            out.sort_unstable_by(|a, b| b.cmp(a));
            return Ok(true);
        }
        self.gather(out)?;
        if k == 0 {
            return Ok(false);
        }
        if k < out.len() {
            out.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
            out.truncate(k);
        }
        out.sort_unstable_by(|a, b| b.cmp(a));
        Ok(true)
    }

    fn scan(&self, k: usize, out: &mut Vec<Key>) -> Result<()> {
        let mut best = Best { keys: out, k };
        for &(id, logit) in self.changed {
            if logit > f32::NEG_INFINITY && self.is_allowed(id) {
                best.offer(Key::new(logit, id));
            }
        }
        let mut floor = Floor::of(&best);
        for (index, block) in self.logits.chunks(BLOCK).enumerate() {
            let start = index * BLOCK;
            let (max, bad) = block_max(block);
            if bad {
                return Err(first_non_finite(start, block));
            }
            if !floor.may_pass(max, start) {
                continue;
            }
            for (offset, &logit) in block.iter().enumerate() {
                let id = start + offset;
                if floor.may_pass(logit, id)
                    && !self.changed_ids.contains(id)
                    && self.is_allowed(id)
                {
                    best.offer(Key::new(logit, id));
                    floor = Floor::of(&best);
                }
            }
        }
        Ok(())
    }

    fn gather(&self, out: &mut Vec<Key>) -> Result<()> {
        out.reserve(self.logits.len());
        for &(id, logit) in self.changed {
            if logit > f32::NEG_INFINITY && self.is_allowed(id) {
                out.push(Key::new(logit, id));
            }
        }
        for (id, &logit) in self.logits.iter().enumerate() {
            if is_broken(logit) {
                return Err(non_finite(id, logit));
            }
            if logit > f32::NEG_INFINITY && !self.changed_ids.contains(id) && self.is_allowed(id) {
                out.push(Key::new(logit, id));
            }
        }
        Ok(())
    }
}

/// The worst kept token, unpacked for comparisons with floats.
#[derive(Clone, Copy)]
struct Floor {
    logit: f32,
    // A token that ties with the floor passes only with a lower id.
    id: usize,
}

impl Floor {
    fn of(best: &Best<'_>) -> Self {
        match best.floor() {
            Some(key) => Self { logit: key.logit(), id: key.id() },
            None => Self { logit: f32::NEG_INFINITY, id: 0 },
        }
    }

    fn may_pass(self, logit: f32, first_id: usize) -> bool {
        logit > self.logit || (logit == self.logit && first_id < self.id)
    }
}

fn first_non_finite(start: usize, block: &[f32]) -> Error {
    let (offset, logit) = block
        .iter()
        .copied()
        .enumerate()
        .find(|(_, logit)| is_broken(*logit))
        .unwrap_or((0, f32::NAN));
    non_finite(start + offset, logit)
}

fn non_finite(id: usize, logit: f32) -> Error {
    Error::new(
        ErrorKind::NonFinite,
        format!(
            "the logit of token {id} is {logit}; the model's weights or the sampling settings are broken"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn select(
        logits: &[f32],
        changed: &[(usize, f32)],
        allowed: Option<&BitSet>,
        k: usize,
    ) -> Result<Vec<(usize, f32)>> {
        let mut changed_ids = BitSet::new(logits.len());
        changed.iter().for_each(|&(id, _)| changed_ids.insert(id));
        let mut out = Vec::new();
        Selection { logits, changed, changed_ids: &changed_ids, allowed }.select(k, &mut out)?;
        Ok(out.into_iter().map(|key| (key.id(), key.logit())).collect())
    }

    /// The definition: sort everything.
    fn naive(
        logits: &[f32],
        changed: &[(usize, f32)],
        allowed: Option<&BitSet>,
        k: usize,
    ) -> Vec<(usize, f32)> {
        let mut all: Vec<(usize, f32)> = logits.iter().copied().enumerate().collect();
        for &(id, logit) in changed {
            all[id].1 = logit;
        }
        all.retain(|&(id, l)| l > f32::NEG_INFINITY && allowed.is_none_or(|set| set.contains(id)));
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        if k > 0 {
            all.truncate(k);
        }
        all
    }

    #[test]
    fn keys_order_logits_and_then_ids() {
        let values = [f32::MIN, -1.5, -0.0, 0.0, 1e-40, 2.5, f32::MAX];
        for (i, &a) in values.iter().enumerate() {
            assert_eq!(Key::new(a, 9).logit(), a);
            assert_eq!(Key::new(a, 9).id(), 9);
            for &b in &values[i + 1..] {
                assert_eq!(Key::new(a, 0).cmp(&Key::new(b, 0)), a.partial_cmp(&b).unwrap());
            }
            assert!(Key::new(a, 3) > Key::new(a, 4));
        }
    }

    #[test]
    fn the_first_of_equal_maxima_wins() {
        let mut logits = vec![0.0; 1000];
        assert_eq!(select(&logits, &[], None, 1).unwrap(), [(0, 0.0)]);
        logits[700] = 1.0;
        logits[701] = 1.0;
        assert_eq!(select(&logits, &[], None, 1).unwrap(), [(700, 1.0)]);
        // a changed token with a higher id does not displace the earlier one
        assert_eq!(select(&logits, &[(900, 1.0)], None, 1).unwrap(), [(700, 1.0)]);
        assert_eq!(select(&logits, &[(10, 1.0)], None, 1).unwrap(), [(10, 1.0)]);
    }

    #[test]
    fn nan_and_infinity_are_found_wherever_they_are() {
        for len in [1, 15, 16, 63, 64, 65, 200] {
            for at in [0, len / 2, len - 1] {
                for value in [f32::NAN, f32::INFINITY] {
                    let mut logits = vec![-1.0; len];
                    logits[at] = value;
                    for k in [1, 40, 2000, 0] {
                        let error = select(&logits, &[], None, k).unwrap_err();
                        assert_eq!(error.kind(), &ErrorKind::NonFinite);
                        assert!(error.message().contains(&format!("token {at} ")), "{error}");
                    }
                }
            }
        }
        assert!(select(&[0.0; 4], &[(1, f32::NAN)], None, 2).is_err());
    }

    #[test]
    fn minus_infinity_is_never_selected() {
        let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
        for k in [0, 1, 3, 2000] {
            assert_eq!(select(&logits, &[], None, k).unwrap(), [(1, 1.0)]);
        }
        assert_eq!(select(&[f32::NEG_INFINITY; 100], &[], None, 5).unwrap(), []);
    }

    proptest! {
        #[test]
        fn agrees_with_a_full_sort(
            // few distinct values: ties are the rule
            logits in prop::collection::vec(
                prop::sample::select(vec![-3.0f32, -0.0, 0.0, 0.5, 0.5, 2.0, f32::NEG_INFINITY]),
                1..400,
            ),
            changes in prop::collection::vec((any::<prop::sample::Index>(), -4i8..4), 0..20),
            masked in any::<bool>(),
            keep in any::<prop::sample::Index>(),
            k in prop::sample::select(vec![1usize, 2, 7, 40, 399, 1025, 4000]),
        ) {
            let mut changed: Vec<(usize, f32)> = changes
                .iter()
                .map(|(at, l)| (at.index(logits.len()), f32::from(*l) / 2.0))
                .collect();
            changed.sort_by_key(|c| c.0);
            changed.dedup_by_key(|c| c.0);
            let mut allowed = BitSet::new(logits.len());
            let step = keep.index(5) + 1;
            (0..logits.len()).step_by(step).for_each(|id| allowed.insert(id));
            let allowed = masked.then_some(&allowed);
            prop_assert_eq!(
                select(&logits, &changed, allowed, k).unwrap(),
                naive(&logits, &changed, allowed, k)
            );
            let mut all = select(&logits, &changed, allowed, 0).unwrap();
            all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            prop_assert_eq!(all, naive(&logits, &changed, allowed, 0));
        }
    }
}

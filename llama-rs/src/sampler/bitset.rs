//! A set of token ids, one bit for each token of the vocabulary.

/// A set of small integers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    /// An empty set for values below `len`.
    pub(crate) fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)] }
    }

    /// Values out of range are not members and cannot be added.
    pub(crate) fn insert(&mut self, value: usize) {
        if let Some(word) = self.words.get_mut(value / 64) {
            *word |= 1 << (value % 64);
        }
    }

    pub(crate) fn remove(&mut self, value: usize) {
        if let Some(word) = self.words.get_mut(value / 64) {
            *word &= !(1 << (value % 64));
        }
    }

    pub(crate) fn contains(&self, value: usize) -> bool {
        self.words.get(value / 64).is_some_and(|word| word >> (value % 64) & 1 == 1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_come_and_go() {
        let mut set = BitSet::new(130);
        assert!(set.is_empty());
        for value in [0, 63, 64, 129] {
            set.insert(value);
            assert!(set.contains(value));
        }
        set.insert(10_000);
        assert!(!set.contains(10_000) && !set.contains(1));
        for value in [0, 63, 64, 129] {
            set.remove(value);
        }
        assert!(set.is_empty());
    }
}

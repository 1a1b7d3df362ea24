//! Segmented LRU: keys used again since they came in are protected from those used once.

use super::lists::Lists;

/// The list of keys that have yet to be used again. Victims are taken here first.
const PROBATION: usize = 0;
/// The list of keys used again.
const PROTECTED: usize = 1;

/// The share of the pool that keys used again may fill, in percent.
///
/// With 75 a layer's own pool misses up to 2 % less, but in a small pool that all layers share
/// the rest is too small: each newcomer leaves before its layer comes round again.
pub(super) const PROTECTED_PERCENT: usize = 50;

/// Two lists by recency. A key that falls out of the protected one goes back on probation.
#[derive(Debug, Clone)]
pub(super) struct Segments {
    lists: Lists<2>,
    /// Whether the key has been used since it last left the pool.
    used: Vec<bool>,
    most_protected: usize,
}

impl Segments {
    pub(super) fn new(keys: usize, capacity: usize) -> Self {
        let most_protected = most_protected(capacity);
        Self { lists: Lists::new(keys), used: vec![false; keys], most_protected }
    }

    pub(super) fn touch(&mut self, key: u32) {
        let used = std::mem::replace(&mut self.used[key as usize], true);
        match self.lists.list_of(key) {
            None => (),
            // It was only predicted before.
            Some(PROBATION) if !used => self.lists.renew(key),
            Some(_) => {
                self.lists.push(PROTECTED, key);
                self.demote();
            }
        }
    }

    pub(super) fn insert(&mut self, key: u32) {
        if self.lists.list_of(key).is_none() {
            self.lists.push(PROBATION, key);
        }
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.lists.unlink(key);
        self.used[key as usize] = false;
    }

    pub(super) fn set_capacity(&mut self, capacity: usize) {
        self.most_protected = most_protected(capacity);
        self.demote();
    }

    pub(super) fn oldest_first(&self) -> impl Iterator<Item = u32> + '_ {
        self.lists.oldest_first(PROBATION).chain(self.lists.oldest_first(PROTECTED))
    }

    fn demote(&mut self) {
        while self.lists.len(PROTECTED) > self.most_protected {
            let oldest = self.lists.oldest_first(PROTECTED).next();
            self.lists.push(PROBATION, oldest.expect("the list is not empty"));
        }
    }
}

const fn most_protected(capacity: usize) -> usize {
    capacity * PROTECTED_PERCENT / 100
}

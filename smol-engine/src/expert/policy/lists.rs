//! Doubly linked lists over the keys, by index: a key is in one of them or in none.

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
    /// Number of the list, or `NONE`.
    list: u32,
}

/// `LISTS` lists from oldest to newest. All operations are O(1).
#[derive(Debug, Clone)]
pub(super) struct Lists<const LISTS: usize> {
    /// A link for each key, then one for each list: its `newer` is the oldest key, its `older`
    /// the newest.
    links: Vec<Link>,
    lens: [usize; LISTS],
}

impl<const LISTS: usize> Lists<LISTS> {
    pub(super) fn new(keys: usize) -> Self {
        assert!(keys < (NONE as usize) - LISTS, "too many keys");
        let mut links = vec![Link { older: NONE, newer: NONE, list: NONE }; keys];
        for list in 0..LISTS {
            let end = (keys + list) as u32;
            links.push(Link { older: end, newer: end, list: list as u32 });
        }
        Self { links, lens: [0; LISTS] }
    }

    fn end(&self, list: usize) -> u32 {
        (self.links.len() - LISTS + list) as u32
    }

    fn check(&self, key: u32) {
        let keys = self.links.len() - LISTS;
        assert!((key as usize) < keys, "key {key} of {keys}");
    }

    pub(super) const fn len(&self, list: usize) -> usize {
        self.lens[list]
    }

    /// The list that the key is in.
    pub(super) fn list_of(&self, key: u32) -> Option<usize> {
        self.check(key);
        let list = self.links[key as usize].list;
        (list != NONE).then_some(list as usize)
    }

    /// Makes the key the newest of the list, out of whichever it was in.
    pub(super) fn push(&mut self, list: usize, key: u32) {
        self.unlink(key);
        let end = self.end(list);
        let older = self.links[end as usize].older;
        self.links[key as usize] = Link { older, newer: end, list: list as u32 };
        self.links[older as usize].newer = key;
        self.links[end as usize].older = key;
        self.lens[list] += 1;
    }

    /// Makes the key the newest of the list that it is in, if any.
    pub(super) fn renew(&mut self, key: u32) {
        if let Some(list) = self.list_of(key) {
            self.push(list, key);
        }
    }

    /// Takes the key out of the list that it is in, if any.
    pub(super) fn unlink(&mut self, key: u32) {
        let Some(list) = self.list_of(key) else { return };
        let Link { older, newer, .. } = self.links[key as usize];
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[key as usize] = Link { older: NONE, newer: NONE, list: NONE };
        self.lens[list] -= 1;
    }

    pub(super) fn oldest_first(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        let end = self.end(list);
        let mut key = self.links[end as usize].newer;
        std::iter::from_fn(move || {
            let next = (key != end).then_some(key)?;
            key = self.links[key as usize].newer;
            Some(next)
        })
    }
}

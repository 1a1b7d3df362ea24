//! What graphs have used, and what came after that.

use std::collections::VecDeque;
use std::sync::Arc;

/// Graphs of one order in a row, up to which it is remembered what came next. Longer rows are
/// answers, which end when they end.
const LONGEST_ROW: usize = 8;
/// Rows that are remembered: enough for graphs of two orders.
const REMEMBERED: usize = 2 * LONGEST_ROW;

/// Foresees what the next graph uses: what came the last time after as many graphs of one order in
/// a row, such as a model's drafts, and without an example the same again.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    last: Arc<[u32]>,
    /// How many graphs in a row used that.
    row: usize,
    /// The latest first.
    examples: VecDeque<Example>,
}

#[derive(Debug, Clone)]
struct Example {
    order: Arc<[u32]>,
    row: usize,
    next: Arc<[u32]>,
}

impl History {
    /// Notes what a graph uses, and returns what the next one is likely to use.
    pub(super) fn note(&mut self, order: &[u32]) -> Arc<[u32]> {
        let goes_on = *self.last == *order;
        let next = if goes_on { Arc::clone(&self.last) } else { Arc::from(order) };
        let last = std::mem::replace(&mut self.last, Arc::clone(&next));
        let row = self.row;
        if (1..LONGEST_ROW).contains(&row) {
            self.examples.retain(|example| example.row != row || example.order != last);
            self.examples.push_front(Example { order: last, row, next: Arc::clone(&next) });
            self.examples.truncate(REMEMBERED);
        }
        self.row = if goes_on { (row + 1).min(LONGEST_ROW) } else { 1 };
        let mut examples = self.examples.iter();
        let example = examples.find(|example| example.row == self.row && example.order == next);
        example.map_or(next, |example| Arc::clone(&example.next))
    }

    /// Notes that nobody knows what the next graph is.
    pub(super) fn interrupt(&mut self) {
        self.last = Arc::from([]);
        self.row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes graphs of one use each, and returns how many of the last ones were not foreseen.
    fn surprises(graphs: &[u32], last: usize) -> usize {
        let mut history = History::default();
        let mut expected: Arc<[u32]> = Arc::from([]);
        let mut surprises = Vec::new();
        for graph in graphs {
            surprises.push(*expected != [*graph]);
            expected = history.note(&[*graph]);
        }
        surprises[graphs.len() - last..].iter().filter(|surprise| **surprise).count()
    }

    #[test]
    fn what_repeats_itself_is_foreseen() {
        for cycle in [&[1][..], &[1, 2], &[1, 2, 2, 2], &[1, 1, 2, 2, 2, 2, 2], &[3, 1, 2]] {
            let graphs = cycle.repeat(4);
            assert_eq!(surprises(&graphs, 2 * cycle.len()), 0, "{cycle:?}");
        }
    }

    #[test]
    fn answers_go_on_whatever_the_last_one_did() {
        let answer = [1; 20];
        let graphs = [&[9][..], &answer, &[9], &answer, &[9], &answer].concat();
        // Nothing but the beginning of a prompt, which nobody knows.
        assert_eq!(surprises(&graphs, 42), 2);
    }

    #[test]
    fn another_number_of_drafts_costs_two_graphs() {
        let graphs = [1, 2, 2, 1, 2, 2, 1, 2, 2, 2, 1, 2, 2, 2, 1, 2, 2, 2];
        assert_eq!(surprises(&graphs, 12), 2);
        assert_eq!(surprises(&graphs, 7), 0);
    }

    #[test]
    fn after_a_break_nothing_is_learnt() {
        let mut history = History::default();
        history.note(&[1]);
        history.interrupt();
        assert_eq!(*history.note(&[2]), [2]);
        assert_eq!(*history.note(&[1]), [1], "2 did not come after it");
        assert_eq!(*history.note(&[2]), [1]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut history = History::default();
        for number in 0..1000 {
            history.note(&[number]);
        }
        assert_eq!(history.examples.len(), REMEMBERED);
    }
}

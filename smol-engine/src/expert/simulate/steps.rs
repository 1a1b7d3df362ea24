//! A trace as the pools see it: which keys each layer of each graph needs, and when again.

use crate::expert::scope::Pools;
use crate::expert::trace::Trace;

/// No later step needs the key.
const NEVER: u32 = u32::MAX;

#[derive(Debug, Clone)]
pub(super) struct Steps {
    graphs: Vec<GraphOf>,
    steps: Vec<StepOf>,
    keys: Vec<u32>,
    /// Of each of `keys`: the next step of its pool that needs it.
    next: Vec<u32>,
}

#[derive(Debug, Clone)]
struct GraphOf {
    tokens: u64,
    /// Where its steps end.
    end: usize,
    /// Pools that it needs.
    pools: Vec<usize>,
}

#[derive(Debug, Clone)]
struct StepOf {
    layer: usize,
    pool: usize,
    choices: u64,
    /// Where its keys end.
    end: usize,
}

/// What one layer of one graph needs.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) layer: usize,
    pub(super) pool: usize,
    /// Experts chosen, counted for each token.
    pub(super) choices: u64,
    /// Each expert once, in the order in which they were chosen.
    pub(super) keys: &'a [u32],
    /// Of each key: the number of the next step that needs it, or one after all.
    pub(super) next: &'a [u32],
}

/// The steps of one graph.
#[derive(Debug)]
pub(super) struct GraphSteps<'a> {
    pub(super) tokens: u64,
    all: &'a Steps,
    start: usize,
    graph: &'a GraphOf,
}

impl Steps {
    pub(super) fn new(trace: &Trace, pools: &Pools) -> Self {
        let mut all = Self { graphs: vec![], steps: vec![], keys: vec![], next: vec![] };
        // Of each pool and key: the last step that needed it, counted from 1.
        let mut seen: Vec<_> = (0..pools.len()).map(|pool| vec![0; pools.keys(pool)]).collect();
        for graph in &trace.graphs {
            let mut used: Vec<usize> = Vec::new();
            for chosen in graph.layers() {
                let pool = pools.pool(chosen.layer);
                let number = all.steps.len() + 1;
                for &id in chosen.ids {
                    let key = pools.key(chosen.layer, id);
                    if std::mem::replace(&mut seen[pool][key as usize], number) != number {
                        all.keys.push(key);
                    }
                }
                let (layer, choices, end) = (chosen.layer, chosen.ids.len() as u64, all.keys.len());
                all.steps.push(StepOf { layer, pool, choices, end });
                if !used.contains(&pool) {
                    used.push(pool);
                }
            }
            let (tokens, end) = (graph.tokens() as u64, all.steps.len());
            all.graphs.push(GraphOf { tokens, end, pools: used });
        }
        all.look_ahead(pools);
        all
    }

    fn look_ahead(&mut self, pools: &Pools) {
        let mut next: Vec<_> = (0..pools.len()).map(|pool| vec![NEVER; pools.keys(pool)]).collect();
        self.next = vec![NEVER; self.keys.len()];
        for number in (0..self.steps.len()).rev() {
            let start = if number == 0 { 0 } else { self.steps[number - 1].end };
            let StepOf { pool, end, .. } = self.steps[number];
            for at in start..end {
                let next = &mut next[pool][self.keys[at] as usize];
                self.next[at] = std::mem::replace(next, number as u32);
            }
        }
    }

    pub(super) fn graphs(&self) -> impl Iterator<Item = GraphSteps<'_>> {
        let mut end = 0;
        self.graphs.iter().map(move |graph| {
            let start = std::mem::replace(&mut end, graph.end);
            GraphSteps { tokens: graph.tokens, all: self, start, graph }
        })
    }
}

impl<'a> GraphSteps<'a> {
    pub(super) fn steps(&self) -> impl Iterator<Item = Step<'a>> + use<'a> {
        let all = self.all;
        (self.start..self.graph.end).map(|number| {
            let start = if number == 0 { 0 } else { all.steps[number - 1].end };
            let StepOf { layer, pool, choices, end } = all.steps[number];
            let (keys, next) = (&all.keys[start..end], &all.next[start..end]);
            Step { layer, pool, choices, keys, next }
        })
    }

    pub(super) fn pools(&self) -> impl Iterator<Item = usize> + '_ {
        self.graph.pools.iter().copied()
    }
}

//! Counts graphs and their nodes by operation.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::observe::{NodeInfo, Observer};
use crate::op::Op;

/// An observer that counts.
#[derive(Debug)]
pub(crate) struct GraphCounter {
    /// The operations that are counted.
    ops: Vec<Op>,
    graphs: AtomicU64,
    stopped: AtomicU64,
    nodes: AtomicU64,
    nanoseconds: AtomicU64,
    /// By `Op::index`.
    by_op: Vec<AtomicU64>,
}

thread_local! {
    /// When the graph that this thread computes began.
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

impl GraphCounter {
    /// Counts the nodes of `ops`, or of all operations.
    pub(crate) fn new(ops: Option<&[Op]>) -> Self {
        let count = || AtomicU64::new(0);
        Self {
            ops: ops.map_or_else(|| Op::all().collect(), <[Op]>::to_vec),
            graphs: count(),
            stopped: count(),
            nodes: count(),
            nanoseconds: count(),
            by_op: Op::all().map(|_| count()).collect(),
        }
    }

    /// The report: every operation that was asked for, or that occurred, with its number of nodes.
    pub(crate) fn json(&self) -> Value {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let asked_for_all = self.ops.len() == self.by_op.len();
        let mut ops = Map::new();
        for op in &self.ops {
            let count = get(&self.by_op[op.index()]);
            if count > 0 || !asked_for_all {
                ops.insert(op.name().to_owned(), count.into());
            }
        }
        let build = ggml_sys::build_info();
        let patches = build.patches.iter().filter(|patch| patch.applied);
        json!({
            "llama_version": build.llama_version,
            "llama_commit": build.llama_commit,
            "patches": patches.map(|patch| patch.id).collect::<Vec<_>>(),
            "cpu_level": ggml_sys::cpu::selected().name,
            "graphs": get(&self.graphs),
            "graphs_stopped": get(&self.stopped),
            "graph_seconds": get(&self.nanoseconds) as f64 / 1e9,
            "nodes": get(&self.nodes),
            "ops": ops,
        })
    }
}

impl Observer for GraphCounter {
    fn watches(&self, op: Op) -> bool {
        self.ops.contains(&op)
    }

    fn graph_begin(&self, n_nodes: usize) {
        self.graphs.fetch_add(1, Ordering::Relaxed);
        self.nodes.fetch_add(n_nodes as u64, Ordering::Relaxed);
        BEGAN.set(Some(Instant::now()));
    }

    fn node(&self, node: &NodeInfo<'_>) {
        // Every thread reports every node.
        if node.thread() == 0 {
            self.by_op[node.operation().index()].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn graph_end(&self, completed: bool) {
        if let Some(began) = BEGAN.take() {
            let nanoseconds = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        }
        if !completed {
            self.stopped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

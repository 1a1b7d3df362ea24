//! Writes a trace while a model runs.

use super::format::{self, MOST_EXPERTS, MOST_LAYERS, MOST_TENSORS};
use super::{Error, Graph, Read, Result, TraceHeader};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a block: about a hundred tokens.
const BLOCK: usize = 64 << 10;

/// Writes a trace.
///
/// Threads that compute call [`choose`](Self::choose) and [`end`](Self::end), threads that read
/// call [`read`](Self::read); each of them appends to memory, and one in about a hundred tokens
/// hands a block to the system. A failed write ends the recording, not the computation:
/// [`finish`](Self::finish) tells of it. Dropping the writer finishes the file too, and tells
/// nobody.
#[derive(Debug)]
pub struct TraceWriter {
    origin: Instant,
    path: PathBuf,
    experts: Vec<u32>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` once a write has failed or the trace is finished.
    file: Option<File>,
    failure: Option<io::Error>,
    /// Payload of the next block.
    payload: Vec<u8>,
    /// The block as it is written.
    block: Vec<u8>,
    /// Graphs that are being computed, by run.
    running: HashMap<usize, Graph>,
    /// Graphs to use again, which spares allocations.
    spare: Vec<Graph>,
    /// Reads since the last graph ended.
    reads: Vec<Read>,
    /// When the last graph that was written had started.
    before: Duration,
    graphs: u64,
}

impl TraceWriter {
    /// Creates the file, and replaces one that is there.
    ///
    /// # Errors
    /// If the file cannot be created or written, or the header breaks a limit: 4096 layers, 65536
    /// experts, 8 tensors.
    pub fn create(path: impl AsRef<Path>, header: &TraceHeader) -> Result<Self> {
        check(header)?;
        let path = path.as_ref().to_owned();
        let failed = |action| {
            let path = path.clone();
            move |source| Error::Io { path, action, source }
        };
        let mut file = File::create(&path).map_err(failed("create the trace"))?;
        let (mut start, mut payload) = (format::MAGIC.to_vec(), Vec::new());
        start.extend(format::VERSION.to_le_bytes());
        format::put_header(header, &mut payload);
        format::put_block(&payload, &mut start);
        file.write_all(&start).map_err(failed("write the trace"))?;
        payload.clear();
        let state = State {
            file: Some(file),
            failure: None,
            payload,
            block: Vec::new(),
            running: HashMap::new(),
            spare: Vec::new(),
            reads: Vec::new(),
            before: Duration::ZERO,
            graphs: 0,
        };
        let experts = header.layers.iter().map(|layer| layer.experts).collect();
        Ok(Self { origin: Instant::now(), path, experts, state: Mutex::new(state) })
    }

    /// Notes what a layer's router chose in the graph that `run` computes: `used` experts for each
    /// token, best first. The first layer starts the graph.
    ///
    /// # Panics
    /// If there is no such layer or expert, or the ids are not whole tokens.
    pub fn choose(&self, run: usize, layer: usize, used: usize, ids: &[i32]) {
        let experts = self.experts[layer];
        for id in ids {
            assert!(u32::try_from(*id).is_ok_and(|id| id < experts), "expert {id} of {experts}");
        }
        assert!(used > 0 && ids.len().is_multiple_of(used), "the ids are not whole tokens");
        let now = self.origin.elapsed();
        let mut state = self.lock();
        if state.file.is_none() {
            return;
        }
        let State { running, spare, .. } = &mut *state;
        let graph = running.entry(run).or_insert_with(|| {
            let mut graph = spare.pop().unwrap_or_default();
            graph.started = now;
            graph
        });
        graph.extend(layer, used, ids.iter().map(|id| *id as u32));
    }

    /// Notes that an expert was read.
    ///
    /// # Panics
    /// If there is no such layer or expert.
    pub fn read(&self, layer: usize, expert: u32, started: Instant, took: Duration, bytes: u64) {
        assert!(expert < self.experts[layer], "expert {expert} of {}", self.experts[layer]);
        let started = started.saturating_duration_since(self.origin);
        let read = Read { layer: layer as u32, expert, started, took, bytes };
        let mut state = self.lock();
        if state.file.is_some() {
            state.reads.push(read);
        }
    }

    /// Notes that the graph of `run` is over, and for how long it waited for reads. Does nothing
    /// if no layer was chosen in it.
    pub fn end(&self, run: usize, waited: Duration) {
        let now = self.origin.elapsed();
        let mut state = self.lock();
        let Some(mut graph) = state.running.remove(&run) else { return };
        graph.took = now.saturating_sub(graph.started);
        graph.waited = waited;
        mem::swap(&mut graph.reads, &mut state.reads);
        state.put(&graph);
        graph.layers.clear();
        graph.ids.clear();
        graph.reads.clear();
        state.spare.push(graph);
    }

    /// Writes a graph that was made by other means.
    ///
    /// # Errors
    /// If the header has no such layer or expert.
    pub fn write(&self, graph: &Graph) -> Result<()> {
        let known = |layer: usize, expert: u32| match self.experts.get(layer) {
            Some(experts) if expert < *experts => Ok(()),
            _ => Err(Error::Unrecordable { what: format!("expert {expert} of layer {layer}") }),
        };
        for layer in graph.layers() {
            layer.ids.iter().try_for_each(|id| known(layer.layer, *id))?;
        }
        graph.reads.iter().try_for_each(|read| known(read.layer as usize, read.expert))?;
        self.lock().put(graph);
        Ok(())
    }

    /// Completes the file and returns the number of graphs in it.
    ///
    /// # Errors
    /// If a write failed, now or earlier: the file then ends early.
    pub fn finish(self) -> Result<u64> {
        let mut state = self.lock();
        state.finish();
        match state.failure.take() {
            None => Ok(state.graphs),
            Some(source) => {
                Err(Error::Io { path: self.path.clone(), action: "write the trace", source })
            }
        }
    }

    /// Lets the next blocks go elsewhere.
    #[cfg(test)]
    pub(super) fn replace_file(&self, file: File) {
        self.lock().file = Some(file);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TraceWriter {
    fn drop(&mut self) {
        self.lock().finish();
    }
}

impl State {
    fn put(&mut self, graph: &Graph) {
        if self.file.is_none() {
            return;
        }
        format::put_graph(graph, self.before, &mut self.payload);
        self.before = graph.started;
        self.graphs += 1;
        if self.payload.len() >= BLOCK {
            self.write_block();
        }
    }

    fn write_block(&mut self) {
        self.block.clear();
        format::put_block(&self.payload, &mut self.block);
        self.payload.clear();
        if let Some(mut file) = self.file.as_ref()
            && let Err(error) = file.write_all(&self.block)
        {
            self.failure = Some(error);
            self.file = None;
        }
    }

    fn finish(&mut self) {
        if self.file.is_some() {
            format::put_end(self.graphs, &mut self.payload);
            self.write_block();
            self.file = None;
        }
    }
}

fn check(header: &TraceHeader) -> Result<()> {
    let refuse = |what: String| Err(Error::Unrecordable { what });
    if header.layers.is_empty() || header.layers.len() > MOST_LAYERS {
        return refuse(format!("{} layers: 1 to {MOST_LAYERS} are possible", header.layers.len()));
    }
    for layer in &header.layers {
        let block = layer.block;
        if !(1..=MOST_EXPERTS).contains(&layer.experts) {
            let experts = layer.experts;
            return refuse(format!(
                "{experts} experts of block {block}: 1 to {MOST_EXPERTS} are possible"
            ));
        }
        if !(1..=layer.experts).contains(&layer.used) {
            let (used, experts) = (layer.used, layer.experts);
            return refuse(format!("{used} used experts of {experts} in block {block}"));
        }
        if !(1..=MOST_TENSORS).contains(&layer.tensors.len()) {
            let tensors = layer.tensors.len();
            return refuse(format!(
                "{tensors} tensors of block {block}: 1 to {MOST_TENSORS} are possible"
            ));
        }
    }
    Ok(())
}

/// Whether a header is one that a writer makes.
pub(super) fn is_sound(header: &TraceHeader) -> bool {
    check(header).is_ok()
}

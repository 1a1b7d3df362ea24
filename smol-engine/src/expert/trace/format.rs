//! Bytes of a trace.
//!
//! ```text
//! file    = magic, version: u32, block(header), block(record*)*
//! block   = length: u32, XXH3 of the payload: u64, payload
//! header  = model, layers: n, n * (block, experts, used, tensors: m, m * (file, memory))
//! record  = GRAPH, started, took, waited, layers: n, n * (layer, used, tokens, ids),
//!                  reads: n, n * (layer, expert, started, took, bytes)
//!         | END, graphs
//! ```
//!
//! Numbers are little-endian where a type is given, LEB128 elsewhere. A graph's start is told from
//! the start of the graph before, a read's from the start of its graph (zigzag: a read may have
//! started earlier). Times are microseconds. Text is its length and UTF-8.

use super::{Graph, LayerHeader, LayerOf, Read, TensorSize, TraceHeader};
use std::time::Duration;

pub(super) const MAGIC: [u8; 8] = *b"SMOLTRCE";
pub(super) const VERSION: u32 = 1;
/// Bytes of a block before its payload.
pub(super) const BLOCK_HEAD: usize = 12;
/// Most bytes of a payload: a graph of a long prompt is a few MB.
pub(super) const MOST_PAYLOAD: u32 = 1 << 30;
/// Limits of the header, far above any model's.
pub(super) const MOST_LAYERS: usize = 4096;
pub(super) const MOST_EXPERTS: u32 = 1 << 16;
pub(super) const MOST_TENSORS: usize = 8;

const GRAPH: u64 = 1;
const END: u64 = 2;

/// One record.
#[derive(Debug)]
pub(super) enum Record {
    Graph(Graph),
    /// The end of the trace, with the number of graphs before.
    End(u64),
}

/// Appends the head and payload of a block.
pub(super) fn put_block(payload: &[u8], out: &mut Vec<u8>) {
    let len = u32::try_from(payload.len()).expect("payloads are smaller than that");
    out.extend(len.to_le_bytes());
    out.extend(xxhash_rust::xxh3::xxh3_64(payload).to_le_bytes());
    out.extend(payload);
}

pub(super) fn put_header(header: &TraceHeader, out: &mut Vec<u8>) {
    put(header.model.len() as u64, out);
    out.extend(header.model.as_bytes());
    put(header.layers.len() as u64, out);
    for layer in &header.layers {
        for number in [layer.block, layer.experts, layer.used] {
            put(number.into(), out);
        }
        put(layer.tensors.len() as u64, out);
        for tensor in &layer.tensors {
            put(tensor.file, out);
            put(tensor.memory, out);
        }
    }
}

/// Appends a graph. `before` is when the graph before it started.
pub(super) fn put_graph(graph: &Graph, before: Duration, out: &mut Vec<u8>) {
    put(GRAPH, out);
    put(zigzag(micros(graph.started).wrapping_sub(micros(before)) as i64), out);
    put(micros(graph.took), out);
    put(micros(graph.waited), out);
    put(graph.layers.len() as u64, out);
    for (choices, LayerOf { layer, used, .. }) in graph.layers().zip(&graph.layers) {
        put((*layer).into(), out);
        put((*used).into(), out);
        put(choices.tokens() as u64, out);
        choices.ids.iter().for_each(|id| put((*id).into(), out));
    }
    put(graph.reads.len() as u64, out);
    for read in &graph.reads {
        put(read.layer.into(), out);
        put(read.expert.into(), out);
        put(zigzag(micros(read.started).wrapping_sub(micros(graph.started)) as i64), out);
        put(micros(read.took), out);
        put(read.bytes, out);
    }
}

pub(super) fn put_end(graphs: u64, out: &mut Vec<u8>) {
    put(END, out);
    put(graphs, out);
}

/// Most bytes of a number.
const MOST_BYTES: usize = 10;

fn put(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

const fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn micros(time: Duration) -> u64 {
    // Half a million years fit.
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Why bytes are not what they should be.
pub(super) type Reason = &'static str;

/// Reads numbers from a payload.
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl Cursor<'_> {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn get(&mut self) -> Result<u64, Reason> {
        let mut number = 0;
        for i in 0..MOST_BYTES {
            let (&byte, rest) = self.0.split_first().ok_or("a record ends early")?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if i == MOST_BYTES - 1 && bits > 1 {
                break;
            }
            number |= bits << (7 * i);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is too large")
    }

    fn get_u32(&mut self) -> Result<u32, Reason> {
        u32::try_from(self.get()?).map_err(|_| "a number is too large")
    }

    /// A number of things of which each takes at least `bytes`.
    fn get_len(&mut self, bytes: usize) -> Result<usize, Reason> {
        match usize::try_from(self.get()?) {
            Ok(len) if len <= self.0.len() / bytes => Ok(len),
            _ => Err("a record ends early"),
        }
    }

    fn get_time(&mut self) -> Result<Duration, Reason> {
        Ok(Duration::from_micros(self.get()?))
    }

    fn get_time_from(&mut self, origin: Duration) -> Result<Duration, Reason> {
        let delta = unzigzag(self.get()?);
        Ok(Duration::from_micros(micros(origin).wrapping_add(delta as u64)))
    }

    pub(super) fn header(&mut self) -> Result<TraceHeader, Reason> {
        let len = self.get_len(1)?;
        let (name, rest) = self.0.split_at(len);
        self.0 = rest;
        let model = std::str::from_utf8(name).map_err(|_| "the model's name is not text")?;
        let mut layers = Vec::new();
        for _ in 0..self.get_len(4)? {
            let (block, experts, used) = (self.get_u32()?, self.get_u32()?, self.get_u32()?);
            let mut tensors = Vec::new();
            for _ in 0..self.get_len(2)? {
                tensors.push(TensorSize { file: self.get()?, memory: self.get()? });
            }
            layers.push(LayerHeader { block, experts, used, tensors });
        }
        match self.is_empty() {
            true => Ok(TraceHeader { model: model.to_owned(), layers }),
            false => Err("the header is too long"),
        }
    }

    pub(super) fn record(
        &mut self,
        header: &TraceHeader,
        before: Duration,
    ) -> Result<Record, Reason> {
        match self.get()? {
            GRAPH => Ok(Record::Graph(self.graph(header, before)?)),
            END => Ok(Record::End(self.get()?)),
            _ => Err("a record of an unknown kind"),
        }
    }

    fn graph(&mut self, header: &TraceHeader, before: Duration) -> Result<Graph, Reason> {
        let started = self.get_time_from(before)?;
        let (took, waited) = (self.get_time()?, self.get_time()?);
        let mut graph = Graph { started, took, waited, ..Graph::default() };
        for _ in 0..self.get_len(3)? {
            let (layer, experts) = self.layer(header)?;
            let used = self.get_u32()?;
            let tokens = self.get()?;
            let ids = u64::from(used).checked_mul(tokens).and_then(|n| usize::try_from(n).ok());
            let ids = ids.filter(|n| *n <= self.0.len() && used > 0);
            for _ in 0..ids.ok_or("a record ends early")? {
                let id = self.get_u32()?;
                if id >= experts {
                    return Err("an expert that the layer does not have");
                }
                graph.ids.push(id);
            }
            graph.layers.push(LayerOf { layer, used, end: graph.ids.len() });
        }
        for _ in 0..self.get_len(5)? {
            let (layer, experts) = self.layer(header)?;
            let expert = self.get_u32()?;
            if expert >= experts {
                return Err("an expert that the layer does not have");
            }
            let started = self.get_time_from(started)?;
            let (took, bytes) = (self.get_time()?, self.get()?);
            graph.reads.push(Read { layer, expert, started, took, bytes });
        }
        Ok(graph)
    }

    /// A layer and its number of experts.
    fn layer(&mut self, header: &TraceHeader) -> Result<(u32, u32), Reason> {
        let layer = self.get_u32()?;
        let known = header.layers.get(layer as usize);
        known.map(|known| (layer, known.experts)).ok_or("a layer that the model does not have")
    }
}

//! Reads a trace, up to where it is damaged.

use super::format::{self, BLOCK_HEAD, Cursor, MOST_PAYLOAD, Record};
use super::{Error, Graph, Result, TraceHeader, writer};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A trace in memory.
#[derive(Debug)]
pub struct Trace {
    /// What it is of.
    pub header: TraceHeader,
    /// The graphs, in the order in which they ended.
    pub graphs: Vec<Graph>,
    /// What is wrong with the file after the last of them, if anything.
    pub damage: Option<Error>,
}

impl Trace {
    /// Reads a trace, up to where it is damaged.
    ///
    /// # Errors
    /// If the file cannot be read or its header is damaged.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        TraceReader::open(path)?.read_all()
    }
}

/// Reads a trace graph by graph: an iterator that ends after the first error.
#[derive(Debug)]
pub struct TraceReader<R = BufReader<File>> {
    path: PathBuf,
    input: R,
    header: TraceHeader,
    /// Payload of the block, how much of it has been read, and where in the file it starts.
    payload: Vec<u8>,
    used: usize,
    block: u64,
    /// Where in the file the next block starts.
    next: u64,
    /// When the last graph that was read had started.
    before: Duration,
    graphs: u64,
    over: bool,
}

impl TraceReader {
    /// Opens a trace and reads its header.
    ///
    /// # Errors
    /// If the file cannot be read, is no trace or one of another version, or its header is
    /// damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |source| Error::Io { path: path.to_owned(), action: "open the trace", source };
        Self::new(path, BufReader::new(File::open(path).map_err(failed)?))
    }
}

impl<R: Read> TraceReader<R> {
    pub(super) fn new(path: &Path, mut input: R) -> Result<Self> {
        let path = path.to_owned();
        let mut start = [0; 12];
        let len = match read_up_to(&mut input, &mut start) {
            Ok(len) => len,
            Err(source) => return Err(Error::Io { path, action: "read the trace", source }),
        };
        if len < start.len() || start[..8] != format::MAGIC {
            let reason = if len < start.len() { "it is too short" } else { "it starts otherwise" };
            return Err(Error::NotATrace { path, reason });
        }
        let version = u32::from_le_bytes([start[8], start[9], start[10], start[11]]);
        if version != format::VERSION {
            return Err(Error::Version { path, version });
        }
        let mut reader = Self {
            path,
            input,
            header: TraceHeader { model: String::new(), layers: Vec::new() },
            payload: Vec::new(),
            used: 0,
            block: 0,
            next: start.len() as u64,
            before: Duration::ZERO,
            graphs: 0,
            over: false,
        };
        if !reader.read_block()? {
            return Err(reader.damaged("the file ends"));
        }
        reader.header = Cursor(&reader.payload).header().map_err(|why| reader.damaged(why))?;
        reader.used = reader.payload.len();
        if !writer::is_sound(&reader.header) {
            return Err(reader.damaged("a model that cannot be"));
        }
        Ok(reader)
    }

    pub(super) fn read_all(mut self) -> Result<Trace> {
        let (mut graphs, mut damage) = (Vec::new(), None);
        for graph in &mut self {
            match graph {
                Ok(graph) => graphs.push(graph),
                Err(error @ Error::Damaged { .. }) => damage = Some(error),
                Err(error) => return Err(error),
            }
        }
        Ok(Trace { header: self.header, graphs, damage })
    }

    /// Returns what the trace is of.
    pub const fn header(&self) -> &TraceHeader {
        &self.header
    }

    fn damaged(&self, reason: impl Into<String>) -> Error {
        Error::Damaged { path: self.path.clone(), offset: self.block, reason: reason.into() }
    }

    /// Reads the next block; false at the end of the file.
    fn read_block(&mut self) -> Result<bool> {
        self.block = self.next;
        let mut head = [0; BLOCK_HEAD];
        let len = read_up_to(&mut self.input, &mut head).map_err(|e| self.failed(e))?;
        if len == 0 {
            return Ok(false);
        }
        if len < BLOCK_HEAD {
            return Err(self.damaged("the file ends within a block"));
        }
        let (size, sum) = head.split_at(4);
        let size = u32::from_le_bytes(size.try_into().expect("4 bytes"));
        let sum = u64::from_le_bytes(sum.try_into().expect("8 bytes"));
        if size > MOST_PAYLOAD {
            return Err(self.damaged("a block is too large"));
        }
        self.payload.clear();
        self.used = 0;
        // Grows with what is there, not with what the head promises.
        let read = Read::by_ref(&mut self.input).take(size.into()).read_to_end(&mut self.payload);
        if read.map_err(|e| self.failed(e))? < size as usize {
            return Err(self.damaged("the file ends within a block"));
        }
        if xxhash_rust::xxh3::xxh3_64(&self.payload) != sum {
            return Err(self.damaged("the checksum does not match"));
        }
        self.next += BLOCK_HEAD as u64 + u64::from(size);
        Ok(true)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), action: "read the trace", source }
    }

    fn next_graph(&mut self) -> Result<Option<Graph>> {
        while self.used == self.payload.len() {
            if !self.read_block()? {
                return Err(self.damaged("the file ends; the recording was not finished"));
            }
        }
        let mut cursor = Cursor(&self.payload[self.used..]);
        let record = cursor.record(&self.header, self.before).map_err(|why| self.damaged(why))?;
        let left = cursor.0.len();
        self.used = self.payload.len() - left;
        match record {
            Record::Graph(graph) => {
                self.before = graph.started;
                self.graphs += 1;
                Ok(Some(graph))
            }
            Record::End(graphs) if graphs != self.graphs => {
                let read = self.graphs;
                Err(self.damaged(format!("there are {read} graphs before it, not {graphs}")))
            }
            Record::End(_) if left > 0 || self.read_block()? => {
                Err(self.damaged("something follows the end"))
            }
            Record::End(_) => Ok(None),
        }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Graph>;

    fn next(&mut self) -> Option<Result<Graph>> {
        if self.over {
            return None;
        }
        let graph = self.next_graph();
        self.over = !matches!(graph, Ok(Some(_)));
        graph.transpose()
    }
}

/// Reads until the buffer is full or the file ends.
fn read_up_to(input: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buf.len() {
        match input.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

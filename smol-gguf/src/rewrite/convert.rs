//! Conversions of tensors, row by row, while their data passes.

use std::io::{self, Read, Write};

use super::{Content, Entry};
use crate::atomic_file::no_thread;
use crate::error::{ErrorKind, Result};

/// Whole rows of a tensor, in their order; which ones come together is up to the pass.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'r> {
    first: u64,
    bytes: &'r [u8],
    row_bytes: usize,
}

impl<'r> Rows<'r> {
    /// Returns the number of the first row, counted over all dimensions.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the rows' bytes.
    pub fn bytes(&self) -> &'r [u8] {
        self.bytes
    }

    /// Returns how many rows there are.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    /// Iterates over the rows with their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, &'r [u8])> + use<'r> {
        let first = self.first;
        let rows = self.bytes.chunks_exact(self.row_bytes).enumerate();
        rows.map(move |(i, row)| (first + i as u64, row))
    }
}

/// Converts rows.
type Convert<'a> = Box<dyn Fn(Rows<'_>, &mut dyn Write) -> Result<()> + Send + Sync + 'a>;

/// A conversion, and the size of the rows that go in.
pub(super) struct Stage<'a> {
    row_bytes: usize,
    convert: Convert<'a>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(row_bytes: u64, convert: Convert<'a>) -> Self {
        Self { row_bytes: usize::try_from(row_bytes).unwrap_or(usize::MAX).max(1), convert }
    }
}

/// How far the data of a tensor has come through its conversions.
#[derive(Default)]
pub(super) struct Progress(Vec<StageProgress>);

#[derive(Default)]
struct StageProgress {
    /// Rows that went in.
    rows: u64,
    /// The start of a row whose end has not come yet.
    part: Vec<u8>,
}

impl Progress {
    /// Passes bytes through the conversions of a tensor to `out`.
    pub(super) fn feed(
        &mut self,
        entry: &Entry<'_>,
        bytes: &[u8],
        out: &mut dyn Write,
    ) -> Result<()> {
        self.0.resize_with(entry.stages.len(), StageProgress::default);
        feed(&entry.stages, &mut self.0, bytes, out)
    }

    /// Reports whether nothing is left that waits for more.
    pub(super) fn is_settled(&self) -> bool {
        self.0.iter().all(|stage| stage.part.is_empty())
    }
}

fn feed(
    stages: &[Stage<'_>],
    progress: &mut [StageProgress],
    mut bytes: &[u8],
    out: &mut dyn Write,
) -> Result<()> {
    let (Some((stage, later)), Some((state, states))) =
        (stages.split_first(), progress.split_first_mut())
    else {
        return Ok(out.write_all(bytes)?);
    };
    let mut run = |bytes: &[u8], rows: &mut u64| {
        let all = Rows { first: *rows, bytes, row_bytes: stage.row_bytes };
        *rows += all.len() as u64;
        if later.is_empty() {
            return (stage.convert)(all, out);
        }
        let mut converted = Vec::new();
        (stage.convert)(all, &mut converted)?;
        feed(later, states, &converted, out)
    };
    if !state.part.is_empty() {
        let missing = (stage.row_bytes - state.part.len()).min(bytes.len());
        state.part.extend_from_slice(&bytes[..missing]);
        bytes = &bytes[missing..];
        if state.part.len() < stage.row_bytes {
            return Ok(());
        }
        run(&std::mem::take(&mut state.part), &mut state.rows)?;
    }
    let whole = bytes.len() - bytes.len() % stage.row_bytes;
    if whole > 0 {
        run(&bytes[..whole], &mut state.rows)?;
    }
    state.part.extend_from_slice(&bytes[whole..]);
    Ok(())
}

impl Entry<'_> {
    /// Writes the tensor's data, converted.
    pub(super) fn write(&self, out: &mut dyn Write) -> Result<()> {
        let mut progress = Progress::default();
        self.pieces(&mut |piece| progress.feed(self, piece, out))?;
        self.check_settled(&progress)
    }

    /// Refuses data that ended within a row.
    pub(super) fn check_settled(&self, progress: &Progress) -> Result<()> {
        if progress.is_settled() {
            return Ok(());
        }
        let what = format!("the rows of tensor `{}` are not whole", self.info.name());
        Err(ErrorKind::Io(io::Error::other(what)).into())
    }

    /// Hands out the content in pieces.
    pub(super) fn pieces(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match &self.content {
            Content::Bytes(bytes) => in_pieces(bytes, each),
            Content::Produced(produce) => produce(&mut Handing(each)),
            Content::Copy { source, tensor } => {
                if let Some(bytes) = source.data_in_memory(tensor) {
                    return in_pieces(bytes, each);
                }
                let row = usize::try_from(tensor.row_bytes()).unwrap_or(1).max(1);
                // Whole rows, so that conversions need no memory for parts of them.
                let piece = if row > PIECE { row } else { PIECE - PIECE % row };
                read(&mut source.data_reader(tensor)?, tensor.n_bytes(), piece, each)
            }
        }
    }
}

/// What is read or written at once.
pub(super) const PIECE: usize = 1 << 20;

fn in_pieces(bytes: &[u8], each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    bytes.chunks(PIECE).try_for_each(each)
}

/// Hands out what is written to it.
struct Handing<'e>(&'e mut dyn FnMut(&[u8]) -> Result<()>);

impl Write for Handing<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (self.0)(buf)?;
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads in pieces; of long data the next one is read while one is used.
fn read(
    from: &mut (impl Read + Send),
    len: u64,
    piece: usize,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if len <= 4 * piece as u64 {
        let mut buf = vec![0; piece.min(len as usize)];
        while let n @ 1.. = from.read(&mut buf)? {
            each(&buf[..n])?;
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        let (full, pieces) = std::sync::mpsc::sync_channel::<io::Result<Vec<u8>>>(1);
        let (empty, buffers) = std::sync::mpsc::channel::<Vec<u8>>();
        for _ in 0..2 {
            // Its receiver lives until the thread below has it.
            let _ = empty.send(Vec::new());
        }
        let read = move || {
            for mut buf in buffers {
                buf.resize(piece, 0);
                let read = from.read(&mut buf).map(|n| {
                    buf.truncate(n);
                    buf
                });
                let ends = read.as_ref().map_or(true, Vec::is_empty);
                // The user is gone when it has failed.
                if full.send(read).is_err() || ends {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("gguf-reader".into());
        thread.spawn_scoped(scope, read).map_err(no_thread)?;
        for piece in pieces {
            let piece = piece?;
            each(&piece)?;
            let _ = empty.send(piece);
        }
        Ok(())
    })
}

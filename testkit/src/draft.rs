//! A model file as a plan: metadata, and tensors whose bytes are made while writing.

use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use smol_gguf::{DataWriter, Metadata, TensorType, Writer};

use crate::quant;

/// About this many elements are converted at once by one thread.
const PIECE_ELEMENTS: usize = 1 << 20;
/// Files from this size on report progress.
const PROGRESS_FROM: u64 = 64 << 20;

type Piece<'a> = Box<dyn Fn(usize) -> Result<Vec<u8>> + Send + Sync + 'a>;

struct Planned<'a> {
    name: String,
    dims: Vec<u64>,
    ty: TensorType,
    pieces: usize,
    make: Piece<'a>,
}

/// A model file to be written: metadata in order, and a recipe for the bytes of each tensor.
///
/// Only a piece of a tensor for each thread is in memory at a time, whatever the file's size.
#[derive(Default)]
pub struct Draft<'a> {
    /// The metadata, in the order in which it is written.
    pub metadata: Metadata,
    tensors: Vec<Planned<'a>>,
}

impl<'a> Draft<'a> {
    /// Starts a plan with this metadata.
    pub fn new(metadata: Metadata) -> Self {
        Self { metadata, tensors: Vec::new() }
    }

    /// Plans a tensor whose rows (of `dims[0]` elements each) are given as numbers.
    ///
    /// `rows` is called for ranges of rows, from several threads.
    pub fn rows(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: TensorType,
        rows: impl Fn(Range<usize>) -> Result<Vec<f32>> + Send + Sync + 'a,
    ) {
        let row_len = dims[0] as usize;
        let count = dims[1..].iter().product::<u64>() as usize;
        let step = (PIECE_ELEMENTS / row_len.max(1)).max(1);
        self.pieces(name, dims, ty, count.div_ceil(step), move |piece| {
            let range = piece * step..((piece + 1) * step).min(count);
            let expected = range.len() * row_len;
            let values = rows(range)?;
            ensure!(values.len() == expected, "{} values, not {expected}", values.len());
            quant::encode(ty, &values, row_len)
        });
    }

    /// Plans a tensor of `F32` that is at hand.
    pub fn floats(&mut self, name: &str, dims: &[u64], values: Vec<f32>) {
        let row_len = dims[0] as usize;
        self.pieces(name, dims, TensorType::F32, 1, move |_| {
            quant::encode(TensorType::F32, &values, row_len)
        });
    }

    /// Plans a tensor whose bytes come in `count` pieces, made in any order by several threads.
    pub fn pieces(
        &mut self,
        name: &str,
        dims: &[u64],
        ty: TensorType,
        count: usize,
        make: impl Fn(usize) -> Result<Vec<u8>> + Send + Sync + 'a,
    ) {
        let (name, dims) = (name.to_owned(), dims.to_vec());
        self.tensors.push(Planned { name, dims, ty, pieces: count, make: Box::new(make) });
    }

    /// Writes the file; large ones report progress on standard error.
    ///
    /// # Errors
    /// If a tensor can't be made or the file can't be written; no partial file stays.
    pub fn write(self, path: &Path) -> Result<()> {
        let mut writer = Writer::with_metadata(self.metadata);
        for tensor in &self.tensors {
            writer.tensor(&tensor.name, &tensor.dims, tensor.ty)?;
        }
        let (_, total) = writer.layout()?;
        let mut progress = Progress::new(path, total);
        let mut failure = None;
        let written = writer.write_file(path, |data| {
            for tensor in &self.tensors {
                if let Err(error) = write_tensor(tensor, data, &mut progress) {
                    failure = Some(error.context(format!("making {}", tensor.name)));
                    return Err(io::Error::other("a tensor could not be made").into());
                }
            }
            Ok(())
        });
        match failure {
            Some(error) => Err(error.context(format!("writing {}", path.display()))),
            None => written.context("writing a model"),
        }
    }
}

fn write_tensor(
    tensor: &Planned<'_>,
    data: &mut DataWriter<&mut dyn Write>,
    progress: &mut Progress,
) -> Result<()> {
    let mut sink = data.tensor(&tensor.name)?;
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    for first in (0..tensor.pieces).step_by(threads) {
        let batch = first..(first + threads).min(tensor.pieces);
        let made = in_parallel(batch, |piece| (tensor.make)(piece));
        for bytes in made {
            let bytes = bytes?;
            sink.write_all(&bytes)?;
            progress.add(bytes.len() as u64);
        }
    }
    sink.finish()?;
    Ok(())
}

/// Calls `make` for each index, each on a thread of its own, and returns the results in order.
pub fn in_parallel<T: Send>(
    indices: Range<usize>,
    make: impl Fn(usize) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    if indices.len() < 2 {
        return indices.map(make).collect();
    }
    thread::scope(|scope| {
        let make = &make;
        let running: Vec<_> = indices.map(|index| scope.spawn(move || make(index))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
            .collect()
    })
}

/// Reports on standard error how much of a large file is written.
struct Progress {
    label: String,
    total: u64,
    done: u64,
    shown: u64,
    terminal: bool,
}

impl Progress {
    fn new(path: &Path, total: u64) -> Self {
        let label = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self { label, total, done: 0, shown: 0, terminal: io::stderr().is_terminal() }
    }

    fn add(&mut self, bytes: u64) {
        self.done += bytes;
        let percent = self.done * 100 / self.total.max(1);
        let step = if self.terminal { 1 } else { 20 };
        if self.total < PROGRESS_FROM || percent < self.shown + step {
            return;
        }
        self.shown = percent;
        let (start, end) = if self.terminal { ("\r", "") } else { ("", "\n") };
        let (done, total) = (self.done >> 20, self.total >> 20);
        // Progress is a courtesy: a closed standard error is no reason to fail.
        let _ = write!(io::stderr(), "{start}{}: {done} of {total} MiB{end}", self.label);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && self.shown > 0 {
            let _ = writeln!(io::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_tensor_of_many_pieces_is_written_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let mut draft = Draft::default();
        draft.metadata.set("general.architecture", "none");
        let row_len = 1 << 19;
        draft.rows("a", &[row_len, 7], TensorType::F32, |rows| {
            Ok(rows.flat_map(|row| vec![row as f32; 1 << 19]).collect())
        });
        draft.floats("b", &[2, 2], vec![1.0, 2.0, 3.0, 4.0]);
        draft.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tail = &bytes[bytes.len() - 32..];
        let data = &bytes[bytes.len() - 32 - 7 * 4 * row_len as usize..];
        assert_eq!(tail[..16], [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat());
        for row in 0..7 {
            let at = row * 4 * row_len as usize;
            assert_eq!(data[at..at + 4], (row as f32).to_le_bytes());
        }
    }

    #[test]
    fn a_failure_names_the_tensor_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let mut draft = Draft::default();
        draft.rows("bad", &[2, 2], TensorType::F32, |_| bail!("no such rows"));
        let error = format!("{:#}", draft.write(&path).unwrap_err());
        assert!(error.contains("bad") && error.contains("no such rows"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

//! Writing: the header from declarations, then the data as a stream.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::Path;

use crate::error::{ErrorKind, Result};
use crate::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, MAGIC, Metadata, TensorInfo, TensorType, VERSION,
    Value, atomic_file,
};

/// Declares the contents of a file: metadata in order, then tensors in order.
///
/// [`start`](Self::start) writes the header and returns a [`DataWriter`] for the tensors' data,
/// which goes out in declared order, in constant memory and without seeking.
///
/// # Examples
///
/// ```
/// use smol_gguf::{Gguf, TensorType, Writer};
///
/// let mut writer = Writer::new();
/// writer.set("general.architecture", "llama");
/// writer.set("llama.block_count", 1u32);
/// writer.tensor("output_norm.weight", &[4], TensorType::F32)?;
///
/// let mut data = writer.start(Vec::new())?;
/// data.write_tensor("output_norm.weight", &[0; 16])?;
/// let bytes = data.finish()?;
///
/// let gguf = Gguf::from_bytes(bytes)?;
/// assert_eq!(gguf.get_u32("llama.block_count"), Some(1));
/// # Ok::<(), smol_gguf::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    names: HashSet<String>,
}

impl Writer {
    /// Declares an empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a file with this metadata and no tensors yet.
    pub fn with_metadata(metadata: Metadata) -> Self {
        Self { metadata, ..Self::default() }
    }

    /// Sets a metadata key; a key that is set again keeps its place.
    ///
    /// `general.alignment` sets the alignment of the data, 32 bytes without it.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.metadata.set(key, value);
        self
    }

    /// Returns the metadata set so far.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the metadata for editing.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Declares the next tensor; `shape` has the length of a row first, as in ggml.
    ///
    /// # Errors
    ///
    /// When the name was declared before, or as [`TensorInfo::new`].
    pub fn tensor(
        &mut self,
        name: impl Into<String>,
        shape: &[u64],
        ty: TensorType,
    ) -> Result<&mut Self> {
        let info = TensorInfo::new(name, shape, ty, 0)?;
        if !self.names.insert(info.name().to_owned()) {
            return Err(ErrorKind::DuplicateTensor { tensor: info.name().to_owned() }.into());
        }
        self.tensors.push(info);
        Ok(self)
    }

    /// Returns the tensors declared so far; their offsets are set by [`layout`](Self::layout).
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensors with the offsets they get in the file, and the size of the whole file
    /// in bytes.
    ///
    /// # Errors
    ///
    /// When a key is empty, the alignment isn't a power of two, or the size exceeds `i64`.
    pub fn layout(&self) -> Result<(Vec<TensorInfo>, u64)> {
        let plan = self.plan()?;
        Ok((plan.tensors, plan.file_len))
    }

    /// Returns the tensors with their offsets, and the start of the data section.
    pub(crate) fn places(&self) -> Result<(Vec<TensorInfo>, u64)> {
        let plan = self.plan()?;
        Ok((plan.tensors, plan.data_offset))
    }

    /// Writes the header, ready for the data.
    ///
    /// # Errors
    ///
    /// As [`layout`](Self::layout), and when `out` fails.
    pub fn start<W: Write>(&self, mut out: W) -> Result<DataWriter<W>> {
        let plan = self.plan()?;
        let mut header = HeaderWriter { out: &mut out, position: 0 };
        header.write(&self.metadata, &plan.tensors)?;
        header.pad(plan.alignment)?;
        Ok(DataWriter {
            out,
            tensors: plan.tensors,
            next: 0,
            written: 0,
            alignment: plan.alignment,
            padding_due: 0,
        })
    }

    /// Writes a whole file: `data` is called to write the tensors' data.
    ///
    /// The file appears under its name only when all is written and synced to disk; on any error
    /// there is no partial file, and an existing one stays as it was.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start) and [`DataWriter::finish`], and what `data` returns.
    ///
    /// # Examples
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("tiny.gguf");
    /// use smol_gguf::{TensorType, Writer};
    ///
    /// let mut writer = Writer::new();
    /// writer.tensor("a", &[2], TensorType::F32)?;
    /// writer.write_file(&path, |data| data.write_tensor("a", &[0; 8]))?;
    /// # Ok::<(), smol_gguf::Error>(())
    /// ```
    pub fn write_file(
        &self,
        path: impl AsRef<Path>,
        data: impl FnOnce(&mut DataWriter<&mut dyn Write>) -> Result<()>,
    ) -> Result<()> {
        let path = path.as_ref();
        atomic_file::write(path, |out| {
            let mut writer = self.start(out)?;
            data(&mut writer)?;
            writer.finish()?;
            Ok(())
        })
        .map_err(|e| e.at(path))
    }

    fn plan(&self) -> Result<Plan> {
        for (index, (key, _)) in self.metadata.iter().enumerate() {
            if key.is_empty() {
                return Err(ErrorKind::EmptyKey { index: index as u64 }.into());
            }
        }
        let alignment = alignment(&self.metadata)?;
        let mut count = HeaderWriter { out: &mut io::sink(), position: 0 };
        count.write(&self.metadata, &self.tensors)?;
        let data_offset = count.position.next_multiple_of(alignment);
        let mut offset = 0u64;
        let mut tensors = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            tensors.push(tensor.clone().with_offset(offset));
            offset = tensor
                .n_bytes()
                .checked_next_multiple_of(alignment)
                .and_then(|padded| offset.checked_add(padded))
                .filter(|&end| i64::try_from(end).is_ok_and(|_| end < u64::MAX - data_offset))
                .ok_or_else(|| ErrorKind::TensorTooLarge {
                    tensor: tensor.name().to_owned(),
                    shape: tensor.shape().to_vec(),
                })?;
        }
        Ok(Plan { tensors, alignment, data_offset, file_len: data_offset + offset })
    }
}

struct Plan {
    tensors: Vec<TensorInfo>,
    alignment: u64,
    data_offset: u64,
    file_len: u64,
}

/// Returns the alignment that the metadata asks for, in bytes.
pub(crate) fn alignment(metadata: &Metadata) -> Result<u64> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(v)) if v.is_power_of_two() => Ok(v.into()),
        Some(v) => Err(ErrorKind::Alignment { found: format!("{v} of type {}", v.ty()) }.into()),
    }
}

/// Writes the tensors' data in declared order, with padding between.
///
/// Data comes as a slice ([`write_tensor`](Self::write_tensor)), from a reader
/// ([`copy_tensor`](Self::copy_tensor)) or piece by piece ([`tensor`](Self::tensor)).
#[derive(Debug)]
pub struct DataWriter<W> {
    out: W,
    tensors: Vec<TensorInfo>,
    /// The tensor that is written now or next.
    next: usize,
    /// Bytes of that tensor already written.
    written: u64,
    alignment: u64,
    /// Padding after the last finished tensor; written late so that errors come before it.
    padding_due: u64,
}

impl<W: Write> DataWriter<W> {
    /// Returns the tensors as laid out in the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor whose data is due, `None` when all are complete.
    pub fn next_tensor(&self) -> Option<&TensorInfo> {
        self.tensors[self.next..].first()
    }

    /// Writes all data of the tensor that is due.
    ///
    /// # Errors
    ///
    /// When another tensor is due, `data` has another size than declared, or the output fails.
    pub fn write_tensor(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let expected = self.expect(name)?;
        if data.len() as u64 != expected {
            return Err(ErrorKind::WriteSize {
                tensor: name.to_owned(),
                expected,
                found: data.len() as u64,
            }
            .into());
        }
        let mut sink = self.tensor(name)?;
        sink.write_all(data)?;
        sink.finish()
    }

    /// Writes the data of the tensor that is due from a reader, which must yield exactly its size.
    ///
    /// # Errors
    ///
    /// When another tensor is due, the reader has fewer or more bytes, or either side fails.
    pub fn copy_tensor(&mut self, name: &str, data: impl Read) -> Result<()> {
        let expected = self.expect(name)?;
        let mut sink = self.tensor(name)?;
        // One byte more than expected shows data that is too long.
        let copied = io::copy(&mut data.take(expected.saturating_add(1)), &mut sink)?;
        if copied != expected {
            return Err(
                ErrorKind::WriteSize { tensor: name.to_owned(), expected, found: copied }.into()
            );
        }
        sink.finish()
    }

    /// Starts the tensor that is due, for writing it piece by piece.
    ///
    /// # Errors
    ///
    /// When another tensor is due, or this one has been started before.
    pub fn tensor(&mut self, name: &str) -> Result<TensorWriter<'_, W>> {
        self.expect(name)?;
        self.pad()?;
        Ok(TensorWriter { data: self })
    }

    /// Writes the last padding and returns the output, flushed.
    ///
    /// # Errors
    ///
    /// When the data of a tensor is missing, or the output fails.
    pub fn finish(mut self) -> Result<W> {
        self.settle();
        if let Some(due) = self.next_tensor() {
            return Err(ErrorKind::WriteSize {
                tensor: due.name().to_owned(),
                expected: due.n_bytes(),
                found: self.written,
            }
            .into());
        }
        self.pad()?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Returns the size of the tensor that is due if it has this name and isn't begun.
    fn expect(&mut self, name: &str) -> Result<u64> {
        self.settle();
        match self.next_tensor() {
            Some(due) if self.written > 0 => Err(ErrorKind::WriteSize {
                tensor: due.name().to_owned(),
                expected: due.n_bytes(),
                found: self.written,
            }
            .into()),
            Some(due) if due.name() == name => Ok(due.n_bytes()),
            due => Err(ErrorKind::WriteOrder {
                expected: due.map_or("no more data".into(), |t| format!("`{}`", t.name())),
                found: name.to_owned(),
            }
            .into()),
        }
    }

    /// Moves on if the tensor that is due has begun and is complete.
    fn settle(&mut self) {
        if let Some(due) = self.next_tensor()
            && self.written == due.n_bytes()
            && self.written > 0
        {
            self.complete();
        }
    }

    fn complete(&mut self) {
        self.padding_due = self.written.next_multiple_of(self.alignment) - self.written;
        self.next += 1;
        self.written = 0;
    }

    fn pad(&mut self) -> Result<()> {
        write_zeros(&mut self.out, std::mem::take(&mut self.padding_due))?;
        Ok(())
    }
}

/// Receives the data of one tensor; dropped early, the next call on the [`DataWriter`] fails.
#[derive(Debug)]
pub struct TensorWriter<'a, W> {
    data: &'a mut DataWriter<W>,
}

impl<W: Write> TensorWriter<'_, W> {
    /// Returns the number of bytes still missing.
    pub fn remaining(&self) -> u64 {
        self.data.next_tensor().map_or(0, |t| t.n_bytes() - self.data.written)
    }

    /// Ends the tensor.
    ///
    /// # Errors
    ///
    /// When bytes are missing.
    pub fn finish(self) -> Result<()> {
        if self.remaining() > 0
            && let Some(due) = self.data.next_tensor()
        {
            return Err(ErrorKind::WriteSize {
                tensor: due.name().to_owned(),
                expected: due.n_bytes(),
                found: self.data.written,
            }
            .into());
        }
        self.data.complete();
        Ok(())
    }
}

impl<W: Write> Write for TensorWriter<'_, W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let remaining = self.remaining();
        if buf.len() as u64 > remaining {
            let due = &self.data.tensors[self.data.next];
            return Err(crate::Error::from(ErrorKind::WriteSize {
                tensor: due.name().to_owned(),
                expected: due.n_bytes(),
                found: self.data.written.saturating_add(buf.len() as u64),
            })
            .into());
        }
        let n = self.data.out.write(buf)?;
        self.data.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.data.out.flush()
    }
}

fn write_zeros(out: &mut (impl Write + ?Sized), mut n: u64) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    while n > 0 {
        let len = n.min(ZEROS.len() as u64) as usize;
        out.write_all(&ZEROS[..len])?;
        n -= len as u64;
    }
    Ok(())
}

/// Writes header fields and counts their bytes.
struct HeaderWriter<'a, W: ?Sized> {
    out: &'a mut W,
    position: u64,
}

impl<W: Write + ?Sized> HeaderWriter<'_, W> {
    fn write(&mut self, metadata: &Metadata, tensors: &[TensorInfo]) -> io::Result<()> {
        self.bytes(&MAGIC)?;
        self.bytes(&VERSION.to_le_bytes())?;
        self.len(tensors.len())?;
        self.len(metadata.len())?;
        for (key, value) in metadata.iter() {
            self.string(key.as_bytes())?;
            self.bytes(&value.ty().id().to_le_bytes())?;
            self.value(value)?;
        }
        for tensor in tensors {
            self.string(tensor.name().as_bytes())?;
            self.bytes(&(tensor.shape().len() as u32).to_le_bytes())?;
            for dim in tensor.shape() {
                self.bytes(&dim.to_le_bytes())?;
            }
            self.bytes(&tensor.ty().id().to_le_bytes())?;
            self.bytes(&tensor.offset().to_le_bytes())?;
        }
        Ok(())
    }

    fn pad(&mut self, alignment: u64) -> io::Result<()> {
        let n = self.position.next_multiple_of(alignment) - self.position;
        self.position += n;
        write_zeros(self.out, n)
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.position += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn len(&mut self, len: usize) -> io::Result<()> {
        self.bytes(&(len as u64).to_le_bytes())
    }

    fn string(&mut self, s: &[u8]) -> io::Result<()> {
        self.len(s.len())?;
        self.bytes(s)
    }

    fn value(&mut self, value: &Value) -> io::Result<()> {
        match value {
            Value::U8(v) => self.bytes(&v.to_le_bytes()),
            Value::I8(v) => self.bytes(&v.to_le_bytes()),
            Value::U16(v) => self.bytes(&v.to_le_bytes()),
            Value::I16(v) => self.bytes(&v.to_le_bytes()),
            Value::U32(v) => self.bytes(&v.to_le_bytes()),
            Value::I32(v) => self.bytes(&v.to_le_bytes()),
            Value::F32(v) => self.bytes(&v.to_le_bytes()),
            Value::Bool(v) => self.bytes(&[u8::from(*v)]),
            Value::String(v) => self.string(v.as_bytes()),
            Value::Array(v) => self.array(v),
            Value::U64(v) => self.bytes(&v.to_le_bytes()),
            Value::I64(v) => self.bytes(&v.to_le_bytes()),
            Value::F64(v) => self.bytes(&v.to_le_bytes()),
        }
    }

    fn array(&mut self, array: &Array) -> io::Result<()> {
        self.bytes(&array.ty().id().to_le_bytes())?;
        self.len(array.len())?;
        match array {
            Array::U8(a) => self.bytes(a),
            Array::I8(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::U16(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::I16(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::U32(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::I32(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::F32(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::Bool(a) => a.iter().try_for_each(|&v| self.bytes(&[u8::from(v)])),
            Array::String(a) => a.iter().try_for_each(|s| self.string(s)),
            Array::U64(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::I64(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
            Array::F64(a) => a.iter().try_for_each(|v| self.bytes(&v.to_le_bytes())),
        }
    }
}

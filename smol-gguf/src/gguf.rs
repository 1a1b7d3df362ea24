//! Reading: the header in memory, the data in place or on demand.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{ErrorKind, Result};
use crate::header::{self, Accept, Header};
use crate::mapped::MappedFile;
use crate::source::{PositionedFile, Source};
use crate::stream::{ByteStream, Stream};
use crate::{Metadata, TensorInfo, experts};

/// A GGUF file: metadata and tensor descriptions in memory, tensor data within reach.
///
/// The metadata's getters are available directly, through `Deref`.
///
/// A header is parsed in memory bounded by the file's size, whatever the bytes are. Tensor data
/// may still be missing at the end; [`data`](Self::data) and [`check`](crate::check) tell.
///
/// # Examples
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # let mut writer = smol_gguf::Writer::new();
/// # writer.set("general.architecture", "llama").set("llama.block_count", 30u32);
/// # writer.write_file(&path, |_| Ok(()))?;
/// use smol_gguf::Gguf;
///
/// let gguf = Gguf::open(&path)?;
/// println!("{:?}, {} tensors", gguf.architecture(), gguf.tensors().len());
/// assert_eq!(gguf.get_u32("llama.block_count"), Some(30));
/// # Ok::<(), smol_gguf::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gguf {
    path: Option<PathBuf>,
    source: Source,
    punched: bool,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    alignment: u64,
    data_offset: u64,
    file_len: u64,
}

impl Gguf {
    /// Opens a file with plain reads and keeps it open for reading tensor data.
    ///
    /// Should the file be shortened meanwhile, reading data returns an error; compare
    /// [`open_mapped`](Self::open_mapped).
    ///
    /// # Errors
    ///
    /// When the file can't be read or its header isn't valid; the error names the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_as(path.as_ref(), Accept::Whole)
    }

    /// Opens a file as [`open`](Self::open) does, also if its experts were
    /// [punched out](crate::Punch); their data is out of reach then.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_punched(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_as(path.as_ref(), Accept::Punched)
    }

    fn open_as(path: &Path, accept: Accept) -> Result<Self> {
        let read = || {
            let (file, file_len) = open_file(path)?;
            let header = Self::header_of(&file, file_len, accept)?;
            Ok(Self::new(header, Source::File(Arc::new(PositionedFile::new(file))), file_len))
        };
        read().map(|gguf: Self| gguf.named(path)).map_err(|e: crate::Error| e.at(path))
    }

    fn header_of(file: &File, file_len: u64, accept: Accept) -> Result<Header> {
        header::parse(BufReader::with_capacity(1 << 18, file), file_len, accept)
    }

    /// Reads the header of an open file, punched or not.
    pub(crate) fn header_of_open(file: &File, path: &Path) -> Result<Self> {
        let file_len = file.metadata()?.len();
        let mut start = file;
        start.rewind()?;
        let header = Self::header_of(file, file_len, Accept::Punched)?;
        Ok(Self::new(header, Source::HeaderOnly, file_len).named(path))
    }

    /// Reads only the header with plain reads and closes the file.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn read_header(path: impl AsRef<Path>) -> Result<Self> {
        let mut gguf = Self::open(path)?;
        gguf.source = Source::HeaderOnly;
        Ok(gguf)
    }

    /// Maps a file, so that tensor data is borrowed without a copy.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// # Safety
    ///
    /// No process may write to the file or shorten it while the result or a clone of it lives.
    /// Otherwise borrowed data changes under its readers, and reading behind the new end kills
    /// the process with SIGBUS. Where this can't be promised, use [`open`](Self::open).
    #[allow(unsafe_code)]
    pub unsafe fn open_mapped(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let read = || {
            let (file, file_len) = open_file(path)?;
            // An empty file can't be mapped; parsing nothing gives the right error.
            let map = if file_len == 0 {
                return Err(ErrorKind::Empty.into());
            } else {
                // SAFETY: the caller promises that the file stays as it is.
                unsafe { MappedFile::new(&file) }?
            };
            let file_len = map.len() as u64;
            let header = header::parse(&map[..], file_len, Accept::Whole)?;
            Ok(Self::new(header, Source::Mapped(Arc::new(map)), file_len))
        };
        read().map(|gguf: Self| gguf.named(path)).map_err(|e: crate::Error| e.at(path))
    }

    /// Parses a file that is in memory.
    ///
    /// # Errors
    ///
    /// When the header isn't valid.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        let file_len = bytes.len() as u64;
        let header = header::parse(&bytes[..], file_len, Accept::Whole)?;
        Ok(Self::new(header, Source::Bytes(bytes), file_len))
    }

    /// Reads the header of a file that comes once, front to back. `name` stands for it in errors.
    ///
    /// Tensor data can be read once too, in the file's order; what is left out is passed by.
    /// [`Rewriter`](crate::Rewriter) does so.
    ///
    /// # Errors
    ///
    /// When reading fails or the header isn't valid.
    pub fn from_stream(name: impl AsRef<Path>, stream: impl ByteStream + 'static) -> Result<Self> {
        let read = || {
            let (stream, len) = Stream::new(Box::new(stream))?;
            // Nobody knows: lengths in the header are only believed as far as bytes come.
            let most = len.unwrap_or(i64::MAX as u64);
            let header = header::parse(stream.reader(), most, Accept::Whole)?;
            let end = |t: &TensorInfo| t.offset().saturating_add(t.n_bytes());
            let data_len = header.tensors.iter().map(end).max().unwrap_or(0);
            let file_len = len.unwrap_or(header.data_offset.saturating_add(data_len));
            Ok(Self::new(header, Source::Stream(Arc::new(stream)), file_len))
        };
        let name = name.as_ref();
        read().map(|gguf: Self| gguf.named(name)).map_err(|e: crate::Error| e.at(name))
    }

    /// Reports whether the file comes [once, front to back](Self::from_stream).
    pub fn is_stream(&self) -> bool {
        matches!(self.source, Source::Stream(_))
    }

    /// Returns the open file that tensor data is read from, if there is one.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_file(&self) -> Option<&File> {
        match &self.source {
            Source::File(file) => Some(file.file()),
            _ => None,
        }
    }

    fn new(header: Header, source: Source, file_len: u64) -> Self {
        let Header { punched, version, metadata, tensors, alignment, data_offset } = header;
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name().to_owned(), i)).collect();
        Self {
            path: None,
            source,
            punched,
            version,
            metadata,
            tensors,
            index,
            alignment,
            data_offset,
            file_len,
        }
    }

    fn named(mut self, path: &Path) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    /// Returns the file's path, `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Reports whether the data of the file's experts was [punched out](crate::Punch).
    pub fn is_punched(&self) -> bool {
        self.punched
    }

    /// Returns the version of the format, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Replaces the metadata in memory, to check what values that override the file's would do.
    pub(crate) fn replace_metadata(&mut self, metadata: Metadata) {
        self.metadata = metadata;
    }

    /// Returns the tensors in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// Returns the alignment of tensor data in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Returns the start of the data section in bytes from the start of the file.
    pub fn data_offset(&self) -> u64 {
        self.data_offset
    }

    /// Returns the size of the file in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Returns the size of all tensors' data in bytes, without padding.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |sum, t| sum.saturating_add(t.n_bytes()))
    }

    /// Returns the start of a tensor's data in bytes from the start of the file.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::DataTruncated`] when the data isn't all in the file.
    pub fn file_offset(&self, tensor: &TensorInfo) -> Result<u64> {
        let start = self.data_offset.saturating_add(tensor.offset());
        let end = start.saturating_add(tensor.n_bytes());
        if end > self.file_len {
            let error = crate::Error::from(ErrorKind::DataTruncated {
                tensor: tensor.name().to_owned(),
                end,
                file_len: self.file_len,
                missing: end - self.file_len,
            });
            return Err(self.locate(error));
        }
        Ok(start)
    }

    /// Returns a tensor's data: borrowed if the file is in memory, read otherwise.
    ///
    /// # Errors
    ///
    /// When the data isn't all in the file, reading fails, or only the header was read.
    pub fn data(&self, tensor: &TensorInfo) -> Result<Cow<'_, [u8]>> {
        let start = self.start(tensor)?;
        self.source.bytes(start, tensor.n_bytes()).map_err(|e| self.locate(e.into()))
    }

    /// Returns a tensor's data without a copy, `None` if the file isn't in memory.
    pub fn data_in_memory(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        self.source.slice(self.start(tensor).ok()?, tensor.n_bytes())
    }

    /// Fills `buf` from a tensor's data, `from` bytes after its start.
    ///
    /// # Errors
    ///
    /// As [`data`](Self::data), and when the tensor ends before `buf` is full.
    pub fn read_data(&self, tensor: &TensorInfo, from: u64, buf: &mut [u8]) -> Result<()> {
        let start = self.start(tensor)?;
        if from.saturating_add(buf.len() as u64) > tensor.n_bytes() {
            return Err(self.locate(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
        }
        self.source.read_exact_at(buf, start + from).map_err(|e| self.locate(e.into()))
    }

    /// Returns a reader of a tensor's data, which needs no memory for it.
    ///
    /// # Errors
    ///
    /// As [`data`](Self::data).
    pub fn data_reader(&self, tensor: &TensorInfo) -> Result<TensorReader<'_>> {
        let position = self.start(tensor)?;
        Ok(TensorReader { gguf: self, position, end: position + tensor.n_bytes() })
    }

    fn start(&self, tensor: &TensorInfo) -> Result<u64> {
        if matches!(self.source, Source::HeaderOnly) {
            let tensor = tensor.name().to_owned();
            return Err(self.locate(ErrorKind::HeaderOnly { tensor }.into()));
        }
        if self.punched && experts::is_expert(tensor) {
            return Err(self.locate(ErrorKind::Punched.into()));
        }
        self.file_offset(tensor)
    }

    /// Names this file in an error.
    pub(crate) fn locate(&self, error: crate::Error) -> crate::Error {
        match &self.path {
            Some(path) => error.at(path),
            None => error,
        }
    }
}

impl Deref for Gguf {
    type Target = Metadata;

    fn deref(&self) -> &Metadata {
        &self.metadata
    }
}

/// Reads the data of one tensor from start to end.
#[derive(Debug)]
pub struct TensorReader<'a> {
    gguf: &'a Gguf,
    position: u64,
    end: u64,
}

impl Read for TensorReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = (self.end - self.position).min(buf.len() as u64) as usize;
        self.gguf
            .source
            .read_exact_at(&mut buf[..n], self.position)
            .map_err(|e| io::Error::from(self.gguf.locate(e.into())))?;
        self.position += n as u64;
        Ok(n)
    }
}

fn open_file(path: &Path) -> Result<(File, u64)> {
    let file = File::open(path)?;
    let info = file.metadata()?;
    if info.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory).into());
    }
    Ok((file, info.len()))
}

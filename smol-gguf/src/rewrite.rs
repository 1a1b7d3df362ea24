//! Rewriting: a copy of a file with changed keys and tensors, in constant memory.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;

use crate::error::{ErrorKind, Result};
use crate::writer::DataWriter;
use crate::{
    ExpertName, Gguf, Metadata, Shards, TensorInfo, TensorType, Value, Writer, atomic_file, experts,
};

/// Produces the data of a tensor when its turn comes.
type Produce<'a> = Box<dyn Fn(&mut dyn Write) -> Result<()> + Send + Sync + 'a>;

enum Content<'a> {
    /// The data of a tensor of a source file.
    Copy { source: &'a Gguf, tensor: TensorInfo },
    /// Bytes in memory.
    Bytes(Cow<'a, [u8]>),
    /// Bytes that a function writes.
    Produced(Produce<'a>),
}

/// A tensor of the new file.
pub struct Entry<'a> {
    info: TensorInfo,
    content: Content<'a>,
}

impl Entry<'_> {
    /// Returns name, shape and type; the offset isn't set yet.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let content = match &self.content {
            Content::Copy { tensor, .. } => format!("copy of {}", tensor.name()),
            Content::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Content::Produced(_) => "produced".into(),
        };
        f.debug_struct("Entry").field("info", &self.info).field("content", &content).finish()
    }
}

/// A plan for a new file made from others: keys and tensors as in the source, then edited.
///
/// Edits are cheap and combine in any order; data moves only when the file is written, once,
/// front to back, in constant memory.
///
/// # Examples
///
/// ```
/// # use smol_gguf::{TensorType, Writer};
/// # let mut writer = Writer::new();
/// # writer.set("general.name", "old").set("tokenizer.chat_template", "{{ broken");
/// # writer.tensor("a", &[2], TensorType::F32)?.tensor("b", &[1], TensorType::F32)?;
/// # let mut data = writer.start(Vec::new())?;
/// # data.write_tensor("a", &[1; 8])?;
/// # data.write_tensor("b", &[2; 4])?;
/// # let bytes = data.finish()?;
/// use smol_gguf::{Gguf, Rewriter};
///
/// let source = Gguf::from_bytes(bytes)?;
/// let mut plan = Rewriter::new(&source);
/// plan.set("general.name", "new").remove_key("tokenizer.chat_template");
/// plan.sort_by_key(|tensor| tensor.name() == "a"); // `a` goes last
/// plan.replace("b", &[2], TensorType::F16, vec![0; 4])?;
///
/// let new = Gguf::from_bytes(plan.write(Vec::new())?)?;
/// assert_eq!(new.get_str("general.name"), Some("new"));
/// assert_eq!(new.tensors()[1].name(), "a");
/// # Ok::<(), smol_gguf::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Rewriter<'a> {
    metadata: Metadata,
    entries: Vec<Entry<'a>>,
}

impl<'a> Rewriter<'a> {
    /// Plans a copy of a file.
    pub fn new(source: &'a Gguf) -> Self {
        let mut plan = Self { metadata: source.metadata().clone(), entries: Vec::new() };
        plan.copy_tensors(source);
        plan
    }

    /// Plans a single file with all that is in the shards of a split one.
    pub fn from_shards(shards: &'a Shards) -> Self {
        let mut metadata = shards.first().metadata().clone();
        for key in crate::shards::SPLIT_KEYS {
            metadata.remove(key);
        }
        let mut plan = Self { metadata, entries: Vec::new() };
        for shard in shards.iter() {
            plan.copy_tensors(shard);
        }
        plan
    }

    /// Plans an empty file with this metadata.
    pub fn empty(metadata: Metadata) -> Self {
        Self { metadata, entries: Vec::new() }
    }

    fn copy_tensors(&mut self, source: &'a Gguf) {
        self.entries.extend(source.tensors().iter().map(|tensor| Entry {
            info: tensor.clone(),
            content: Content::Copy { source, tensor: tensor.clone() },
        }));
    }

    /// Sets a key; an existing one keeps its place.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.metadata.set(key, value);
        self
    }

    /// Removes a key, if it is there.
    pub fn remove_key(&mut self, key: &str) -> &mut Self {
        self.metadata.remove(key);
        self
    }

    /// Returns the metadata of the new file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the metadata of the new file for editing.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Iterates over the tensors of the new file in order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> + '_ {
        self.entries.iter().map(|e| &e.info)
    }

    /// Removes a tensor.
    ///
    /// # Errors
    ///
    /// When there is none of this name.
    pub fn remove_tensor(&mut self, name: &str) -> Result<&mut Self> {
        let at = self.position(name)?;
        self.entries.remove(at);
        Ok(self)
    }

    /// Keeps only the tensors for which `keep` returns true.
    pub fn retain_tensors(&mut self, mut keep: impl FnMut(&TensorInfo) -> bool) -> &mut Self {
        self.entries.retain(|e| keep(&e.info));
        self
    }

    /// Renames a tensor.
    ///
    /// # Errors
    ///
    /// When there is none of this name, or the new name is too long.
    pub fn rename_tensor(&mut self, name: &str, new_name: &str) -> Result<&mut Self> {
        let entry = self.entry(name)?;
        entry.info = TensorInfo::new(new_name, entry.info.shape(), entry.info.ty(), 0)?;
        Ok(self)
    }

    /// Replaces shape, type and data of a tensor; it keeps its place.
    ///
    /// # Errors
    ///
    /// When there is none of this name, or as [`TensorInfo::new`].
    pub fn replace(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self> {
        let entry = self.entry(name)?;
        entry.info = TensorInfo::new(name, shape, ty, 0)?;
        entry.content = Content::Bytes(data.into());
        Ok(self)
    }

    /// Replaces a tensor by what `produce` writes when its turn comes, such as a conversion of
    /// the source's data in chunks; it keeps its place.
    ///
    /// # Errors
    ///
    /// As [`replace`](Self::replace).
    pub fn replace_with(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        produce: impl Fn(&mut dyn Write) -> Result<()> + Send + Sync + 'a,
    ) -> Result<&mut Self> {
        let entry = self.entry(name)?;
        entry.info = TensorInfo::new(name, shape, ty, 0)?;
        entry.content = Content::Produced(Box::new(produce));
        Ok(self)
    }

    /// Adds a tensor at the end.
    ///
    /// # Errors
    ///
    /// As [`TensorInfo::new`]; a name that is taken is refused when the file is written.
    pub fn add(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        data: impl Into<Cow<'a, [u8]>>,
    ) -> Result<&mut Self> {
        let info = TensorInfo::new(name, shape, ty, 0)?;
        self.entries.push(Entry { info, content: Content::Bytes(data.into()) });
        Ok(self)
    }

    /// Adds a tensor at the end whose data `produce` writes when its turn comes.
    ///
    /// # Errors
    ///
    /// As [`add`](Self::add).
    pub fn add_with(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        produce: impl Fn(&mut dyn Write) -> Result<()> + Send + Sync + 'a,
    ) -> Result<&mut Self> {
        let info = TensorInfo::new(name, shape, ty, 0)?;
        self.entries.push(Entry { info, content: Content::Produced(Box::new(produce)) });
        Ok(self)
    }

    /// Adds a copy of a tensor of a file at the end.
    pub fn add_copy(&mut self, source: &'a Gguf, tensor: &TensorInfo) -> &mut Self {
        self.entries.push(Entry {
            info: tensor.clone(),
            content: Content::Copy { source, tensor: tensor.clone() },
        });
        self
    }

    /// Sorts the tensors by a key; those with the same key keep their order.
    pub fn sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(&TensorInfo) -> K) -> &mut Self {
        self.entries.sort_by_key(|e| key(&e.info));
        self
    }

    /// Puts the routed experts behind everything else, in the order in which they are needed:
    /// layer by layer, and [by part](crate::ExpertPart) in each.
    ///
    /// Their start is a multiple of [`EXPERT_ALIGNMENT`](crate::EXPERT_ALIGNMENT) in the file, so
    /// that experts can be read past the page cache, and
    /// [`EXPERTS_OFFSET_KEY`](crate::EXPERTS_OFFSET_KEY) tells it. llama.cpp loads such a file like
    /// any other. Returns whether there are experts; without them nothing changes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use smol_gguf::{TensorType, Writer};
    /// # let mut writer = Writer::new();
    /// # writer.tensor("blk.0.ffn_up_exps.weight", &[2], TensorType::F32)?;
    /// # writer.tensor("output_norm.weight", &[1], TensorType::F32)?;
    /// # let mut data = writer.start(Vec::new())?;
    /// # data.write_tensor("blk.0.ffn_up_exps.weight", &[1; 8])?;
    /// # data.write_tensor("output_norm.weight", &[2; 4])?;
    /// # let bytes = data.finish()?;
    /// use smol_gguf::{Gguf, Rewriter};
    ///
    /// let source = Gguf::from_bytes(bytes)?;
    /// let mut plan = Rewriter::new(&source);
    /// assert!(plan.experts_last());
    ///
    /// let new = Gguf::from_bytes(plan.write(Vec::new())?)?;
    /// let front = new.experts_offset().unwrap();
    /// assert_eq!(front % 4096, 0);
    /// assert_eq!(new.get_u64("smolmaxxing.experts_offset"), Some(front));
    /// # Ok::<(), smol_gguf::Error>(())
    /// ```
    pub fn experts_last(&mut self) -> bool {
        if !self.entries.iter().any(|e| experts::is_expert(&e.info)) {
            return false;
        }
        experts::mark(&mut self.metadata);
        // Tensors without a place in that order, `None`, stay in front as they are.
        self.sort_by_key(|tensor| ExpertName::parse(tensor.name()));
        true
    }

    /// Returns the declarations of the new file, which tell its layout and size.
    ///
    /// The marker of a file with its experts last is made true, or removed when they aren't.
    ///
    /// # Errors
    ///
    /// When two tensors have the same name, and as [`Writer::layout`].
    pub fn writer(&self) -> Result<Writer> {
        let mut writer = Writer::with_metadata(self.metadata.clone());
        for entry in &self.entries {
            writer.tensor(entry.info.name(), entry.info.shape(), entry.info.ty())?;
        }
        experts::settle_marker(&mut writer)?;
        Ok(writer)
    }

    /// Writes the new file and returns the output.
    ///
    /// # Errors
    ///
    /// As [`Writer::start`] and [`DataWriter::finish`], and when source data can't be read.
    pub fn write<W: Write>(&self, out: W) -> Result<W> {
        let mut data = self.writer()?.start(out)?;
        self.write_data(&mut data)?;
        data.finish()
    }

    /// Writes the new file under a name; it appears when it is complete.
    ///
    /// The name may be a source's own: the source stays readable through its open file.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write) and [`Writer::write_file`].
    pub fn write_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write_file_with(path, |_| ControlFlow::Continue(()))
    }

    /// Writes as [`write_file`](Self::write_file) does, and tells `progress` how many bytes of
    /// the new file are written so far, at least every 4 MiB.
    ///
    /// # Errors
    ///
    /// As [`write_file`](Self::write_file), and [`ErrorKind::Stopped`] when `progress` breaks off;
    /// nothing is left behind then either.
    pub fn write_file_with(
        &self,
        path: impl AsRef<Path>,
        progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let path = path.as_ref();
        let writer = self.writer()?;
        atomic_file::write(path, |out| {
            let mut data = writer.start(Watched { out, done: 0, progress })?;
            self.write_data(&mut data)?;
            data.finish()?;
            Ok(())
        })
        .map_err(|e| e.at(path))
    }

    fn write_data<W: Write>(&self, data: &mut DataWriter<W>) -> Result<()> {
        for entry in &self.entries {
            let name = entry.info.name();
            match &entry.content {
                Content::Bytes(bytes) => data.write_tensor(name, bytes)?,
                Content::Produced(produce) => {
                    let mut out = data.tensor(name)?;
                    produce(&mut out)?;
                    out.finish()?;
                }
                Content::Copy { source, tensor } => {
                    // Data in memory goes out in one piece, without a buffer in between.
                    if let Some(bytes) = source.data_in_memory(tensor) {
                        data.write_tensor(name, bytes)?;
                    } else {
                        let mut out = data.tensor(name)?;
                        copy(&mut source.data_reader(tensor)?, &mut out, tensor.n_bytes())?;
                        out.finish()?;
                    }
                }
            }
        }
        Ok(())
    }

    fn position(&self, name: &str) -> Result<usize> {
        self.entries
            .iter()
            .position(|e| e.info.name() == name)
            .ok_or_else(|| ErrorKind::NoSuchTensor { tensor: name.to_owned() }.into())
    }

    fn entry(&mut self, name: &str) -> Result<&mut Entry<'a>> {
        let at = self.position(name)?;
        Ok(&mut self.entries[at])
    }
}

/// An output that tells how far it has got, and stops when it is told to.
struct Watched<W, P> {
    out: W,
    done: u64,
    progress: P,
}

impl<W: Write, P: FnMut(u64) -> ControlFlow<()>> Write for Watched<W, P> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        const MOST: usize = 4 << 20;
        let n = self.out.write(&buf[..buf.len().min(MOST)])?;
        self.done += n as u64;
        match (self.progress)(self.done) {
            ControlFlow::Continue(()) => Ok(n),
            ControlFlow::Break(()) => Err(crate::Error::from(ErrorKind::Stopped).into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Copies through buffers large enough for disks; of long data the next piece is read while one
/// is written.
fn copy(from: &mut (impl io::Read + Send), to: &mut impl Write, len: u64) -> io::Result<()> {
    const PIECE: usize = 1 << 20;
    if len <= 4 * PIECE as u64 {
        let mut buf = vec![0; PIECE.min(len as usize)];
        while let n @ 1.. = from.read(&mut buf)? {
            to.write_all(&buf[..n])?;
        }
        return Ok(());
    }
    std::thread::scope(|scope| {
        let (full, pieces) = mpsc::sync_channel::<io::Result<Vec<u8>>>(1);
        let (empty, buffers) = mpsc::channel::<Vec<u8>>();
        for _ in 0..2 {
            // Its receiver lives until the thread below has it.
            let _ = empty.send(Vec::new());
        }
        std::thread::Builder::new().name("gguf-reader".into()).spawn_scoped(scope, move || {
            for mut buf in buffers {
                buf.resize(PIECE, 0);
                let read = from.read(&mut buf).map(|n| {
                    buf.truncate(n);
                    buf
                });
                let ends = read.as_ref().map_or(true, Vec::is_empty);
                // The writer is gone when it has failed.
                if full.send(read).is_err() || ends {
                    return;
                }
            }
        })?;
        for piece in pieces {
            let piece = piece?;
            to.write_all(&piece)?;
            let _ = empty.send(piece);
        }
        Ok(())
    })
}

//! Rewriting: a copy of a file with changed keys and tensors, in constant memory.

mod convert;
mod pass;

use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::{ErrorKind, Result};
use crate::shards::{self, SPLIT_COUNT, SPLIT_KEYS, SPLIT_NO, SPLIT_TENSORS_COUNT};
use crate::{
    ALIGNMENT_KEY, EXPERTS_OFFSET_KEY, ExpertName, Gguf, Metadata, ShardName, Shards, SplitBy,
    TensorInfo, TensorType, Value, Writer, experts,
};

pub use convert::Rows;
use convert::Stage;

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
    /// What the content goes through before it is written.
    stages: Vec<Stage<'a>>,
}

impl<'a> Entry<'a> {
    fn new(info: TensorInfo, content: Content<'a>) -> Self {
        Self { info, content, stages: Vec::new() }
    }

    fn copy(source: &'a Gguf, tensor: &TensorInfo) -> Self {
        Self::new(tensor.clone(), Content::Copy { source, tensor: tensor.clone() })
    }

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
        let mut debug = f.debug_struct("Entry");
        debug.field("info", &self.info).field("content", &content);
        debug.field("conversions", &self.stages.len()).finish()
    }
}

/// A plan for a new file made from others: keys and tensors as in the source, then edited.
///
/// Edits are cheap and combine in any order; data moves only when the file is written, in one
/// pass and in constant memory. A source may be a [stream](Gguf::from_stream), which is read front
/// to back whatever the order of the new file.
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
        for key in SPLIT_KEYS {
            metadata.remove(key);
        }
        if shards.iter().any(|shard| shard.contains(EXPERTS_OFFSET_KEY)) {
            experts::mark(&mut metadata);
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
        self.entries.extend(source.tensors().iter().map(|tensor| Entry::copy(source, tensor)));
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
        let info = TensorInfo::new(name, shape, ty, 0)?;
        *self.entry(name)? = Entry::new(info, Content::Bytes(data.into()));
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
        let info = TensorInfo::new(name, shape, ty, 0)?;
        *self.entry(name)? = Entry::new(info, Content::Produced(Box::new(produce)));
        Ok(self)
    }

    /// Gives a tensor another shape and type, and passes its data through `convert`, which gets it
    /// piece by piece in whole rows and writes the new data; it keeps its place. Unlike
    /// [`replace_with`](Self::replace_with) that works for sources that are read only once.
    ///
    /// Converted again, a tensor goes through both, one after the other.
    ///
    /// # Errors
    ///
    /// As [`replace`](Self::replace).
    ///
    /// # Examples
    ///
    /// ```
    /// # use smol_gguf::{TensorType, Writer};
    /// # let mut writer = Writer::new();
    /// # writer.tensor("a", &[2, 3], TensorType::F32)?;
    /// # let mut data = writer.start(Vec::new())?;
    /// # data.write_tensor("a", &[7; 24])?;
    /// # let bytes = data.finish()?;
    /// use smol_gguf::{Gguf, Rewriter};
    /// use std::io::Cursor;
    ///
    /// let source = Gguf::from_stream("a pipe", Cursor::new(bytes))?;
    /// let mut plan = Rewriter::new(&source);
    /// plan.convert("a", &[2, 2], TensorType::F32, |rows, out| {
    ///     for (row, bytes) in rows.iter() {
    ///         if row != 1 {
    ///             out.write_all(bytes)?; // all but the second
    ///         }
    ///     }
    ///     Ok(())
    /// })?;
    /// assert_eq!(Gguf::from_bytes(plan.write(Vec::new())?)?.tensors()[0].n_bytes(), 16);
    /// # Ok::<(), smol_gguf::Error>(())
    /// ```
    pub fn convert(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        convert: impl Fn(Rows<'_>, &mut dyn Write) -> Result<()> + Send + Sync + 'a,
    ) -> Result<&mut Self> {
        let info = TensorInfo::new(name, shape, ty, 0)?;
        let entry = self.entry(name)?;
        entry.stages.push(Stage::new(entry.info.row_bytes(), Box::new(convert)));
        entry.info = info;
        Ok(self)
    }

    /// Adds a tensor at the end that `convert` makes from the data of another one of the plan,
    /// which stays: as [`convert`](Self::convert), in the same pass.
    ///
    /// # Errors
    ///
    /// When there is no tensor `from`, it is no copy from a source or was converted already, or as
    /// [`add`](Self::add).
    pub fn add_converted(
        &mut self,
        name: &str,
        from: &str,
        shape: &[u64],
        ty: TensorType,
        convert: impl Fn(Rows<'_>, &mut dyn Write) -> Result<()> + Send + Sync + 'a,
    ) -> Result<&mut Self> {
        let entry = &self.entries[self.position(from)?];
        let (Content::Copy { source, tensor }, true) = (&entry.content, entry.stages.is_empty())
        else {
            return Err(ErrorKind::NoCopy { tensor: from.to_owned() }.into());
        };
        let content = Content::Copy { source, tensor: tensor.clone() };
        let mut added = Entry::new(TensorInfo::new(name, shape, ty, 0)?, content);
        added.stages.push(Stage::new(tensor.row_bytes(), Box::new(convert)));
        self.entries.push(added);
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
        self.entries.push(Entry::new(info, Content::Bytes(data.into())));
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
        self.entries.push(Entry::new(info, Content::Produced(Box::new(produce))));
        Ok(self)
    }

    /// Adds a copy of a tensor of a file at the end.
    pub fn add_copy(&mut self, source: &'a Gguf, tensor: &TensorInfo) -> &mut Self {
        self.entries.push(Entry::copy(source, tensor));
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
        declare(self.metadata.clone(), &self.entries)
    }

    /// Writes the new file, tensor by tensor, and returns the output.
    ///
    /// # Errors
    ///
    /// As [`Writer::start`] and [`DataWriter::finish`](crate::DataWriter::finish), and when source
    /// data can't be read: that of a [stream](Gguf::from_stream) only in its own order.
    pub fn write<W: Write>(&self, out: W) -> Result<W> {
        let mut data = self.writer()?.start(out)?;
        for entry in &self.entries {
            let mut out = data.tensor(entry.info.name())?;
            entry.write(&mut out)?;
            out.finish()?;
        }
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
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        let path = path.as_ref().to_owned();
        let new = pass::NewFile { path, writer: self.writer()?, entries: &self.entries };
        pass::write(&[new], &mut progress)
    }

    /// Writes the model in several files named after `prefix`, and returns their paths. The first
    /// has all metadata; all appear when the last one is complete, but for more than a hundred.
    ///
    /// `progress` is told as by [`write_file_with`](Self::write_file_with), of all files together.
    ///
    /// # Errors
    ///
    /// As [`write_file_with`](Self::write_file_with), and when there would be more than 65,535
    /// files. None is left behind.
    pub fn write_split(
        &self,
        prefix: impl Into<PathBuf>,
        by: SplitBy,
        mut progress: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Vec<PathBuf>> {
        let files = self.split_into(prefix.into(), by)?;
        pass::write(&files, &mut progress)?;
        Ok(files.into_iter().map(|file| file.path).collect())
    }

    /// Returns the paths and sizes in bytes of the files that [`write_split`](Self::write_split)
    /// makes.
    ///
    /// # Errors
    ///
    /// As [`writer`](Self::writer), and when there would be more than 65,535 files.
    pub fn split_layout(
        &self,
        prefix: impl Into<PathBuf>,
        by: SplitBy,
    ) -> Result<Vec<(PathBuf, u64)>> {
        let files = self.split_into(prefix.into(), by)?;
        files.into_iter().map(|file| Ok((file.path, file.writer.layout()?.1))).collect()
    }

    fn split_into(&self, prefix: PathBuf, by: SplitBy) -> Result<Vec<pass::NewFile<'_, 'a>>> {
        let ends = shards::cut(self.tensors(), by);
        let count = u16::try_from(ends.len())
            .map_err(|_| ErrorKind::ShardCount { found: ends.len() as u64 })?;
        let mut start = 0;
        let mut files = Vec::with_capacity(ends.len());
        for (index, end) in (0..count).zip(ends) {
            let entries = &self.entries[start..end];
            start = end;
            let mut metadata = Metadata::new();
            if index == 0 {
                metadata = self.metadata.clone();
            } else {
                // All shards are aligned alike, and all that have experts say so.
                if let Some(alignment) = self.metadata.get(ALIGNMENT_KEY) {
                    metadata.set(ALIGNMENT_KEY, alignment.clone());
                }
                if self.metadata.contains(EXPERTS_OFFSET_KEY) {
                    experts::mark(&mut metadata);
                }
            }
            metadata.set(SPLIT_NO, index);
            metadata.set(SPLIT_COUNT, count);
            metadata.set(SPLIT_TENSORS_COUNT, self.entries.len() as i32);
            let path = ShardName::new(&prefix, index.into(), count.into()).path();
            files.push(pass::NewFile { path, writer: declare(metadata, entries)?, entries });
        }
        Ok(files)
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

/// Declares a file with these tensors.
fn declare(metadata: Metadata, entries: &[Entry<'_>]) -> Result<Writer> {
    let mut writer = Writer::with_metadata(metadata);
    for entry in entries {
        writer.tensor(entry.info.name(), entry.info.shape(), entry.info.ty())?;
    }
    experts::settle_marker(&mut writer)?;
    Ok(writer)
}

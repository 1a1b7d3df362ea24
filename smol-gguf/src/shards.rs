//! Models in several files, named `NAME-00001-of-00004.gguf` and so on.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::{ErrorKind, Result};
use crate::{Gguf, Metadata, Rewriter, TensorInfo, Value};

pub(crate) const SPLIT_NO: &str = "split.no";
pub(crate) const SPLIT_COUNT: &str = "split.count";
pub(crate) const SPLIT_TENSORS_COUNT: &str = "split.tensors.count";
pub(crate) const SPLIT_KEYS: [&str; 3] = [SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS_COUNT];

/// The place of a file in a split model, as its name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardName {
    prefix: PathBuf,
    index: u32,
    count: u32,
}

impl ShardName {
    /// Parses `PREFIX-00002-of-00004.gguf`, which is shard 1 (from 0) of 4.
    ///
    /// # Examples
    ///
    /// ```
    /// use smol_gguf::ShardName;
    ///
    /// let name = ShardName::parse("models/big-00002-of-00004.gguf").unwrap();
    /// assert_eq!((name.index(), name.count()), (1, 4));
    /// assert_eq!(name.sibling(3).to_str(), Some("models/big-00004-of-00004.gguf"));
    /// assert_eq!(ShardName::parse("small.gguf"), None);
    /// ```
    pub fn parse(path: impl AsRef<Path>) -> Option<Self> {
        let path = path.as_ref();
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| {
            (s.len() >= 5 && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse::<u32>())?.ok()
        };
        let (number, count) = (digits(number)?, digits(count)?);
        if number == 0 || number > count || prefix.is_empty() {
            return None;
        }
        Some(Self { prefix: path.with_file_name(prefix), index: number - 1, count })
    }

    /// Names a shard; `index` counts from 0.
    pub fn new(prefix: impl Into<PathBuf>, index: u32, count: u32) -> Self {
        Self { prefix: prefix.into(), index, count }
    }

    /// Returns the shard's place, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns the number of shards.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the path of this shard.
    pub fn path(&self) -> PathBuf {
        self.sibling(self.index)
    }

    /// Returns the path of the shard at `index`, from 0.
    pub fn sibling(&self, index: u32) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(format!("-{:05}-of-{:05}.gguf", index + 1, self.count));
        name.into()
    }
}

/// All files of a model, be it one or many.
///
/// # Examples
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # smol_gguf::Writer::new().write_file(&path, |_| Ok(()))?;
/// use smol_gguf::Shards;
///
/// let shards = Shards::open(&path)?; // any shard of a split model will do
/// for (file, tensor) in shards.tensors() {
///     println!("{:?} {}", file.path(), tensor.name());
/// }
/// # assert_eq!(shards.len(), 1);
/// # Ok::<(), smol_gguf::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Shards(Vec<Gguf>);

impl Shards {
    /// Opens the model that `path` belongs to with plain reads, as [`Gguf::open`].
    ///
    /// # Errors
    ///
    /// When a file can't be read, shards are missing (all of them are named), a file's name or
    /// `split.no` doesn't fit its place, or a tensor comes twice.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_each(path.as_ref(), |p| Gguf::open(p))
    }

    /// Reads the headers of the model that `path` belongs to, as [`Gguf::read_header`].
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn read_headers(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_each(path.as_ref(), |p| Gguf::read_header(p))
    }

    /// Maps the files of the model that `path` belongs to, as [`Gguf::open_mapped`].
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// # Safety
    ///
    /// As [`Gguf::open_mapped`], for each file.
    #[allow(unsafe_code)]
    pub unsafe fn open_mapped(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: the caller promises that none of the files changes.
        Self::open_each(path.as_ref(), |p| unsafe { Gguf::open_mapped(p) })
    }

    fn open_each(path: &Path, open: impl Fn(&Path) -> Result<Gguf>) -> Result<Self> {
        let given = open(path)?;
        let count = split_number(&given, SPLIT_COUNT)?.unwrap_or(0);
        if count <= 1 {
            return Ok(Self(vec![given]));
        }
        let name = match ShardName::parse(path) {
            Some(name) if name.count() == count => name,
            other => {
                // The best guess at the names: the part before the number, or all of it.
                let prefix = other.map_or_else(|| path.with_extension(""), |name| name.prefix);
                let name = ShardName::new(prefix, 0, count);
                let expected = (0..count).map(|i| name.sibling(i)).collect();
                return Err(given.locate(ErrorKind::ShardName { count, expected }.into()));
            }
        };

        let paths: Vec<PathBuf> = (0..count).map(|i| name.sibling(i)).collect();
        let missing: Vec<PathBuf> = paths.iter().filter(|p| !p.exists()).cloned().collect();
        if !missing.is_empty() {
            return Err(given.locate(ErrorKind::MissingShards { count, missing }.into()));
        }

        let mut shards = Vec::with_capacity(paths.len());
        for (index, path) in (0..count).zip(&paths) {
            shards.push(if index == name.index() { given.clone() } else { open(path)? });
        }
        Self::assemble(shards)
    }

    /// Takes the files of a model, all of them in their order, wherever they come from.
    ///
    /// # Errors
    ///
    /// When a file's `split.no` doesn't fit its place, or a tensor is missing or comes twice.
    pub fn assemble(files: Vec<Gguf>) -> Result<Self> {
        let Some(first) = files.first() else {
            return Err(ErrorKind::ShardCount { found: 0 }.into());
        };
        let count = split_number(first, SPLIT_COUNT)?.unwrap_or(0).max(1);
        if count as usize != files.len() {
            let found = files.len() as u64;
            return Err(first.locate(ErrorKind::ShardTotal { count, found }.into()));
        }
        if count == 1 {
            return Ok(Self(files));
        }
        for (index, shard) in (0..).zip(&files) {
            let found = split_number(shard, SPLIT_NO)?;
            if found != Some(index) {
                return Err(shard.locate(ErrorKind::ShardPlace { found, expected: index }.into()));
            }
        }
        let shards = Self(files);
        shards.check_tensors()?;
        Ok(shards)
    }

    /// Returns how many files a model has of which this is the first, as it says itself.
    ///
    /// # Errors
    ///
    /// When `split.count` is of another type than llama.cpp reads.
    pub fn count_of(first: &Gguf) -> Result<u32> {
        Ok(split_number(first, SPLIT_COUNT)?.unwrap_or(0).max(1))
    }

    fn check_tensors(&self) -> Result<()> {
        let mut seen = std::collections::HashSet::new();
        for (file, tensor) in self.tensors() {
            if !seen.insert(tensor.name()) {
                let tensor = tensor.name().to_owned();
                return Err(file.locate(ErrorKind::DuplicateTensor { tensor }.into()));
            }
        }
        let first = self.first();
        let expected = match first.get(SPLIT_TENSORS_COUNT) {
            Some(&Value::I32(n)) => i64::from(n),
            other => {
                return Err(first.locate(
                    ErrorKind::KeyType {
                        key: SPLIT_TENSORS_COUNT.into(),
                        found: type_name(other),
                        expected: "i32",
                    }
                    .into(),
                ));
            }
        };
        if i64::try_from(seen.len()) != Ok(expected) {
            return Err(
                first.locate(ErrorKind::ShardTensors { found: seen.len() as u64, expected }.into())
            );
        }
        Ok(())
    }

    /// Returns the first file, which has the model's metadata.
    pub fn first(&self) -> &Gguf {
        &self.0[0]
    }

    /// Returns the model's metadata.
    pub fn metadata(&self) -> &Metadata {
        self.first().metadata()
    }

    /// Returns the model as if its metadata were `metadata`; the files stay as they are.
    ///
    /// To [check](crate::check_shards) a model with values that override the file's.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.0[0].replace_metadata(metadata);
        self
    }

    /// Iterates over the files in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Gguf> + '_ {
        self.0.iter()
    }

    /// Iterates over all tensors with their files.
    pub fn tensors(&self) -> impl Iterator<Item = (&Gguf, &TensorInfo)> + '_ {
        self.0.iter().flat_map(|file| file.tensors().iter().map(move |t| (file, t)))
    }

    /// Returns the tensor with this name and its file.
    pub fn tensor(&self, name: &str) -> Option<(&Gguf, &TensorInfo)> {
        self.0.iter().find_map(|file| Some((file, file.tensor(name)?)))
    }

    /// Returns the number of files, at least 1.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the size of all files in bytes.
    pub fn file_len(&self) -> u64 {
        self.0.iter().fold(0, |sum, f| sum.saturating_add(f.file_len()))
    }
}

/// A single file as a model of one shard.
impl From<Gguf> for Shards {
    fn from(gguf: Gguf) -> Self {
        Self(vec![gguf])
    }
}

fn type_name(value: Option<&Value>) -> &'static str {
    value.map_or("missing", |v| v.ty().name())
}

/// Returns `split.no` or `split.count`, which llama.cpp reads only as `u16`.
fn split_number(gguf: &Gguf, key: &'static str) -> Result<Option<u32>> {
    match gguf.get(key) {
        None => Ok(None),
        Some(&Value::U16(n)) => Ok(Some(n.into())),
        other => Err(gguf.locate(
            ErrorKind::KeyType { key: key.into(), found: type_name(other), expected: "u16" }.into(),
        )),
    }
}

/// Where to cut when a model is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SplitBy {
    /// At most this many tensors a shard.
    Tensors(usize),
    /// At most this many bytes of tensor data a shard, unless one tensor alone is larger.
    Bytes(u64),
}

/// Splits a model into shards named after `prefix` and returns their paths.
///
/// The first shard has all metadata. On error no new shard is left behind.
///
/// # Errors
///
/// When reading or writing fails, or there would be more than 65,535 shards.
///
/// # Examples
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # use smol_gguf::{TensorType, Writer};
/// # let mut w = Writer::new();
/// # w.tensor("a", &[2], TensorType::F32)?.tensor("b", &[2], TensorType::F32)?;
/// # let model = dir.path().join("model.gguf");
/// # w.write_file(&model, |d| { d.write_tensor("a", &[0; 8])?; d.write_tensor("b", &[0; 8]) })?;
/// use smol_gguf::{Gguf, SplitBy, split};
///
/// let paths = split(&Gguf::open(model)?, dir.path().join("part"), SplitBy::Tensors(1))?;
/// assert!(paths[0].ends_with("part-00001-of-00002.gguf"));
/// # Ok::<(), smol_gguf::Error>(())
/// ```
pub fn split(source: &Gguf, prefix: impl Into<PathBuf>, by: SplitBy) -> Result<Vec<PathBuf>> {
    let plan = Rewriter::new(source);
    plan.write_split(prefix, by, |_| ControlFlow::Continue(())).map_err(|e| source.locate(e))
}

/// Returns where each part of tensors ends when they are cut.
pub(crate) fn cut<'t>(tensors: impl Iterator<Item = &'t TensorInfo>, by: SplitBy) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut start, mut bytes, mut len) = (0, 0u64, 0);
    for (i, tensor) in tensors.enumerate() {
        let full = match by {
            SplitBy::Tensors(max) => i - start >= max.max(1),
            SplitBy::Bytes(max) => bytes.saturating_add(tensor.n_bytes()) > max && i > start,
        };
        if full {
            ends.push(i);
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(tensor.n_bytes());
        len = i + 1;
    }
    ends.push(len);
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_convention() {
        let name = ShardName::parse("a/b-x-00012-of-00345.gguf").unwrap();
        assert_eq!((name.index(), name.count()), (11, 345));
        assert_eq!(name.path(), Path::new("a/b-x-00012-of-00345.gguf"));
        for bad in [
            "m.gguf",
            "m-00000-of-00002.gguf",
            "m-00003-of-00002.gguf",
            "m-1-of-2.gguf",
            "m-00001-of-00002.bin",
            "m-0000x-of-00002.gguf",
            "-00001-of-00002.gguf",
            "",
        ] {
            assert_eq!(ShardName::parse(bad), None, "{bad}");
        }
    }
}

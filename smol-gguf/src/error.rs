//! Errors: what is wrong, where, and what would be right.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::TensorType;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with the file it concerns.
///
/// Shown on one line: the file's name where it is known, then the [`ErrorKind`].
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    path: Option<PathBuf>,
    kind: ErrorKind,
}

impl Error {
    /// Returns what is wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the file the error concerns, where it is known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// Gives up the wrapper.
    pub fn into_kind(self) -> ErrorKind {
        self.0.kind
    }

    /// Names the file unless one is named already.
    pub(crate) fn at(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.path.get_or_insert_with(|| path.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.path() {
            write!(f, "{}: ", OneLine(&path.to_string_lossy()))?;
        }
        self.0.kind.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.0.kind)
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(Inner { path: None, kind }))
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        // An error that went through `io::Write` or `io::Read` comes back as itself.
        match error.downcast::<Error>() {
            Ok(inner) => inner,
            Err(error) => ErrorKind::Io(error).into(),
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        match *error.0 {
            Inner { path: None, kind: ErrorKind::Io(error) } => error,
            inner => std::io::Error::other(Error(Box::new(inner))),
        }
    }
}

/// Text from a file, fit for one line of an error message: control characters are escaped and
/// long text is cut.
pub(crate) struct OneLine<'a>(pub &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_CHARS: usize = 200;
        for (i, c) in self.0.chars().enumerate() {
            if i == MAX_CHARS {
                return f.write_str("...");
            }
            if c.is_control() { write!(f, "{}", c.escape_debug())? } else { write!(f, "{c}")? }
        }
        Ok(())
    }
}

/// File names for a message, without their folders.
struct Names<'a>(&'a [PathBuf]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_NAMES: usize = 20;
        for (i, path) in self.0.iter().enumerate() {
            if i == MAX_NAMES {
                return write!(f, " and {} more", self.0.len() - MAX_NAMES);
            }
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, OneLine(&name))?;
        }
        Ok(())
    }
}

/// A token for a message.
struct Quoted<'a>(&'a [u8]);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", OneLine(&String::from_utf8_lossy(self.0)))
    }
}

/// A number that may be missing.
struct Found<'a>(&'a Option<u32>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(n) => n.fmt(f),
            None => f.write_str("missing"),
        }
    }
}

/// What can be wrong with a file, or with the use of a writer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are named in the messages
pub enum ErrorKind {
    // ---- reading
    /// Reading or writing failed.
    #[error("{0}")]
    Io(#[source] std::io::Error),
    /// The file has no bytes.
    #[error("the file is empty")]
    Empty,
    /// The file is of another format.
    #[error("not a GGUF file: {found}")]
    NotGguf { found: String },
    /// The file was written for machines of the other byte order.
    #[error(
        "the file is big-endian (version bytes {version:#010x}); convert it to little-endian first"
    )]
    BigEndian { version: u32 },
    /// The version of the format isn't supported.
    #[error("GGUF version {found} is not supported, only 2 and 3 are")]
    Version { found: u32 },
    /// The file ends before the header does.
    #[error("truncated: the file ends inside {what}, at least {missing} bytes are missing")]
    HeaderTruncated { what: String, missing: u64 },
    /// A count in the header is more than the rest of the file can hold.
    #[error("{what} is {found}, allowed are 0 to {max} in a file of this size")]
    Count { what: &'static str, found: u64, max: u64 },
    /// A key has no characters.
    #[error("metadata key number {index} is empty")]
    EmptyKey { index: u64 },
    /// A key comes twice.
    #[error("duplicate metadata key `{}`", OneLine(key))]
    DuplicateKey { key: String },
    /// A key or tensor name isn't UTF-8.
    #[error("{what} is not valid UTF-8: `{}`", OneLine(text))]
    NotUtf8 { what: String, text: String },
    /// A string or array is longer than the rest of the file.
    #[error("{what} has length {found}, allowed are 0 to {max}")]
    Length { what: String, found: u64, max: u64 },
    /// The type number of a value doesn't exist.
    #[error("metadata key `{}` has value type {found}, allowed are 0 to 12", OneLine(key))]
    ValueType { key: String, found: u32 },
    /// An array of arrays, which llama.cpp doesn't read.
    #[error("metadata key `{}` is an array of arrays, which is not supported", OneLine(key))]
    NestedArray { key: String },
    /// The element type of an array doesn't exist.
    #[error(
        "metadata key `{}` is an array of type {found}, allowed are 0 to 8 and 10 to 12",
        OneLine(key)
    )]
    ArrayType { key: String, found: u32 },
    /// `general.alignment` can't be used.
    #[error("`general.alignment` is {found}, allowed are powers of two of type u32")]
    Alignment { found: String },
    /// A tensor's name is too long for ggml.
    #[error("tensor name `{}` has {len} bytes, allowed are 0 to 63", OneLine(name))]
    TensorNameLength { name: String, len: u64 },
    /// A tensor comes twice.
    #[error("duplicate tensor `{}`", OneLine(tensor))]
    DuplicateTensor { tensor: String },
    /// A tensor has too many dimensions.
    #[error("tensor `{}` has {found} dimensions, allowed are 0 to 4", OneLine(tensor))]
    TensorDims { tensor: String, found: u64 },
    /// A tensor's size doesn't fit 63 bits.
    #[error("tensor `{}` of shape {shape:?} is too large", OneLine(tensor))]
    TensorTooLarge { tensor: String, shape: Vec<u64> },
    /// A tensor's type number doesn't exist.
    #[error("tensor `{}` has type {found}, which is unknown; allowed are 0 to 43", OneLine(tensor))]
    TensorType { tensor: String, found: u32 },
    /// A tensor's type was removed from the format.
    #[error(
        "tensor `{}` has type {found} ({name}), which was removed from the format; quantize the model again",
        OneLine(tensor)
    )]
    RemovedTensorType { tensor: String, found: u32, name: &'static str },
    /// A tensor's row isn't a whole number of blocks.
    #[error(
        "tensor `{}` of type {ty} has rows of {found} elements, allowed is a multiple of {block}",
        OneLine(tensor)
    )]
    TensorRow { tensor: String, ty: TensorType, found: u64, block: u64 },
    /// The data of a tensor isn't all in the file.
    #[error(
        "truncated: the data of tensor `{}` ends at byte {end}, the file has {file_len}: {missing} bytes are missing",
        OneLine(tensor)
    )]
    DataTruncated { tensor: String, end: u64, file_len: u64, missing: u64 },
    /// Data was asked for but only the header was read.
    #[error("the data of tensor `{}` is out of reach: only the header was read", OneLine(tensor))]
    HeaderOnly { tensor: String },
    /// The bytes came once, and were read or passed by already.
    #[error(
        "byte {at} has passed: the input comes once, front to back, and has come to byte {position}"
    )]
    StreamPassed { at: u64, position: u64 },
    /// The bytes of a pipe or download ended too early.
    #[error("truncated: the input ended at byte {at}, at least {} bytes are missing", wanted.saturating_sub(*at))]
    StreamEnded { at: u64, wanted: u64 },
    /// There is no such tensor.
    #[error("no tensor `{}` in the file", OneLine(tensor))]
    NoSuchTensor { tensor: String },

    // ---- split models
    /// Files of a split model are missing.
    #[error("{} of {count} files of this model are missing: {}", missing.len(), Names(missing))]
    MissingShards { count: u32, missing: Vec<PathBuf> },
    /// More or fewer files of a split model were given than it has.
    #[error("the model has {count} files, {found} were given")]
    ShardTotal { count: u32, found: u64 },
    /// The name of a file of a split model doesn't follow the convention.
    #[error(
        "the file is one of {count} of a split model but isn't named so, expected are {}",
        Names(expected)
    )]
    ShardName { count: u32, expected: Vec<PathBuf> },
    /// A file of a split model has another place than its name says.
    #[error("`split.no` is {}, by the file's name it must be {expected}", Found(found))]
    ShardPlace { found: Option<u32>, expected: u32 },
    /// The files of a split model have more or fewer tensors than announced.
    #[error("the files of this model have {found} tensors, `split.tensors.count` says {expected}")]
    ShardTensors { found: u64, expected: i64 },
    /// A model would be split into too many files.
    #[error("the model would be split into {found} files, allowed are 1 to 65535")]
    ShardCount { found: u64 },

    // ---- values
    /// A key has another type than llama.cpp reads.
    #[error("`{}` is of type {found}, allowed is {expected}", OneLine(key))]
    KeyType { key: String, found: &'static str, expected: &'static str },
    /// A key that llama.cpp needs isn't there.
    #[error("metadata key `{}` is missing", OneLine(key))]
    MissingKey { key: String },
    /// A value is out of range.
    #[error("`{}` is {}, allowed is {allowed}", OneLine(key), OneLine(found))]
    KeyRange { key: String, found: String, allowed: String },
    /// An array is too short or too long.
    #[error("`{}` has {found} elements, allowed is {allowed}", OneLine(key))]
    ArrayLength { key: String, found: u64, allowed: String },
    /// Two tokens are the same.
    #[error(
        "token {} has two ids, {first} and {second}, in `tokenizer.ggml.tokens`",
        Quoted(token)
    )]
    DuplicateToken { token: Vec<u8>, first: u64, second: u64 },
    /// The file is no language model, such as an image encoder or an adapter.
    #[error("the file is not a language model: `{}` is `{}`", OneLine(key), OneLine(found))]
    NotLanguageModel { key: String, found: String },
    /// The chat template can't be read.
    #[error("`{}` has an unclosed `{open}` at byte {at}", OneLine(key))]
    ChatTemplate { key: String, open: &'static str, at: u64 },

    // ---- tensor data
    /// A tensor's data isn't where the sizes of those before it put it.
    #[error(
        "tensor `{}` starts at offset {found} of the data, allowed is {expected}, where the one before it ends",
        OneLine(tensor)
    )]
    TensorOffset { tensor: String, found: u64, expected: u64 },
    /// A tensor has no elements.
    #[error(
        "tensor `{}` of shape {shape:?} has a dimension of 0, allowed are 1 and more",
        OneLine(tensor)
    )]
    ZeroDimension { tensor: String, shape: Vec<u64> },
    /// A tensor's type isn't computed with by llama.cpp at this place.
    #[error("tensor `{}` has type {found}, allowed is {allowed}", OneLine(tensor))]
    TensorUse { tensor: String, found: TensorType, allowed: &'static str },
    /// A tensor contains NaN or infinity.
    #[error(
        "tensor `{}` is {found} at element {index}, allowed are finite values",
        OneLine(tensor)
    )]
    NotFinite { tensor: String, found: f64, index: u64 },
    /// The scale of a block is NaN or infinite.
    #[error(
        "tensor `{}` has the scale {found} in block {block}, allowed are finite values",
        OneLine(tensor)
    )]
    ScaleNotFinite { tensor: String, found: f64, block: u64 },

    // ---- pruned heads
    /// The tokens of a pruned head's rows aren't such.
    #[error(
        "`output_ids` has {found} as element {index}, allowed are ascending ids of the model's tokens"
    )]
    HeadIds { index: u64, found: i64 },
    /// A tensor of a pruned head has another shape than the others.
    #[error("tensor `{}` has shape {found:?}, allowed is {expected}", OneLine(tensor))]
    HeadShape { tensor: String, found: Vec<u64>, expected: String },
    /// There is no vocabulary head whose rows could be left out.
    #[error("the file has no vocabulary head with a row for each token")]
    NoHead,
    /// A token that should be kept has no row.
    #[error("token {token} has no row in the vocabulary head of {rows}")]
    HeadToken { token: u32, rows: u64 },
    /// A head would have no rows.
    #[error("no token would be left in the vocabulary head")]
    EmptyHead,

    // ---- importance
    /// A file is no importance matrix that can be used.
    #[error("{}", OneLine(what))]
    Importance { what: String },

    // ---- writing
    /// Tensor data came in another order than declared.
    #[error("tensor data out of order: expected {expected}, got `{}`", OneLine(found))]
    WriteOrder { expected: String, found: String },
    /// Tensor data has another size than declared.
    #[error("tensor `{}` was declared with {expected} bytes of data, got {found}", OneLine(tensor))]
    WriteSize { tensor: String, expected: u64, found: u64 },
    /// The data of a tensor was to be used twice, but isn't that of a source.
    #[error("tensor `{}` is not a plain copy of a source's tensor", OneLine(tensor))]
    NoCopy { tensor: String },
    /// The caller broke off.
    #[error("stopped")]
    Stopped,

    // ---- freeing experts
    /// The experts of the file were freed, so that it can't be run.
    #[error(
        "the experts' weights were taken out of this file by `smol recut --punch`; `smol recut --fill` puts them back"
    )]
    Punched,
    /// The experts of the file are all there.
    #[error("the experts' weights are all in this file, there is nothing to put back")]
    NotPunched,
    /// There are no routed experts.
    #[error("the file has no routed experts, which are tensors `blk.N.ffn_*_exps.weight`")]
    NoExperts,
    /// The experts are too small to free anything.
    #[error(
        "freeing the experts' {bytes} bytes would gain nothing: the file system frees whole blocks of {block} bytes"
    )]
    NothingToFree { bytes: u64, block: u64 },
    /// A file was given as its own copy.
    #[error("the copy is this very file")]
    OwnCopy,
    /// The copy doesn't hold the experts of the file.
    #[error("{} is not a copy of it: tensor `{}` {what}", OneLine(&copy.to_string_lossy()), OneLine(tensor))]
    NotACopy { copy: PathBuf, tensor: String, what: String },
    /// The copy's experts are others than those that were freed.
    #[error(
        "{} is another model: its experts aren't those that were taken out; {} held them then",
        OneLine(&copy.to_string_lossy()),
        OneLine(punched_by)
    )]
    OtherCopy { copy: PathBuf, punched_by: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stay_on_one_line() {
        let error = Error::from(ErrorKind::DuplicateKey { key: "a\nb\u{1b}[0m".into() })
            .at("dir/model\n.gguf");
        let text = error.to_string();
        assert_eq!(text, r"dir/model\n.gguf: duplicate metadata key `a\nb\u{1b}[0m`");
        let long = Error::from(ErrorKind::DuplicateKey { key: "k".repeat(100_000) });
        assert!(long.to_string().len() < 300);
    }

    #[test]
    fn errors_survive_a_trip_through_io() {
        let error = Error::from(ErrorKind::Empty).at("m.gguf");
        let back = Error::from(std::io::Error::from(error));
        assert!(matches!(back.kind(), ErrorKind::Empty));
        assert_eq!(back.path(), Some(Path::new("m.gguf")));
    }
}

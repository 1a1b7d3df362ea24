//! Reads, checks, writes and rewrites GGUF files, without C.
//!
//! - [`Gguf`] reads a file: metadata, tensor descriptions, tensor data. [`Shards`] does so for
//!   models in several files.
//! - [`check`] finds what would make llama.cpp abort, crash or compute garbage, before it does.
//! - [`Writer`] writes a file as a stream, [`Rewriter`] makes a changed copy in one pass, even of
//!   a pipe or a download ([`Gguf::from_stream`]), [`split`] cuts one into shards; all in constant
//!   memory, and files appear only when they are complete.
//! - [`PrunedHead`] gives a model a vocabulary head of some tokens only.
//! - [`Rewriter::experts_last`] puts the routed experts of a mixture behind all else, and
//!   [`Punch`] frees their bytes in a file once another one holds them.
//!
//! Any bytes are read or refused with an [`Error`] that fits one line and names file, key or
//! tensor; nothing panics, and memory stays within a small multiple of the file's size.
//!
//! Limits and type numbers are those of llama.cpp v0.8.0.
//!
//! # Examples
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! # let mut writer = smol_gguf::Writer::new();
//! # writer.set("general.architecture", "llama").set("llama.block_count", 0u32);
//! # writer.write_file(&path, |_| Ok(()))?;
//! use smol_gguf::{Depth, check_file};
//!
//! for finding in check_file(&path, Depth::Header)?.findings() {
//!     println!("{finding}"); // error: model.gguf: `llama.block_count` is 0, allowed is 1 to 512
//! }
//! # Ok::<(), smol_gguf::Error>(())
//! ```

#![deny(unsafe_code)]

mod atomic_file;
mod byte_string;
mod check;
mod error;
mod experts;
mod foreign;
mod gguf;
mod head;
mod header;
mod importance;
mod mapped;
mod metadata;
mod positioned;
mod punch;
mod rewrite;
mod same_file;
mod shards;
mod source;
mod stream;
mod tensor_info;
mod tensor_type;
mod value;
mod writer;

pub use atomic_file::write as write_atomically;
pub use byte_string::{ByteString, StringArray};
pub use check::{Depth, Finding, Report, Severity, check, check_file, check_shards};
pub use error::{Error, ErrorKind, Result};
pub use experts::{EXPERT_ALIGNMENT, EXPERTS_OFFSET_KEY, ExpertName, ExpertPart, PADDING_KEY};
pub use gguf::{Gguf, TensorReader};
pub use head::{OUTPUT_IDS, PrunedHead};
pub use importance::ImportanceMatrix;
pub use metadata::Metadata;
pub use punch::{Compared, Punch};
pub use rewrite::{Entry, Rewriter, Rows};
pub use same_file::is_same_file;
pub use shards::{ShardName, Shards, SplitBy, split};
pub use stream::ByteStream;
pub use tensor_info::TensorInfo;
pub use tensor_type::TensorType;
pub use value::{Array, Value, ValueType};
pub use writer::{DataWriter, TensorWriter, Writer};

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The first bytes of a file whose experts were [punched out](Punch), so that nobody loads it.
pub(crate) const PUNCHED_MAGIC: [u8; 4] = *b"HOLE";
/// The version that is written; 2 has the same layout.
pub(crate) const VERSION: u32 = 3;
/// The key that sets the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of tensor data without that key, in bytes.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest number of dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// The largest length of a tensor's name in bytes.
pub const MAX_NAME_BYTES: usize = 63;

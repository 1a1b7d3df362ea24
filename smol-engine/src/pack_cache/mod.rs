//! Weights that were packed once, kept on flash: one file per model, mapped at the next load.
//!
//! A file holds the packed bytes of each weight, and what they were made of: which model file, for which CPU, by which
//! version of the packing code. Where any of that is different now, the file is not used, and made anew. It appears under
//! its name only when it is complete and on the disk ([`smol_gguf::write_atomically`]), so a process that is killed while
//! it writes leaves nothing that could be taken for a cache.
//!
//! ```
//! use smol_engine::pack_cache::{Folder, Key, PackedFile, Weight};
//!
//! # let temporary = tempfile::tempdir()?;
//! let folder = Folder::new(temporary.path());
//! let key = Key { model: "a hash of the model".into(), ..Key::default() };
//! let weight = Weight { name: "output.weight".into(), layout: "example".into(), bytes: 3, ..Weight::default() };
//! let path = folder.file("model.gguf".as_ref(), &key);
//! folder.write(&path, &key, weight.bytes, |writer| {
//!     writer.add(&weight, |out| out.write_all(b"abc"))
//! })?;
//! let file = PackedFile::open(&path, &key)?;
//! assert_eq!(file.find(&weight), Some(&b"abc"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod folder;
mod format;
mod mapping;
mod prefetch;
mod writer;

pub use file::{PackedFile, Unusable};
pub use folder::{CacheFile, CacheState, Folder, WriteError};
pub use format::{Key, Source, Weight};
pub use mapping::MappedFile;
pub use prefetch::Prefetch;
pub use writer::Writer;

#[cfg(test)]
mod tests;

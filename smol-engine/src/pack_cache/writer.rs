//! Writing a cache file from front to back.

use super::format::{ALIGNMENT, Index, Key, Place, Weight, head, trailer};
use std::io::{self, Write};
use xxhash_rust::xxh3::Xxh3;

/// Writes weights one after the other, and at last their index.
pub struct Writer<'a> {
    out: &'a mut dyn Write,
    at: u64,
    index: Index,
}

impl<'a> Writer<'a> {
    /// Begins a file.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn new(out: &'a mut dyn Write, key: &Key) -> io::Result<Self> {
        let mut writer =
            Self { out, at: 0, index: Index { key: key.clone(), weights: Vec::new() } };
        writer.put(&head())?;
        Ok(writer)
    }

    /// Adds a weight whose bytes `write` writes.
    ///
    /// # Errors
    /// If the output fails or `write` does; [`io::ErrorKind::InvalidInput`] if it writes more or less than
    /// [`Weight::bytes`].
    pub fn add(
        &mut self,
        weight: &Weight,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.pad()?;
        let offset = self.at;
        let mut hashing = Hashing { writer: self, hash: Xxh3::new() };
        write(&mut hashing)?;
        let hash = hashing.hash.digest();
        if self.at - offset != weight.bytes {
            let written = self.at - offset;
            let message = format!("{}: {written} bytes instead of {}", weight.name, weight.bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.index.weights.push(Place { weight: weight.clone(), offset, hash });
        Ok(())
    }

    /// Writes the index and returns the length of the file in bytes.
    ///
    /// # Errors
    /// If the output fails.
    pub fn finish(mut self) -> io::Result<u64> {
        self.pad()?;
        let index = serde_json::to_vec(&self.index)?;
        let trailer = trailer(&index, self.at);
        self.put(&index)?;
        self.put(&trailer)?;
        self.out.flush()?;
        Ok(self.at)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = self.at.next_multiple_of(ALIGNMENT) - self.at;
        self.put(&[0; ALIGNMENT as usize][..missing as usize])
    }
}

/// Counts and hashes what passes.
struct Hashing<'w, 'a> {
    writer: &'w mut Writer<'a>,
    hash: Xxh3,
}

impl Write for Hashing<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.writer.out.write(bytes)?;
        self.writer.at += written as u64;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.out.flush()
    }
}

//! A GGUF file taken apart into fields that can be set to anything, and put together unchecked.
//!
//! It shares no code with the library whose checks it is meant to try.

use anyhow::{Context, Result, bail};

/// Numbers of metadata types in a file.
pub mod kind {
    /// Unsigned, 32 bits.
    pub const U32: u32 = 4;
    /// Signed, 32 bits.
    pub const I32: u32 = 5;
    /// Floating point, 32 bits.
    pub const F32: u32 = 6;
    /// One byte, 0 or 1.
    pub const BOOL: u32 = 7;
    /// A length and bytes.
    pub const STRING: u32 = 8;
    /// An element type, a length and elements.
    pub const ARRAY: u32 = 9;
    /// Unsigned, 16 bits.
    pub const U16: u32 = 2;
}

/// A metadata entry: the value's type number and its bytes as they are in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The key's bytes.
    pub key: Vec<u8>,
    /// The number of the value's type.
    pub kind: u32,
    /// The value's bytes.
    pub value: Vec<u8>,
}

/// A tensor's entry in the header.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// The name's bytes.
    pub name: Vec<u8>,
    /// The dimensions, row length first.
    pub dims: Vec<u64>,
    /// The number of the type.
    pub ty: u32,
    /// Where the data begins, in bytes from the start of the data section.
    pub offset: u64,
}

/// A file in parts.
#[derive(Debug, Clone)]
pub struct RawGguf<'a> {
    /// The version, 3 in a good file.
    pub version: u32,
    /// The metadata in order.
    pub metadata: Vec<Entry>,
    /// The tensors in order.
    pub tensors: Vec<Tensor>,
    /// The data section.
    pub data: std::borrow::Cow<'a, [u8]>,
}

impl<'a> RawGguf<'a> {
    /// Takes a good file apart.
    ///
    /// # Errors
    /// If the bytes aren't a GGUF file of version 2 or 3.
    pub fn parse(file: &'a [u8]) -> Result<Self> {
        let mut cursor = Cursor { file, at: 0 };
        if cursor.take(4)? != b"GGUF" {
            bail!("not a GGUF file");
        }
        let version = cursor.u32()?;
        let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
        let metadata = (0..entries).map(|_| cursor.entry()).collect::<Result<Vec<_>>>()?;
        let tensors = (0..tensors).map(|_| cursor.tensor()).collect::<Result<Vec<_>>>()?;
        let data = file.get(cursor.at.next_multiple_of(32)..).unwrap_or_default().into();
        Ok(Self { version, metadata, tensors, data })
    }

    /// Puts the file together, right or wrong.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for entry in &self.metadata {
            out.extend(string(&entry.key));
            out.extend(entry.kind.to_le_bytes());
            out.extend(&entry.value);
        }
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.ty.to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend_from_slice(&self.data);
        out
    }

    /// Returns the value of a string.
    pub fn text(&self, key: &str) -> Option<&str> {
        let entry = self.metadata.iter().find(|entry| entry.key == key.as_bytes())?;
        (entry.kind == kind::STRING).then(|| std::str::from_utf8(entry.value.get(8..)?).ok())?
    }

    /// Sets a value, in place if the key exists.
    pub fn set(&mut self, key: &str, kind: u32, value: Vec<u8>) {
        match self.metadata.iter_mut().find(|entry| entry.key == key.as_bytes()) {
            Some(entry) => (entry.kind, entry.value) = (kind, value),
            None => self.metadata.push(Entry { key: key.into(), kind, value }),
        }
    }

    /// Sets an unsigned number.
    pub fn set_u32(&mut self, key: &str, value: u32) {
        self.set(key, kind::U32, value.to_le_bytes().to_vec());
    }

    /// Sets a floating-point number.
    pub fn set_f32(&mut self, key: &str, value: f32) {
        self.set(key, kind::F32, value.to_le_bytes().to_vec());
    }

    /// Sets a string.
    pub fn set_text(&mut self, key: &str, value: &str) {
        self.set(key, kind::STRING, string(value.as_bytes()));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|entry| entry.key != key.as_bytes());
    }

    /// Returns the strings of an array.
    pub fn strings(&self, key: &str) -> Option<Vec<Vec<u8>>> {
        let entry = self.metadata.iter().find(|entry| entry.key == key.as_bytes())?;
        let mut cursor = Cursor { file: &entry.value, at: 0 };
        if entry.kind != kind::ARRAY || cursor.u32().ok()? != kind::STRING {
            return None;
        }
        let count = cursor.u64().ok()?;
        (0..count).map(|_| cursor.string().map(<[u8]>::to_vec).ok()).collect()
    }

    /// Sets an array of strings.
    pub fn set_strings(&mut self, key: &str, values: &[Vec<u8>]) {
        let elements: Vec<u8> = values.iter().flat_map(|value| string(value)).collect();
        self.set(key, kind::ARRAY, array(kind::STRING, values.len() as u64, &elements));
    }

    /// Returns the header entry of a tensor.
    pub fn tensor_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        self.tensors.iter_mut().find(|tensor| tensor.name == name.as_bytes())
    }
}

/// Returns a string as it is in a file.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// Returns an array as it is in a file.
pub fn array(kind: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).context("a length overflows")?;
        let bytes = self.file.get(self.at..end).context("the file ends early")?;
        self.at = end;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }

    fn string(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.u64()?)?;
        self.take(len)
    }

    fn entry(&mut self) -> Result<Entry> {
        let key = self.string()?.to_vec();
        let kind = self.u32()?;
        let start = self.at;
        self.skip_value(kind)?;
        Ok(Entry { key, kind, value: self.file[start..self.at].to_vec() })
    }

    fn skip_value(&mut self, kind: u32) -> Result<()> {
        match kind {
            kind::STRING => {
                self.string()?;
            }
            kind::ARRAY => {
                let (element, count) = (self.u32()?, self.u64()?);
                for _ in 0..count {
                    self.skip_value(element)?;
                }
            }
            0 | 1 | kind::BOOL => {
                self.take(1)?;
            }
            2 | 3 => {
                self.take(2)?;
            }
            4..=6 => {
                self.take(4)?;
            }
            10..=12 => {
                self.take(8)?;
            }
            other => bail!("no value type has number {other}"),
        }
        Ok(())
    }

    fn tensor(&mut self) -> Result<Tensor> {
        let name = self.string()?.to_vec();
        let dims = self.u32()?;
        let dims = (0..dims).map(|_| self.u64()).collect::<Result<_>>()?;
        Ok(Tensor { name, dims, ty: self.u32()?, offset: self.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiny::{self, Arch, TinyOptions};

    #[test]
    fn a_good_file_comes_out_as_it_went_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
        let file = std::fs::read(path).unwrap();
        let raw = RawGguf::parse(&file).unwrap();
        assert_eq!(raw.text("general.architecture"), Some("llama"));
        assert_eq!(raw.strings("tokenizer.ggml.tokens").unwrap().len(), 1024);
        assert!(raw.to_bytes() == file);
        assert!(RawGguf::parse(&file[..1000]).is_err());
    }
}

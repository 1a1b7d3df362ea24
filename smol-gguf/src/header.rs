//! Parses a file's header from any bytes, in memory bounded by their number.

use std::collections::HashSet;
use std::io::{self, Read};

use crate::error::{ErrorKind, OneLine, Result};
use crate::writer::alignment;
use crate::{
    Array, ByteString, MAGIC, MAX_DIMS, MAX_NAME_BYTES, Metadata, PUNCHED_MAGIC, StringArray,
    TensorInfo, TensorType, Value, ValueType, foreign,
};

/// Strings and arrays longer than this are refused, as llama.cpp does.
const MAX_LEN: u64 = 1 << 30;
/// The least size of a key with its value that is worth a look: the key's length. A count that
/// passes though the keys don't fit gives a better message at the first key.
const MIN_PAIR_BYTES: u64 = 8;
/// The least size of a tensor's description: length, number of dimensions, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;
/// How much memory is reserved at once, before the bytes that fill it have been seen.
const CHUNK: usize = 64 * 1024;

/// Which files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accept {
    /// Whole ones.
    Whole,
    /// Also those whose experts were punched out.
    Punched,
}

/// The contents of a header.
pub(crate) struct Header {
    pub(crate) punched: bool,
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) alignment: u64,
    pub(crate) data_offset: u64,
}

/// Parses the header at the start of `bytes`, of which the file has `file_len`.
pub(crate) fn parse(bytes: impl Read, file_len: u64, accept: Accept) -> Result<Header> {
    let mut reader = Reader { bytes, position: 0, len: file_len };
    let (punched, version) = reader.magic_and_version(accept)?;
    let n_tensors = reader.u64("the number of tensors")?;
    let n_pairs = reader.u64("the number of metadata keys")?;
    reader.count("the number of metadata keys", n_pairs, MIN_PAIR_BYTES)?;
    reader.count("the number of tensors", n_tensors, MIN_TENSOR_BYTES)?;

    let mut metadata = Metadata::new();
    for index in 0..n_pairs {
        let (key, value) = reader.pair(index)?;
        if metadata.contains(&key) {
            return Err(ErrorKind::DuplicateKey { key }.into());
        }
        metadata.set(key, value);
    }
    let alignment = alignment(&metadata)?;

    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut names = HashSet::new();
    for index in 0..n_tensors {
        let tensor = reader.tensor(index)?;
        if !names.insert(tensor.name().to_owned()) {
            return Err(ErrorKind::DuplicateTensor { tensor: tensor.name().to_owned() }.into());
        }
        tensors.push(tensor);
    }
    // The position is at most the file's length, and alignments are below 2^32.
    let data_offset = reader.position.next_multiple_of(alignment);
    Ok(Header { punched, version, metadata, tensors, alignment, data_offset })
}

struct Reader<R> {
    bytes: R,
    position: u64,
    len: u64,
}

impl<R: Read> Reader<R> {
    fn remaining(&self) -> u64 {
        self.len - self.position
    }

    /// Returns whether the file is punched, and the format's version.
    fn magic_and_version(&mut self, accept: Accept) -> Result<(bool, u32)> {
        if self.len == 0 {
            return Err(ErrorKind::Empty.into());
        }
        let mut head = [0; 64];
        let n = self.remaining().min(4) as usize;
        self.fill(&mut head[..n], || "the magic".into())?;
        if n < 4 && MAGIC.starts_with(&head[..n]) {
            return Err(truncated("the magic", 4 - n as u64));
        }
        let punched = head[..n] == PUNCHED_MAGIC;
        if punched && accept == Accept::Whole {
            return Err(ErrorKind::Punched.into());
        }
        if head[..n] != MAGIC && !punched {
            // The start of the file tells what it is instead.
            let more = self.remaining().min(60) as usize;
            self.fill(&mut head[n..n + more], || "the start".into())?;
            return Err(ErrorKind::NotGguf { found: foreign::describe(&head[..n + more]) }.into());
        }
        let version = self.u32("the version")?;
        if version != 0 && version & 0xffff == 0 {
            return Err(ErrorKind::BigEndian { version }.into());
        }
        if !matches!(version, 2 | 3) {
            return Err(ErrorKind::Version { found: version }.into());
        }
        Ok((punched, version))
    }

    /// Refuses a count of items that can't all be in the rest of the file.
    fn count(&self, what: &'static str, found: u64, min_bytes: u64) -> Result<()> {
        let max = self.remaining() / min_bytes;
        if found > max { Err(ErrorKind::Count { what, found, max }.into()) } else { Ok(()) }
    }

    fn pair(&mut self, index: u64) -> Result<(String, Value)> {
        let key = self.name("metadata key", index, MAX_LEN)?;
        if key.is_empty() {
            return Err(ErrorKind::EmptyKey { index }.into());
        }
        let id = self.u32(&format!("the type of key `{}`", OneLine(&key)))?;
        let Some(ty) = ValueType::from_id(id) else {
            return Err(ErrorKind::ValueType { key, found: id }.into());
        };
        let value = self.value(&key, ty)?;
        Ok((key, value))
    }

    fn value(&mut self, key: &str, ty: ValueType) -> Result<Value> {
        let what = || format!("the value of key `{}`", OneLine(key));
        Ok(match ty {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.array(what)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.array(what)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.array(what)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.array(what)?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(self.array(what)?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.array(what)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.array(what)?)),
            ValueType::Bool => Value::Bool(self.array::<1>(what)? != [0]),
            ValueType::String => {
                let len = self.length(what, MAX_LEN, 1)?;
                let mut bytes = Vec::new();
                self.extend(&mut bytes, len, what)?;
                Value::String(ByteString::from(bytes))
            }
            ValueType::Array => Value::Array(self.value_array(key)?),
            ValueType::U64 => Value::U64(u64::from_le_bytes(self.array(what)?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.array(what)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.array(what)?)),
        })
    }

    fn value_array(&mut self, key: &str) -> Result<Array> {
        let what = || format!("the array of key `{}`", OneLine(key));
        let id = u32::from_le_bytes(self.array(what)?);
        let Some(ty) = ValueType::from_id(id) else {
            return Err(ErrorKind::ArrayType { key: key.to_owned(), found: id }.into());
        };
        Ok(match ty {
            ValueType::U8 => Array::U8(self.elements(what, u8::from_le_bytes)?),
            ValueType::I8 => Array::I8(self.elements(what, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.elements(what, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.elements(what, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.elements(what, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.elements(what, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.elements(what, f32::from_le_bytes)?),
            ValueType::Bool => Array::Bool(self.elements(what, |b: [u8; 1]| b != [0])?),
            ValueType::String => {
                let n = self.length(what, MAX_LEN, 8)?;
                let mut strings = StringArray::new();
                for _ in 0..n {
                    let len = self.length(what, MAX_LEN, 1)?;
                    strings.push_with(|bytes| self.extend(bytes, len, what))?;
                }
                Array::String(strings)
            }
            ValueType::Array => return Err(ErrorKind::NestedArray { key: key.to_owned() }.into()),
            ValueType::U64 => Array::U64(self.elements(what, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.elements(what, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.elements(what, f64::from_le_bytes)?),
        })
    }

    /// Reads a length and that many elements of `N` bytes each.
    fn elements<T, const N: usize>(
        &mut self,
        what: impl Fn() -> String + Copy,
        decode: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let len = self.length(what, MAX_LEN, N as u64)? as usize;
        let mut values = Vec::new();
        let mut chunk = [0; CHUNK];
        while values.len() < len {
            let n = (len - values.len()).min(CHUNK / N);
            let bytes = &mut chunk[..n * N];
            self.fill(bytes, what)?;
            reserve(&mut values, n)?;
            values.extend(bytes.as_chunks::<N>().0.iter().map(|&b| decode(b)));
        }
        values.shrink_to_fit();
        Ok(values)
    }

    fn tensor(&mut self, index: u64) -> Result<TensorInfo> {
        let name = self.name("tensor name", index, MAX_NAME_BYTES as u64)?;
        let what = || format!("the description of tensor `{}`", OneLine(&name));
        let n_dims = u32::from_le_bytes(self.array(what)?);
        if n_dims as usize > MAX_DIMS {
            return Err(ErrorKind::TensorDims { tensor: name, found: n_dims.into() }.into());
        }
        let mut shape = [0; MAX_DIMS];
        let shape = &mut shape[..n_dims as usize];
        for dim in shape.iter_mut() {
            *dim = u64::from_le_bytes(self.array(what)?);
        }
        let id = u32::from_le_bytes(self.array(what)?);
        let offset = u64::from_le_bytes(self.array(what)?);
        let Some(ty) = TensorType::from_id(id) else {
            return Err(match TensorType::removed_name(id) {
                Some(old) => {
                    ErrorKind::RemovedTensorType { tensor: name, found: id, name: old }.into()
                }
                None => ErrorKind::TensorType { tensor: name, found: id }.into(),
            });
        };
        TensorInfo::new(name, shape, ty, offset)
    }

    /// Reads the name of a key or tensor, which must be UTF-8.
    fn name(&mut self, what: &'static str, index: u64, max: u64) -> Result<String> {
        let describe = || format!("{what} number {index}");
        let len = self.length(describe, max, 1)?;
        let mut bytes = Vec::new();
        self.extend(&mut bytes, len, describe)?;
        String::from_utf8(bytes).map_err(|e| {
            let text = String::from_utf8_lossy(e.as_bytes()).into_owned();
            ErrorKind::NotUtf8 { what: describe(), text }.into()
        })
    }

    /// Reads a length of at most `max` items of at least `item_bytes` each.
    fn length(&mut self, what: impl Fn() -> String, max: u64, item_bytes: u64) -> Result<u64> {
        let found = u64::from_le_bytes(self.array(&what)?);
        let max = max.min(self.remaining() / item_bytes);
        if found > max {
            return Err(ErrorKind::Length { what: what(), found, max }.into());
        }
        Ok(found)
    }

    fn extend(&mut self, into: &mut Vec<u8>, len: u64, what: impl Fn() -> String) -> Result<()> {
        let mut left = len as usize;
        while left > 0 {
            let n = left.min(CHUNK);
            reserve(into, n)?;
            let start = into.len();
            into.resize(start + n, 0);
            self.fill(&mut into[start..], &what)?;
            left -= n;
        }
        Ok(())
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(|| what.to_owned())?))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(|| what.to_owned())?))
    }

    fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn fill(&mut self, buf: &mut [u8], what: impl Fn() -> String) -> Result<()> {
        let wanted = buf.len() as u64;
        if wanted > self.remaining() {
            return Err(truncated(&what(), wanted - self.remaining()));
        }
        self.bytes.read_exact(buf).map_err(|e| match e.kind() {
            // The file has become shorter since its length was taken.
            io::ErrorKind::UnexpectedEof => truncated(&what(), wanted),
            _ => e.into(),
        })?;
        self.position += wanted;
        Ok(())
    }
}

fn truncated(what: &str, missing: u64) -> crate::Error {
    ErrorKind::HeaderTruncated { what: what.to_owned(), missing }.into()
}

/// Reserves memory, with an error instead of an abort where there is none.
fn reserve<T>(vec: &mut Vec<T>, additional: usize) -> Result<()> {
    vec.try_reserve(additional).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory).into())
}

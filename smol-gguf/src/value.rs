//! The values of metadata keys.

use std::fmt;

use crate::{ByteString, StringArray};

/// The type of a metadata value, as numbered in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 16 bits.
    U16 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// Floating point, 32 bits.
    F32 = 6,
    /// One byte; zero is false.
    Bool = 7,
    /// A length in 64 bits and that many bytes.
    String = 8,
    /// An element type, a length in 64 bits and that many elements.
    Array = 9,
    /// Unsigned, 64 bits.
    U64 = 10,
    /// Signed, 64 bits.
    I64 = 11,
    /// Floating point, 64 bits.
    F64 = 12,
}

impl ValueType {
    /// Returns the type with this number in a file, if it exists.
    pub const fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Returns the number that stands for this type in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Returns the short name that llama.cpp prints, such as `u32` or `arr`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "str",
            Self::Array => "arr",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value.
///
/// # Examples
///
/// ```
/// use smol_gguf::Value;
///
/// let layers = Value::from(30u32);
/// assert_eq!(layers.as_u64(), Some(30));
/// assert_eq!(layers.to_string(), "30");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // the variants are the types of [`ValueType`]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(ByteString),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array as a metadata value; arrays of arrays don't exist.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs)] // the variants are the types of [`ValueType`]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(StringArray),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// Returns the type.
    pub const fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Returns the value of an integer of any width that isn't negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(_) | Self::I16(_) | Self::I32(_) | Self::I64(_) => {
                u64::try_from(self.as_i64()?).ok()
            }
            _ => None,
        }
    }

    /// Returns the value of an integer of any width that fits `i64`.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::I8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::U64(v) => i64::try_from(v).ok(),
            Self::I64(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value of a floating-point number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the value of a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// Returns the text of a string that is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(s) => s.to_str(),
            _ => None,
        }
    }

    /// Returns the bytes of a string.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::String(s) => Some(s.as_bytes()),
            _ => None,
        }
    }

    /// Returns the array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(a) => Some(a),
            _ => None,
        }
    }
}

impl Array {
    /// Returns the type of the elements.
    pub const fn ty(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(a) => a.len(),
            Self::I8(a) => a.len(),
            Self::U16(a) => a.len(),
            Self::I16(a) => a.len(),
            Self::U32(a) => a.len(),
            Self::I32(a) => a.len(),
            Self::F32(a) => a.len(),
            Self::Bool(a) => a.len(),
            Self::String(a) => a.len(),
            Self::U64(a) => a.len(),
            Self::I64(a) => a.len(),
            Self::F64(a) => a.len(),
        }
    }

    /// Reports whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the strings of an array of strings.
    pub fn as_strings(&self) -> Option<&StringArray> {
        match self {
            Self::String(a) => Some(a),
            _ => None,
        }
    }

    /// Returns the element at `index` as a value.
    pub fn get(&self, index: usize) -> Option<Value> {
        match self {
            Self::U8(a) => a.get(index).copied().map(Value::U8),
            Self::I8(a) => a.get(index).copied().map(Value::I8),
            Self::U16(a) => a.get(index).copied().map(Value::U16),
            Self::I16(a) => a.get(index).copied().map(Value::I16),
            Self::U32(a) => a.get(index).copied().map(Value::U32),
            Self::I32(a) => a.get(index).copied().map(Value::I32),
            Self::F32(a) => a.get(index).copied().map(Value::F32),
            Self::Bool(a) => a.get(index).copied().map(Value::Bool),
            Self::String(a) => a.get(index).map(|s| Value::String(s.to_vec().into())),
            Self::U64(a) => a.get(index).copied().map(Value::U64),
            Self::I64(a) => a.get(index).copied().map(Value::I64),
            Self::F64(a) => a.get(index).copied().map(Value::F64),
        }
    }

    /// Iterates over the elements as values.
    pub fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

/// Scalars and strings in full; arrays as their element type and length, `[i32; 49152]`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(v) => v.fmt(f),
            Self::Array(a) => write!(f, "[{}; {}]", a.ty(), a.len()),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

macro_rules! from_scalar {
    ($($t:ty => $variant:ident),*) => {$(
        impl From<$t> for Value {
            fn from(v: $t) -> Self {
                Self::$variant(v)
            }
        }

        impl From<Vec<$t>> for Array {
            fn from(v: Vec<$t>) -> Self {
                Self::$variant(v)
            }
        }
    )*};
}

from_scalar!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, f32 => F32,
    bool => Bool, u64 => U64, i64 => I64, f64 => F64);

impl From<StringArray> for Array {
    fn from(v: StringArray) -> Self {
        Self::String(v)
    }
}

impl From<Vec<&str>> for Array {
    fn from(v: Vec<&str>) -> Self {
        Self::String(v.into_iter().collect())
    }
}

impl From<Vec<String>> for Array {
    fn from(v: Vec<String>) -> Self {
        Self::String(v.into_iter().collect())
    }
}

impl From<&str> for Value {
    fn from(v: &str) -> Self {
        Self::String(v.into())
    }
}

impl From<String> for Value {
    fn from(v: String) -> Self {
        Self::String(v.into())
    }
}

impl From<ByteString> for Value {
    fn from(v: ByteString) -> Self {
        Self::String(v)
    }
}

impl<T> From<T> for Value
where
    T: Into<Array>,
{
    fn from(v: T) -> Self {
        Self::Array(v.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_any_width_coerce_when_they_fit() {
        assert_eq!(Value::U8(7).as_i64(), Some(7));
        assert_eq!(Value::I32(-1).as_u64(), None);
        assert_eq!(Value::I32(-1).as_i64(), Some(-1));
        assert_eq!(Value::I64(9).as_u64(), Some(9));
        assert_eq!(Value::U64(u64::MAX).as_i64(), None);
        assert_eq!(Value::F32(1.0).as_u64(), None);
        assert_eq!(Value::Bool(true).as_u64(), None);
    }

    #[test]
    fn type_numbers_round_trip() {
        for id in 0..=12 {
            assert_eq!(ValueType::from_id(id).map(ValueType::id), Some(id));
        }
        assert_eq!(ValueType::from_id(13), None);
    }

    #[test]
    fn arrays_know_type_length_and_elements() {
        let array = Array::from(vec!["a", "bc"]);
        assert_eq!((array.ty(), array.len()), (ValueType::String, 2));
        assert_eq!(array.get(1), Some(Value::from("bc")));
        assert_eq!(array.get(2), None);
        assert_eq!(Value::from(vec![1u32, 2]).to_string(), "[u32; 2]");
        assert_eq!(
            Array::from(vec![1i8, -2]).iter().collect::<Vec<_>>(),
            [1i8.into(), (-2i8).into()]
        );
    }
}

//! Strings as files hold them: bytes that should be UTF-8 and sometimes aren't.

use std::borrow::Cow;
use std::fmt;

/// A string value, kept byte for byte.
///
/// The format asks for UTF-8 but nothing enforces it, and some vocabularies hold token fragments
/// that are not; a rewrite must not change them.
///
/// # Examples
///
/// ```
/// use smol_gguf::ByteString;
///
/// let s = ByteString::from("llama");
/// assert_eq!(s.to_str(), Some("llama"));
/// assert_eq!(ByteString::from(vec![0xe6, 0xad]).to_str(), None);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteString(Vec<u8>);

impl ByteString {
    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the text, if the bytes are UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Returns the text with replacement characters where the bytes are not UTF-8.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

impl fmt::Display for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_string_lossy())
    }
}

impl From<&str> for ByteString {
    fn from(s: &str) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

impl From<String> for ByteString {
    fn from(s: String) -> Self {
        Self(s.into_bytes())
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl PartialEq<str> for ByteString {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for ByteString {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

/// A list of strings in two allocations, whatever their number.
///
/// A vocabulary has hundreds of thousands of short strings; this takes no more memory than the
/// file gives them.
///
/// # Examples
///
/// ```
/// use smol_gguf::StringArray;
///
/// let tokens: StringArray = ["<s>", "</s>"].into_iter().collect();
/// assert_eq!(tokens.len(), 2);
/// assert_eq!(tokens.get(1), Some(&b"</s>"[..]));
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct StringArray {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl StringArray {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a string.
    pub fn push(&mut self, s: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(s.as_ref());
        self.ends.push(self.bytes.len());
    }

    /// Appends a string that `write` appends to the bytes.
    pub(crate) fn push_with<E>(
        &mut self,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        write(&mut self.bytes)?;
        self.ends.push(self.bytes.len());
        Ok(())
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Reports whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the bytes of the string at `index`.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    /// Iterates over the bytes of each string.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + '_ {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let s = &self.bytes[start..end];
            start = end;
            s
        })
    }

    /// Returns the length in bytes of all strings together.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl fmt::Debug for StringArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(String::from_utf8_lossy)).finish()
    }
}

impl<S: AsRef<[u8]>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> Self {
        let mut array = Self::new();
        array.extend(iter);
        array
    }
}

impl<S: AsRef<[u8]>> Extend<S> for StringArray {
    fn extend<I: IntoIterator<Item = S>>(&mut self, iter: I) {
        for s in iter {
            self.push(s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_array_keeps_every_string_apart() {
        let parts: [&[u8]; 4] = [b"", b"ab", &[0xff], b""];
        let array: StringArray = parts.iter().collect();
        assert_eq!(array.len(), 4);
        assert_eq!(array.total_bytes(), 3);
        assert!(array.iter().eq(parts));
        for (i, part) in parts.iter().enumerate() {
            assert_eq!(array.get(i), Some(*part));
        }
        assert_eq!(array.get(4), None);
    }

    #[test]
    fn invalid_utf8_is_kept_and_shown_with_replacement() {
        let s = ByteString::from(vec![b'a', 0xe6, 0xad]);
        assert_eq!(s.as_bytes(), [b'a', 0xe6, 0xad]);
        assert_eq!(s.to_str(), None);
        assert_eq!(s.to_string(), "a\u{fffd}");
    }
}

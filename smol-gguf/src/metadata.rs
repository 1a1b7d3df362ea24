//! The key-value pairs of a file, in order.

use std::collections::HashMap;

use crate::{Array, Value};

/// Ordered key-value pairs with unique keys.
///
/// # Examples
///
/// ```
/// use smol_gguf::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.set("general.architecture", "llama");
/// metadata.set("llama.block_count", 30u32);
/// assert_eq!(metadata.get_u32("llama.block_count"), Some(30));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    pairs: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key. An existing key keeps its place, a new one goes to the end.
    ///
    /// Returns the value that was replaced.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Option<Value> {
        let key = key.into();
        let value = value.into();
        if let Some(&at) = self.index.get(&key) {
            return Some(std::mem::replace(&mut self.pairs[at].1, value));
        }
        self.index.insert(key.clone(), self.pairs.len());
        self.pairs.push((key, value));
        None
    }

    /// Removes a key and returns its value. The others keep their order.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        let at = self.index.remove(key)?;
        for position in self.index.values_mut().filter(|p| **p > at) {
            *position -= 1;
        }
        Some(self.pairs.remove(at).1)
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&at| &self.pairs[at].1)
    }

    /// Reports whether a key is present.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// Returns an integer of any width that fits `u32`.
    pub fn get_u32(&self, key: &str) -> Option<u32> {
        self.get_u64(key).and_then(|v| u32::try_from(v).ok())
    }

    /// Returns an integer of any width that fits `i32`.
    pub fn get_i32(&self, key: &str) -> Option<i32> {
        self.get(key).and_then(Value::as_i64).and_then(|v| i32::try_from(v).ok())
    }

    /// Returns an integer of any width that isn't negative.
    pub fn get_u64(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    /// Returns a floating-point number, rounded to `f32` where it is stored wider.
    pub fn get_f32(&self, key: &str) -> Option<f32> {
        self.get(key).and_then(Value::as_f64).map(|v| v as f32)
    }

    /// Returns a boolean.
    pub fn get_bool(&self, key: &str) -> Option<bool> {
        self.get(key).and_then(Value::as_bool)
    }

    /// Returns a string that is UTF-8.
    pub fn get_str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// Returns an array.
    pub fn get_array(&self, key: &str) -> Option<&Array> {
        self.get(key).and_then(Value::as_array)
    }

    /// Returns `general.architecture`, the prefix of the model's own keys.
    pub fn architecture(&self) -> Option<&str> {
        self.get_str("general.architecture")
    }

    /// Returns the value of a key that starts with the architecture:
    /// `arch_key("block_count")` of a llama model is `llama.block_count`.
    pub fn arch_get(&self, suffix: &str) -> Option<&Value> {
        self.get(&format!("{}.{suffix}", self.architecture()?))
    }

    /// Iterates over the pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> + '_ {
        self.pairs.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Reports whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
}

/// Equal if the same pairs come in the same order; floats compare by value.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.pairs == other.pairs
    }
}

impl<K: Into<String>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(iter: I) -> Self {
        let mut metadata = Self::new();
        for (key, value) in iter {
            metadata.set(key, value);
        }
        metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_keeps_the_place_and_remove_the_order() {
        let mut m: Metadata = [("a", 1u32), ("b", 2), ("c", 3)].into_iter().collect();
        assert_eq!(m.set("b", "two"), Some(Value::U32(2)));
        assert_eq!(m.remove("a"), Some(Value::U32(1)));
        assert_eq!(m.remove("a"), None);
        assert_eq!(m.iter().map(|(k, _)| k).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(m.get_str("b"), Some("two"));
        assert_eq!(m.get_u32("c"), Some(3));
        m.set("a", 4u8);
        assert_eq!(m.iter().map(|(k, _)| k).collect::<Vec<_>>(), ["b", "c", "a"]);
    }

    #[test]
    fn getters_refuse_what_does_not_fit() {
        let m: Metadata =
            [("wide", Value::U64(1 << 40)), ("neg", Value::I8(-1)), ("f", Value::F64(0.5))]
                .into_iter()
                .collect();
        assert_eq!(m.get_u32("wide"), None);
        assert_eq!(m.get_u64("wide"), Some(1 << 40));
        assert_eq!(m.get_u32("neg"), None);
        assert_eq!(m.get_i32("neg"), Some(-1));
        assert_eq!(m.get_f32("f"), Some(0.5));
        assert_eq!(m.get_str("f"), None);
    }
}

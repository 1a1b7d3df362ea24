//! Operations of the compute graph.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

use crate::ffi::engine;

/// An operation of ggml's compute graph, such as `MUL_MAT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op {
    /// A value of `enum ggml_op`.
    index: u8,
}

impl Op {
    /// Returns every operation, in ggml's order.
    ///
    /// # Examples
    /// ```
    /// assert!(llama_rs::Op::all().any(|op| op.name() == "MUL_MAT"));
    /// ```
    pub fn all() -> impl Iterator<Item = Self> {
        (0..engine::OP_COUNT).map(|index| Self { index })
    }

    /// Returns the operation that ggml calls `name`, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|op| op.name() == name)
    }

    /// Returns ggml's name.
    pub fn name(self) -> &'static str {
        engine::op_name(self.index)
    }

    /// Its place in [`Op::all`].
    pub(crate) fn index(self) -> usize {
        usize::from(self.index)
    }

    /// The operation with that value in `enum ggml_op`.
    pub(crate) fn from_index(index: u8) -> Self {
        debug_assert!(index < engine::OP_COUNT);
        Self { index }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Op {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not through a String: the error must arise inside the deserializer, which knows the place in the text.
        deserializer.deserialize_str(ByName)
    }
}

struct ByName;

impl Visitor<'_> for ByName {
    type Value = Op;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of an operation of ggml")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Op, E> {
        Op::from_name(name).ok_or_else(|| {
            let upper = name.to_uppercase().replace('-', "_");
            let way_out = match Op::from_name(&upper) {
                Some(op) => format!("did you mean `{op}`?"),
                None => "examples are `MUL_MAT`, `MUL_MAT_ID`, `ROPE`, `FLASH_ATTN_EXT`".to_owned(),
            };
            E::custom(format!("`{name}` is not an operation of ggml; {way_out}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for op in Op::all() {
            assert_eq!(Op::from_name(op.name()), Some(op));
        }
        assert!(Op::all().count() > 90);
        assert_eq!(Op::from_name("mul_mat"), None);
    }
}

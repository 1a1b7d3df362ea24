//! A model as the checks see it: metadata of the first file, tensors of all.

use crate::error::ErrorKind;
use crate::{Array, Gguf, Metadata, TensorInfo, Value};

use super::Report;

pub(super) struct Model<'a> {
    pub(super) files: Vec<&'a Gguf>,
    pub(super) arch: &'a str,
}

impl<'a> Model<'a> {
    pub(super) fn new(files: Vec<&'a Gguf>) -> Self {
        let arch = files[0].architecture().unwrap_or_default();
        Self { files, arch }
    }

    pub(super) fn first(&self) -> &'a Gguf {
        self.files[0]
    }

    pub(super) fn metadata(&self) -> &'a Metadata {
        self.first().metadata()
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = &'a TensorInfo> + '_ {
        self.files.iter().flat_map(|f| f.tensors())
    }

    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.files.iter().any(|f| f.tensor(name).is_some())
    }

    /// Reports whether layer 0 computes attention with weights of the usual names.
    pub(super) fn has_attention(&self) -> bool {
        ["blk.0.attn_q.weight", "blk.0.attn_qkv.weight", "blk.0.attn_output.weight"]
            .iter()
            .any(|name| self.has_tensor(name))
    }

    /// Reports whether the file holds a vocabulary and no weights, which is fine to tokenize with.
    pub(super) fn is_vocabulary_only(&self) -> bool {
        self.tensors().next().is_none()
    }

    pub(super) fn key(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.arch)
    }

    pub(super) fn get(&self, suffix: &str) -> Option<&'a Value> {
        self.metadata().get(&self.key(suffix))
    }

    /// Tells language models from encoders, adapters and other companions.
    pub(super) fn is_language_model(&self, report: &mut Report) -> bool {
        const TYPE: &str = "general.type";
        const ARCHITECTURE: &str = "general.architecture";
        let file = self.first();
        let not_one = |key: &str, found: &str| ErrorKind::NotLanguageModel {
            key: key.into(),
            found: found.into(),
        };
        match self.metadata().get(TYPE).and_then(Value::as_str) {
            None | Some("model") => {}
            Some(other) => {
                report.warning(file, not_one(TYPE, other));
                return false;
            }
        }
        match self.metadata().get(ARCHITECTURE) {
            // With a vocabulary llama.cpp gets as far as an abort.
            Some(v) if v.as_str() == Some("clip") => {
                let kind = not_one(ARCHITECTURE, "clip");
                if self.metadata().contains("tokenizer.ggml.model") {
                    report.error(file, kind);
                } else {
                    report.warning(file, kind);
                }
                false
            }
            Some(v) if v.as_str().is_some_and(|s| !s.is_empty()) => true,
            Some(v) if v.as_str().is_none() => {
                report.error(file, key_type(ARCHITECTURE, v, "str"));
                false
            }
            _ => {
                report.error(file, ErrorKind::MissingKey { key: ARCHITECTURE.into() });
                false
            }
        }
    }

    /// Returns a number that llama.cpp reads as `u32`; another type is an error.
    pub(super) fn u32(&self, suffix: &str, report: &mut Report) -> Option<u32> {
        match self.get(suffix)? {
            Value::U32(v) => Some(*v),
            other => {
                report.error(self.first(), key_type(&self.key(suffix), other, "u32"));
                None
            }
        }
    }

    /// As [`u32`](Self::u32), and a value outside of the range is an error.
    pub(super) fn u32_in(
        &self,
        suffix: &str,
        range: std::ops::RangeInclusive<u32>,
        report: &mut Report,
    ) -> Option<u32> {
        let v = self.u32(suffix, report)?;
        if range.contains(&v) {
            return Some(v);
        }
        let allowed = if range.start() == range.end() {
            range.start().to_string()
        } else {
            format!("{} to {}", range.start(), range.end())
        };
        self.out_of_range(suffix, v, allowed, report);
        None
    }

    /// Returns a number for each layer, from a scalar or an array; errors are reported.
    pub(super) fn per_layer(
        &self,
        suffix: &str,
        n_layer: u32,
        report: &mut Report,
    ) -> Option<Vec<u32>> {
        let key = self.key(suffix);
        let values = match self.get(suffix)? {
            Value::U32(v) => return Some(vec![*v; n_layer as usize]),
            Value::Array(Array::U32(a)) => a.clone(),
            // The bits are taken as they are.
            Value::Array(Array::I32(a)) => a.iter().map(|&v| v as u32).collect(),
            Value::Array(Array::Bool(a)) => a.iter().map(|&v| v.into()).collect(),
            other => {
                report.error(self.first(), key_type(&key, other, "u32, or [u32] or [i32]"));
                return None;
            }
        };
        if values.len() != n_layer as usize {
            report.error(
                self.first(),
                ErrorKind::ArrayLength {
                    key,
                    found: values.len() as u64,
                    allowed: format!("{n_layer}, one for each layer"),
                },
            );
            return None;
        }
        Some(values)
    }

    pub(super) fn out_of_range(
        &self,
        suffix: &str,
        found: impl ToString,
        allowed: impl Into<String>,
        report: &mut Report,
    ) {
        report.error(
            self.first(),
            ErrorKind::KeyRange {
                key: self.key(suffix),
                found: found.to_string(),
                allowed: allowed.into(),
            },
        );
    }
}

pub(super) fn key_type(key: &str, found: &Value, expected: &'static str) -> ErrorKind {
    let found = match found {
        Value::Array(a) => array_name(a),
        v => v.ty().name(),
    };
    ErrorKind::KeyType { key: key.to_owned(), found, expected }
}

fn array_name(array: &Array) -> &'static str {
    match array {
        Array::U8(_) => "[u8]",
        Array::I8(_) => "[i8]",
        Array::U16(_) => "[u16]",
        Array::I16(_) => "[i16]",
        Array::U32(_) => "[u32]",
        Array::I32(_) => "[i32]",
        Array::F32(_) => "[f32]",
        Array::Bool(_) => "[bool]",
        Array::String(_) => "[str]",
        Array::U64(_) => "[u64]",
        Array::I64(_) => "[i64]",
        Array::F64(_) => "[f64]",
    }
}

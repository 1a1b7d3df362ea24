//! A model that is read row by row as numbers.

use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use smol_gguf::{Gguf, Metadata, TensorType};

use crate::quant;

/// An open model file; rows are converted when they are asked for.
pub struct Source {
    path: PathBuf,
    file: Gguf,
}

/// The sizes of a dense model of the `llama` architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The length of a hidden state.
    pub hidden: usize,
    /// The number of query heads.
    pub heads: usize,
    /// The number of key-value heads.
    pub kv_heads: usize,
    /// The length of a head.
    pub head_len: usize,
    /// The length of the feed-forward activation.
    pub feed_forward: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of tokens.
    pub vocab: usize,
}

impl Source {
    /// Opens a model.
    ///
    /// # Errors
    /// If the file can't be read or isn't a model.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Gguf::open(path)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Returns the metadata.
    pub fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    /// Returns the names of all tensors, in the file's order.
    pub fn names(&self) -> Vec<&str> {
        self.file.tensors().iter().map(|tensor| tensor.name()).collect()
    }

    /// Reports whether there is a tensor with this name.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Returns the dimensions of a tensor, row length first.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn dims(&self, name: &str) -> Result<Vec<u64>> {
        Ok(self.info(name)?.shape().to_vec())
    }

    /// Returns the type of a tensor.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub fn ty(&self, name: &str) -> Result<TensorType> {
        Ok(self.info(name)?.ty())
    }

    /// Returns the bytes of a tensor.
    ///
    /// # Errors
    /// If there is no such tensor or it can't be read.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        Ok(self.file.data(self.info(name)?)?.into_owned())
    }

    /// Returns some rows of a tensor as numbers.
    ///
    /// # Errors
    /// If there is no such tensor, it has fewer rows, or its type can't be converted.
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
        let tensor = self.info(name)?;
        let row_len = tensor.shape()[0];
        let row_bytes = tensor.ty().row_bytes(row_len).context("rows are not whole blocks")?;
        let mut bytes = vec![0; rows.len() * row_bytes as usize];
        self.file
            .read_data(tensor, rows.start as u64 * row_bytes, &mut bytes)
            .with_context(|| format!("reading rows {rows:?} of {name}"))?;
        quant::decode(tensor.ty(), &bytes, rows.len() * row_len as usize)
            .with_context(|| format!("reading {name}"))
    }

    /// Returns a whole tensor as numbers.
    ///
    /// # Errors
    /// As [`Source::rows`].
    pub fn values(&self, name: &str) -> Result<Vec<f32>> {
        let rows = self.dims(name)?[1..].iter().product::<u64>() as usize;
        self.rows(name, 0..rows)
    }

    /// Returns the sizes of a dense `llama` model.
    ///
    /// # Errors
    /// If it isn't one.
    pub fn llama_shape(&self) -> Result<Shape> {
        let metadata = self.metadata();
        let path = self.path.display();
        let architecture = metadata.architecture().unwrap_or("unnamed");
        ensure!(architecture == "llama", "{path}: the architecture is {architecture}, not llama");
        let get = |key: &str| -> Result<usize> {
            let value = metadata.get_u32(&format!("llama.{key}"));
            Ok(value.with_context(|| format!("{path}: llama.{key} is missing"))? as usize)
        };
        ensure!(get("expert_count").unwrap_or(0) == 0, "{path}: has experts already");
        let (hidden, heads) = (get("embedding_length")?, get("attention.head_count")?);
        ensure!(heads > 0, "{path}: llama.attention.head_count is 0");
        Ok(Shape {
            hidden,
            heads,
            kv_heads: get("attention.head_count_kv").unwrap_or(heads),
            head_len: get("attention.key_length").unwrap_or(hidden / heads),
            feed_forward: get("feed_forward_length")?,
            layers: get("block_count")?,
            vocab: self.dims("token_embd.weight")?[1] as usize,
        })
    }

    /// Returns the epsilon of the norms.
    pub fn epsilon(&self) -> f32 {
        self.metadata().get_f32("llama.attention.layer_norm_rms_epsilon").unwrap_or(1e-5)
    }

    /// Returns the base of the rotary frequencies.
    pub fn rope_base(&self) -> f32 {
        self.metadata().get_f32("llama.rope.freq_base").unwrap_or(10_000.0)
    }

    fn info(&self, name: &str) -> Result<&smol_gguf::TensorInfo> {
        self.file
            .tensor(name)
            .with_context(|| format!("{}: there is no tensor {name}", self.path.display()))
    }
}

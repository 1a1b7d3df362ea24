//! Packed weights: which matrices of a model get which layout, and what became of each.

use std::fmt;
use std::path::PathBuf;

use serde::Deserialize;

/// `[layouts]`: how weights of 1 to 2.6 bits are packed at load.
///
/// Packed weights compute faster and take no more memory, but they are a copy in memory of their own: they cannot stay in
/// a mapped file.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// let mut layouts = llama_rs::LayoutOptions::default();
/// layouts.enabled = false;
/// let model = llama_rs::Model::builder("model.gguf").layouts(layouts).load()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct LayoutOptions {
    /// `enabled`: whether weights are packed at all. llama.cpp's own packing is switched by
    /// [`ModelBuilder::repack`](crate::ModelBuilder::repack).
    pub enabled: bool,
    /// `prefer`: layouts to use for their type instead of the default one; those that lose accuracy, or trade memory for
    /// speed, are used only when they are named here. `smol kernels` lists the names.
    pub prefer: Vec<String>,
    /// `avoid`: layouts not to use.
    pub avoid: Vec<String>,
    /// `measured`: a file that keeps how fast this CPU is with each layout; it is written when it lacks one that a model
    /// needs, which takes some milliseconds a layout. Layouts that are slower than llama.cpp's own code are then not
    /// used. Without a file nothing is measured.
    pub measured: Option<PathBuf>,
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self { enabled: true, prefer: Vec::new(), avoid: Vec::new(), measured: None }
    }
}

/// How a model uses a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightUse {
    /// Products with the whole matrix.
    Matrix,
    /// Products with the experts that the router selects.
    Experts,
    /// Single rows, as embeddings.
    Rows,
}

/// What computes with a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightKernel {
    /// A packed layout of this library.
    Packed {
        /// Its name.
        layout: String,
    },
    /// A packed layout of llama.cpp.
    Repacked,
    /// The kernel for the type as it is in the file.
    Plain {
        /// Why there is no packed layout.
        reason: String,
    },
}

/// What became of one matrix of a model, for one way in which the model uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightLayout {
    /// The tensor's name.
    pub name: String,
    /// The type in the file, such as `q2_K`.
    pub ty: String,
    /// What the model does with it.
    pub used_as: WeightUse,
    /// Elements of a row, rows, matrices, 1.
    pub shape: [i64; 4],
    /// Size in the file.
    pub bytes: u64,
    /// What computes with it.
    pub kernel: WeightKernel,
}

impl WeightLayout {
    /// Tells whether this is a quantized matrix for products that has no packed layout.
    ///
    /// Matrices of floats do not count: they are small, as a router's, or the model is not quantized. Neither do
    /// embeddings, of which one row is read for a token.
    pub fn is_slow(&self) -> bool {
        let floats = matches!(self.ty.as_str(), "f32" | "f16" | "bf16" | "f64");
        self.used_as != WeightUse::Rows
            && !floats
            && matches!(self.kernel, WeightKernel::Plain { .. })
    }
}

/// The sum over a model's matrices: tensors and bytes per layout.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayoutSummary {
    /// A layout's name, `repack` for llama.cpp's, or a type's name for plain ones; tensors; bytes. Largest first.
    pub layouts: Vec<(String, usize, u64)>,
    /// Bytes of quantized matrices without a packed layout.
    pub slow_bytes: u64,
}

impl LayoutSummary {
    pub(crate) fn new(weights: &[WeightLayout]) -> Self {
        let mut layouts: Vec<(String, usize, u64)> = Vec::new();
        for weight in weights {
            // A tied head is in memory once, and counted as what it is as a matrix.
            let twice = |other: &&WeightLayout| {
                other.name == weight.name && other.used_as != WeightUse::Rows
            };
            if weight.used_as == WeightUse::Rows && weights.iter().any(|other| twice(&other)) {
                continue;
            }
            let name = match &weight.kernel {
                WeightKernel::Packed { layout } => layout.clone(),
                WeightKernel::Repacked => "repack".to_owned(),
                WeightKernel::Plain { .. } => weight.ty.clone(),
            };
            match layouts.iter_mut().find(|(other, ..)| *other == name) {
                Some((_, tensors, bytes)) => {
                    *tensors += 1;
                    *bytes += weight.bytes;
                }
                None => layouts.push((name, 1, weight.bytes)),
            }
        }
        layouts.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        let slow = weights.iter().filter(|weight| weight.is_slow());
        Self { layouts, slow_bytes: slow.map(|weight| weight.bytes).sum() }
    }
}

impl fmt::Display for LayoutSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        for (name, tensors, bytes) in &self.layouts {
            write!(f, "{name}: {tensors} matrices, {:.1} MiB; ", mib(*bytes))?;
        }
        write!(f, "{:.1} MiB off the fast path", mib(self.slow_bytes))
    }
}

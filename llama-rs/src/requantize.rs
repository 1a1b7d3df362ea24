//! Other types for single tensors, while a model file is rewritten.

use std::io::{self, Write};

use ggml_sys::quants::{dequantize, quantize_weighted};
use smol_engine::threads::at_once;
use smol_gguf::{Rewriter, Rows, TensorInfo, TensorType};

use crate::error::{Error, Result};

/// The metadata key of the version of quantized types, and the only one there is.
const VERSION_KEY: &str = "general.quantization_version";
const VERSION: u32 = 2;

/// Parts of names of matrices that llama.cpp keeps as they are, as they are small, aren't multiplied with, or have a
/// single type that its code can compute with.
const KEPT: &[&str] = &[
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "engram_gate.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "conv2d_spatial.weight",
    "conv_dw",
    "a.conv1d.",
    "a.gen.wav.quant.",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first",
    "time_mix_lerp",
    "time_mix_decay_w",
    "time_mix_w0",
    "time_mix_w1",
    "time_mix_w2",
    "time_mix_v0",
    "time_mix_v1",
    "time_mix_v2",
    "time_mix_a0",
    "time_mix_a1",
    "time_mix_a2",
    "time_mix_g1",
    "time_mix_g2",
    "attn_rel_b.weight",
    "position_embd",
    "token_types",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
];

/// The type that one tensor of a plan gets, in one pass with all other edits.
///
/// The bytes are those that [`Quantize`](crate::Quantize) writes for that type.
///
/// # Examples
/// ```no_run
/// use llama_rs::Requantize;
/// use smol_gguf::{Gguf, Rewriter, TensorType};
///
/// let source = Gguf::open("model-q8_0.gguf")?;
/// let mut plan = Rewriter::new(&source);
/// Requantize::new(TensorType::Q4_0).apply(&mut plan, "output.weight")?;
/// plan.write_file("model-q4_0-head.gguf")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing until it is applied"]
pub struct Requantize {
    ty: TensorType,
    importance: Option<Vec<f32>>,
    threads: usize,
}

impl Requantize {
    /// Makes a conversion to a type, with all cores.
    pub fn new(ty: TensorType) -> Self {
        let threads = smol_engine::machine::Cpu::probe().default_threads();
        Self { ty, importance: None, threads }
    }

    /// Sets how much each column matters, for each matrix of the tensor (experts) after the other: see
    /// [`ImportanceMatrix`](smol_gguf::ImportanceMatrix).
    pub fn importance(mut self, columns: Option<&[f32]>) -> Self {
        self.importance = columns.map(<[f32]>::to_vec);
        self
    }

    /// Sets the number of threads.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Reports whether llama.cpp quantizes such a tensor at all: matrices, but not routers, norms and other small ones.
    pub fn fits(tensor: &TensorInfo) -> bool {
        let name = tensor.name();
        !tensor.is_vector()
            && name.ends_with("weight")
            && !KEPT.iter().any(|part| name.contains(part))
    }

    /// Plans that the tensor's data is converted while it passes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when there is no such tensor, its rows aren't
    /// whole blocks of the type, one of the types can't be converted, or the importance is of another shape or missing
    /// for a type that needs it. Values that aren't finite show when the file is written.
    pub fn apply(&self, plan: &mut Rewriter<'_>, name: &str) -> Result<()> {
        let found = plan.tensors().find(|tensor| tensor.name() == name).cloned();
        let tensor = found.ok_or_else(|| Error::invalid(format!("there is no tensor `{name}`")))?;
        if tensor.ty() == self.ty {
            return Ok(());
        }
        self.check(&tensor)?;
        let conversion = Conversion {
            name: name.to_owned(),
            from: tensor.ty(),
            to: self.ty,
            columns: tensor.dims()[0] as usize,
            rows_per_matrix: tensor.dims()[1],
            importance: self.importance.clone(),
            threads: self.threads,
        };
        plan.convert(name, tensor.shape(), self.ty, move |rows, out| conversion.run(rows, out))
            .map_err(|error| Error::invalid(error.to_string()))?;
        if self.ty.is_quantized() {
            plan.set(VERSION_KEY, VERSION);
        }
        Ok(())
    }

    fn check(&self, tensor: &TensorInfo) -> Result<()> {
        let (name, from, to) = (tensor.name(), tensor.ty(), self.ty);
        let block = from.block_len() as usize;
        if dequantize(from.id() as i32, &vec![0; from.block_bytes() as usize], block).is_err() {
            return Err(Error::invalid(format!("tensor `{name}` is of type {from}, no weights")));
        }
        let [columns, _, matrices, more] = tensor.dims();
        if !columns.is_multiple_of(to.block_len()) {
            return Err(Error::invalid(format!(
                "tensor `{name}` has rows of {columns} elements, for {to} that must be a multiple of {}",
                to.block_len()
            )));
        }
        if let Some(importance) = &self.importance {
            let expected = columns.saturating_mul(matrices).saturating_mul(more);
            if importance.len() as u64 != expected {
                return Err(Error::invalid(format!(
                    "tensor `{name}` has {expected} columns, the importance matrix {}",
                    importance.len()
                )));
            }
        }
        let ones = vec![1.0; to.block_len() as usize];
        let importance = self.importance.is_some().then_some(&ones[..]);
        let zeros = vec![0.0; ones.len()];
        quantize_weighted(to.id() as i32, &zeros, zeros.len(), importance).map_err(|_| {
            let without = "nothing can be converted to it";
            let needed = "without an importance matrix that gives noise";
            let why = if self.importance.is_none() && NEED_IMPORTANCE.contains(&to) {
                needed
            } else {
                without
            };
            Error::invalid(format!("tensor `{name}` can't become {to}: {why}"))
        })?;
        Ok(())
    }
}

/// Types that can't be quantized to without knowing what matters.
const NEED_IMPORTANCE: [TensorType; 4] =
    [TensorType::IQ2_XXS, TensorType::IQ2_XS, TensorType::IQ1_S, TensorType::IQ1_M];

struct Conversion {
    name: String,
    from: TensorType,
    to: TensorType,
    columns: usize,
    rows_per_matrix: u64,
    importance: Option<Vec<f32>>,
    threads: usize,
}

/// So many values at least for a thread of their own.
const VALUES_PER_THREAD: usize = 32 << 10;

impl Conversion {
    fn run(&self, rows: Rows<'_>, out: &mut dyn Write) -> smol_gguf::Result<()> {
        let row_bytes = rows.bytes().len() / rows.len();
        let parts = (rows.len() * self.columns / VALUES_PER_THREAD).clamp(1, self.threads);
        let per_part = rows.len().div_ceil(parts);
        let parts = rows.bytes().chunks(per_part * row_bytes).enumerate();
        let convert = |(part, bytes): (usize, &[u8])| {
            self.convert(rows.first() + (part * per_part) as u64, bytes, row_bytes)
        };
        if rows.len() <= per_part {
            return Ok(out.write_all(&convert((0, rows.bytes()))?)?);
        }
        for part in at_once(parts, convert) {
            out.write_all(&part?)?;
        }
        Ok(())
    }

    /// Converts rows from number `first` on.
    fn convert(&self, first: u64, bytes: &[u8], row_bytes: usize) -> io::Result<Vec<u8>> {
        let mut converted = Vec::new();
        let (mut row, mut bytes) = (first, bytes);
        while !bytes.is_empty() {
            // The rest of the matrix that the row is in: all its rows have the same importance.
            let left = (self.rows_per_matrix - row % self.rows_per_matrix) as usize;
            let (now, later) = bytes.split_at((left.saturating_mul(row_bytes)).min(bytes.len()));
            let matrix = (row / self.rows_per_matrix) as usize;
            let values =
                dequantize(self.from.id() as i32, now, now.len() / row_bytes * self.columns)
                    .map_err(|error| self.failed(&error.to_string()))?;
            self.check_finite(row, &values)?;
            let importance =
                self.importance.as_ref().map(|all| &all[matrix * self.columns..][..self.columns]);
            let new = quantize_weighted(self.to.id() as i32, &values, self.columns, importance)
                .map_err(|error| self.failed(&error.to_string()))?;
            let back = dequantize(self.to.id() as i32, &new, values.len())
                .map_err(|error| self.failed(&error.to_string()))?;
            self.check_finite(row, &back)?;
            converted.extend(new);
            row += (now.len() / row_bytes) as u64;
            bytes = later;
        }
        Ok(converted)
    }

    /// Refuses weights that would make the model compute nonsense, be it before or after the conversion.
    fn check_finite(&self, first: u64, values: &[f32]) -> io::Result<()> {
        let Some(bad) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
        let row = first + (bad / self.columns) as u64;
        let (value, to) = (values[bad], self.to);
        Err(self.failed(&format!("row {row} has the value {value} as {to}")))
    }

    fn failed(&self, what: &str) -> io::Error {
        io::Error::other(format!("tensor `{}`: {what}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol_gguf::{Gguf, Writer};

    fn model(values: &[f32], shape: &[u64]) -> Gguf {
        let mut writer = Writer::new();
        writer.tensor("a.weight", shape, TensorType::F32).unwrap();
        let mut data = writer.start(Vec::new()).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        data.write_tensor("a.weight", &bytes).unwrap();
        Gguf::from_bytes(data.finish().unwrap()).unwrap()
    }

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i as f32) * 0.37).sin()).collect()
    }

    #[test]
    fn each_matrix_has_its_own_importance() {
        let values = values(32 * 6);
        let source = model(&values, &[32, 2, 3]);
        let importance: Vec<f32> =
            (0..96).map(|i| if i / 32 == 1 { 1.0 } else { (i % 7) as f32 }).collect();
        for threads in [1, 2] {
            let mut plan = Rewriter::new(&source);
            let convert = Requantize::new(TensorType::Q4_0).importance(Some(&importance));
            convert.threads(threads).apply(&mut plan, "a.weight").unwrap();
            let new = Gguf::from_bytes(plan.write(Vec::new()).unwrap()).unwrap();
            let expected: Vec<u8> = (0..3)
                .flat_map(|matrix| {
                    let rows = &values[matrix * 64..][..64];
                    let weights = &importance[matrix * 32..][..32];
                    let id = TensorType::Q4_0.id() as i32;
                    quantize_weighted(id, rows, 32, Some(weights)).unwrap()
                })
                .collect();
            assert!(*new.data(&new.tensors()[0]).unwrap() == expected);
            assert_eq!(new.get_u32(VERSION_KEY), Some(2));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_name() {
        let apply = |source: &Gguf, convert: &Requantize, name| {
            convert.apply(&mut Rewriter::new(source), name).unwrap_err().to_string()
        };
        let source = model(&values(64), &[32, 2]);
        let short = Requantize::new(TensorType::Q4_0).importance(Some(&[1.0; 31]));
        for (convert, name, words) in [
            (Requantize::new(TensorType::Q4_K), "a.weight", "must be a multiple of 256"),
            (Requantize::new(TensorType::Q4_0), "b.weight", "there is no tensor `b.weight`"),
            (Requantize::new(TensorType::I32), "a.weight", "can't become i32"),
            (short, "a.weight", "has 32 columns, the importance matrix 31"),
        ] {
            let error = apply(&source, &convert, name);
            assert!(error.contains(words), "{error}");
        }
        let long = model(&values(512), &[256, 2]);
        let error = apply(&long, &Requantize::new(TensorType::IQ2_XXS), "a.weight");
        assert!(error.contains("without an importance matrix"), "{error}");
        assert!(apply(&source, &Requantize::new(TensorType::Q8_1), "a.weight").contains("q8_1"));
    }

    #[test]
    fn values_that_are_not_finite_stop_it() {
        for bad in [f32::NAN, f32::INFINITY, 1e30] {
            let mut values = values(64);
            values[40] = bad;
            let source = model(&values, &[32, 2]);
            let mut plan = Rewriter::new(&source);
            Requantize::new(TensorType::F16).apply(&mut plan, "a.weight").unwrap();
            let error = plan.write(Vec::new()).unwrap_err().to_string();
            assert!(error.contains("tensor `a.weight`: row 1 has the value"), "{error}");
        }
    }

    #[test]
    fn only_large_matrices_are_meant() {
        let fits = |name: &str, shape: &[u64]| {
            Requantize::fits(&TensorInfo::new(name, shape, TensorType::F32, 0).unwrap())
        };
        assert!(fits("blk.0.ffn_up.weight", &[32, 32]));
        assert!(fits("blk.0.time_mix_key.weight", &[32, 32]));
        assert!(fits("blk.0.ffn_up_exps.weight", &[32, 32, 4]));
        for name in ["blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight", "blk.0.x.bias"] {
            assert!(!fits(name, &[32, 32]), "{name}");
        }
        assert!(!fits("output_norm.weight", &[32]));
    }
}

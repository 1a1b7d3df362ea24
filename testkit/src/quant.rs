//! Which tensor gets which type, and the conversion of rows.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use smol_gguf::TensorType;

use crate::draft::Draft;
use crate::source::Source;

/// A choice of tensor types for a whole model.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// The type of every matrix that has no rule of its own.
    pub base: TensorType,
    /// The type of the token embedding and the output matrix; `None` picks one by the rules of
    /// [`Mix::tensor_type`].
    pub embedding: Option<TensorType>,
    /// Whether the file has no output matrix, so that the token embedding serves as one.
    pub tied: bool,
}

impl Mix {
    /// Chooses one type for all matrices, embeddings included.
    pub fn pure(base: TensorType) -> Self {
        Self { base, embedding: Some(base), tied: true }
    }

    /// Returns the type of a tensor by its name and dimensions (row length first).
    ///
    /// Vectors, norms, routers and convolution kernels are `F32`. The matrix that makes the logits
    /// gets more bits than the rest, and so does a separate embedding beside matrices of two bits
    /// or less. A row length that isn't a multiple of the block falls back to a type with smaller
    /// blocks, and in the end to `F16`.
    pub fn tensor_type(&self, name: &str, dims: &[u64]) -> TensorType {
        use TensorType::*;
        if !is_matrix(name, dims) {
            return F32;
        }
        let fits = |ty: TensorType| ty.row_bytes(dims[0]).is_some();
        let is_embedding = name == "token_embd.weight";
        let is_output = name == "output.weight" || (is_embedding && self.tied);
        let wanted = match (self.base, self.embedding) {
            (base, _) if !base.is_quantized() => base,
            (_, Some(explicit)) if is_embedding || is_output => explicit,
            (base, _) if is_output && (base == Q8_0 || !fits(base)) => Q8_0,
            (IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS, _) if is_output => Q5_K,
            (_, _) if is_output => Q6_K,
            (IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS, _) if is_embedding => Q2_K,
            (IQ2_S | IQ3_XXS, _) if is_embedding => IQ3_S,
            (TQ1_0 | TQ2_0 | Q2_0, _) if is_embedding => Q4_K,
            (base, _) => base,
        };
        if fits(wanted) {
            return wanted;
        }
        let smaller = match wanted {
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
            Q1_0 | Q2_0 | Q2_K | Q3_K | TQ1_0 | TQ2_0 => Q4_0,
            Q4_K => Q5_0,
            Q5_K => Q5_1,
            Q6_K => Q8_0,
            other => other,
        };
        if fits(smaller) { smaller } else { F16 }
    }

    /// Returns the `general.file_type` that llama.cpp uses for this mix.
    pub fn file_type(&self) -> u32 {
        use TensorType::*;
        match self.base {
            F32 => 0,
            F16 => 1,
            Q4_0 => 2,
            Q4_1 => 3,
            Q8_0 => 7,
            Q5_0 => 8,
            Q5_1 => 9,
            Q2_K => 10,
            Q3_K => 11,
            Q4_K => 14,
            Q5_K => 16,
            Q6_K => 18,
            IQ2_XXS => 19,
            IQ2_XS => 20,
            IQ3_XXS => 23,
            IQ1_S => 24,
            IQ4_NL => 25,
            IQ3_S => 26,
            IQ2_S => 28,
            IQ4_XS => 30,
            IQ1_M => 31,
            BF16 => 32,
            TQ1_0 => 36,
            TQ2_0 => 37,
            Q1_0 => 40,
            Q2_0 => 41,
            // "Guessed": the loader then names the file by its most frequent type.
            _ => 1024,
        }
    }
}

/// Reports whether a tensor is a matrix that may be stored in a smaller type than `F32`.
fn is_matrix(name: &str, dims: &[u64]) -> bool {
    const KEPT: [&str; 4] = ["_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv"];
    dims.len() > 1 && name.ends_with("weight") && !KEPT.iter().any(|part| name.contains(part))
}

/// Returns the tensor type with this name, if it can be made here.
///
/// # Errors
/// If there is no such type, or it can't be made without an importance matrix.
pub fn parse_type(name: &str) -> Result<TensorType> {
    use TensorType::*;
    let ty = TensorType::from_name(name).with_context(|| {
        let names: Vec<&str> = TensorType::ALL.iter().map(|ty| ty.name()).collect();
        format!("no tensor type is named {name}; there are {}", names.join(", "))
    })?;
    match ty {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS => {
            bail!("{ty} can only be made with an importance matrix")
        }
        I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K => bail!("{ty} is not a type of weights"),
        _ => Ok(ty),
    }
}

/// Converts rows of `row_len` elements each to the bytes of a type.
///
/// # Errors
/// If the values aren't whole rows or a row isn't whole blocks.
pub fn encode(ty: TensorType, values: &[f32], row_len: usize) -> Result<Vec<u8>> {
    ensure!(
        row_len > 0 && values.len().is_multiple_of(row_len),
        "{} values are not rows of {row_len}",
        values.len()
    );
    ensure!(
        ty.row_bytes(row_len as u64).is_some(),
        "a row of {row_len} is not a multiple of {} as {ty} needs",
        ty.block_len()
    );
    Ok(match ty {
        TensorType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        TensorType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        TensorType::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        _ => ggml_sys::quants::quantize(ty.id() as i32, values, row_len)?,
    })
}

/// Converts the bytes of `len` elements to numbers.
///
/// # Errors
/// If the bytes aren't those of `len` elements.
pub fn decode(ty: TensorType, bytes: &[u8], len: usize) -> Result<Vec<f32>> {
    ensure!(
        ty.row_bytes(len as u64) == Some(bytes.len() as u64),
        "{} bytes are not {len} elements of {ty}",
        bytes.len()
    );
    Ok(match ty {
        TensorType::F32 => {
            bytes.as_chunks().0.iter().map(|b: &[u8; 4]| f32::from_le_bytes(*b)).collect()
        }
        TensorType::F16 => {
            bytes.as_chunks().0.iter().map(|b: &[u8; 2]| f16::from_le_bytes(*b).to_f32()).collect()
        }
        TensorType::BF16 => {
            bytes.as_chunks().0.iter().map(|b: &[u8; 2]| bf16::from_le_bytes(*b).to_f32()).collect()
        }
        _ => ggml_sys::quants::dequantize(ty.id() as i32, bytes, len)?,
    })
}

/// Writes a copy of `input` whose matrices have the types of a mix.
///
/// `mix.tied` is taken from the file. Vectors and the like are copied as they are. Rows are
/// converted in pieces, so memory stays small.
///
/// # Errors
/// If a file can't be read or written, or a tensor can't be converted.
pub fn quantize(input: &Path, output: &Path, mix: Mix) -> Result<()> {
    let source = Source::open(input)?;
    let mix = Mix { tied: !source.has("output.weight"), ..mix };
    let mut draft = Draft::new(source.metadata().clone());
    draft.metadata.set("general.file_type", mix.file_type());
    draft.metadata.set("general.quantization_version", 2u32);
    for name in source.names() {
        let dims = source.dims(name)?;
        let source = &source;
        if !is_matrix(name, &dims) {
            draft.pieces(name, &dims, source.ty(name)?, 1, move |_| source.bytes(name));
            continue;
        }
        let ty = mix.tensor_type(name, &dims);
        draft.rows(name, &dims, ty, move |rows| source.rows(name, rows));
    }
    draft.write(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(base: TensorType, tied: bool) -> Mix {
        Mix { base, embedding: None, tied }
    }

    #[test]
    fn vectors_norms_routers_and_convolutions_stay_f32() {
        let mix = mix(TensorType::Q4_0, true);
        for (name, dims) in [
            ("output_norm.weight", &[256][..]),
            ("blk.0.ssm_norm.weight", &[512, 1]),
            ("blk.0.ffn_gate_inp.weight", &[256, 8]),
            ("blk.0.ssm_conv1d_q.weight", &[4, 1, 256]),
            ("blk.0.ssm_a", &[1, 4]),
            ("blk.0.shortconv.conv.weight", &[3, 256]),
        ] {
            assert_eq!(mix.tensor_type(name, dims), TensorType::F32, "{name}");
        }
        assert_eq!(mix.tensor_type("blk.0.attn_q.weight", &[256, 256]), TensorType::Q4_0);
    }

    #[test]
    fn the_matrix_of_the_logits_gets_more_bits() {
        use TensorType::*;
        for base in [Q4_0, Q4_K, Q2_K, TQ2_0, Q1_0] {
            assert_eq!(mix(base, true).tensor_type("token_embd.weight", &[256, 99]), Q6_K);
            assert_eq!(mix(base, false).tensor_type("output.weight", &[256, 99]), Q6_K);
        }
        assert_eq!(mix(Q8_0, true).tensor_type("token_embd.weight", &[256, 99]), Q8_0);
        assert_eq!(mix(Q4_K, true).tensor_type("token_embd.weight", &[576, 99]), Q8_0);
        assert_eq!(mix(TQ2_0, false).tensor_type("token_embd.weight", &[256, 99]), Q4_K);
        assert_eq!(mix(F16, true).tensor_type("token_embd.weight", &[256, 99]), F16);
        assert_eq!(Mix::pure(Q1_0).tensor_type("token_embd.weight", &[256, 99]), Q1_0);
    }

    #[test]
    fn rows_that_are_not_whole_blocks_fall_back() {
        use TensorType::*;
        let cases = [(Q4_K, 576, Q5_0), (Q6_K, 576, Q8_0), (Q2_K, 64, Q4_0), (Q1_0, 64, Q4_0)];
        for (base, columns, expected) in
            cases.into_iter().chain([(IQ4_XS, 64, IQ4_NL), (Q4_0, 40, F16)])
        {
            assert_eq!(mix(base, true).tensor_type("blk.1.ffn_up.weight", &[columns, 8]), expected);
        }
    }

    #[test]
    fn types_that_cannot_be_made_are_refused() {
        assert_eq!(parse_type("q4_k").unwrap(), TensorType::Q4_K);
        assert!(parse_type("q9").unwrap_err().to_string().contains("q9"));
        assert!(parse_type("iq2_xs").is_err());
        assert!(parse_type("i32").is_err());
    }

    #[test]
    fn every_type_round_trips_near_the_original() {
        let mut rng = crate::rng::Rng::new(5);
        let mut values = vec![0.0; 4 * 512];
        rng.fill(&mut values, 0.0, 1.0);
        for (ty, bound) in [
            (TensorType::F32, 0.0),
            (TensorType::F16, 1e-3),
            (TensorType::BF16, 1e-2),
            (TensorType::Q8_0, 0.01),
            (TensorType::Q6_K, 0.03),
            (TensorType::Q4_K, 0.1),
            (TensorType::Q2_K, 0.4),
            (TensorType::Q1_0, 0.7),
            (TensorType::TQ1_0, 1.5),
        ] {
            let bytes = encode(ty, &values, 512).unwrap();
            assert_eq!(bytes.len() as u64, 4 * ty.row_bytes(512).unwrap());
            let back = decode(ty, &bytes, values.len()).unwrap();
            let error = values.iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
            let error = (error / values.len() as f32).sqrt();
            assert!(error <= bound, "{ty}: {error}");
        }
        assert!(encode(TensorType::Q4_K, &values, 64).is_err());
        assert!(decode(TensorType::Q4_K, &[0; 3], 256).is_err());
    }
}

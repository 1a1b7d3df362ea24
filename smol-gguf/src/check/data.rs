//! The numbers in tensors.

use crate::error::ErrorKind;
use crate::{Gguf, Result, TensorInfo, TensorType};

use super::{Depth, Model, Report};

/// Vectors up to this size in bytes are read at any depth.
const MAX_VECTOR_BYTES: u64 = 64 << 20;
/// How much is read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// Types that llama.cpp aborts or crashes on where it needs to compute with them.
pub(super) fn check_uses(model: &Model<'_>, report: &mut Report) {
    for file in &model.files {
        for tensor in file.tensors() {
            let name = tensor.name();
            let is_bias_or_norm = name.ends_with("norm.weight") || name.ends_with(".bias");
            let allowed = if tensor.is_vector() && is_bias_or_norm && tensor.ty() != TensorType::F32
            {
                "f32"
            } else if is_matrix(name)
                && matches!(tensor.ty(), TensorType::Q8_1 | TensorType::Q8_K | TensorType::F64)
            {
                "a type of weights"
            } else {
                continue;
            };
            report.error(
                file,
                ErrorKind::TensorUse { tensor: name.to_owned(), found: tensor.ty(), allowed },
            );
        }
    }
}

fn is_matrix(name: &str) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(_, n)| n);
    let in_layer = layer.is_some_and(|n| n.starts_with("attn_") || n.starts_with("ffn_"));
    name.ends_with(".weight") && (in_layer || matches!(name, "token_embd.weight" | "output.weight"))
}

pub(super) fn check(model: &Model<'_>, depth: Depth, report: &mut Report) {
    let mut buf = Vec::new();
    for file in &model.files {
        for tensor in file.tensors() {
            let small = tensor.is_vector() && tensor.n_bytes() <= MAX_VECTOR_BYTES;
            // Missing data is reported with the layout.
            if !(small || depth == Depth::Full) || file.file_offset(tensor).is_err() {
                continue;
            }
            match find_bad_number(file, tensor, &mut buf) {
                Ok(None) => {}
                Ok(Some(kind)) => report.error(file, kind),
                Err(error) if matches!(error.kind(), ErrorKind::HeaderOnly { .. }) => {
                    report.add(super::Severity::Warning, error);
                    return;
                }
                Err(error) => report.add(super::Severity::Error, error),
            }
        }
    }
}

fn find_bad_number(
    file: &Gguf,
    tensor: &TensorInfo,
    buf: &mut Vec<u8>,
) -> Result<Option<ErrorKind>> {
    let Some(find) = finder(tensor) else { return Ok(None) };
    let block = tensor.ty().block_bytes();
    let chunk = CHUNK_BYTES / block * block;
    let mut from = 0;
    while from < tensor.n_bytes() {
        let len = chunk.min(tensor.n_bytes() - from);
        buf.resize(len as usize, 0);
        file.read_data(tensor, from, buf)?;
        if let Some((index, found)) = find(buf) {
            let index = from / block + index as u64;
            let tensor_name = tensor.name().to_owned();
            return Ok(Some(if tensor.ty().is_quantized() {
                ErrorKind::ScaleNotFinite { tensor: tensor_name, found, block: index }
            } else {
                ErrorKind::NotFinite { tensor: tensor_name, found, index }
            }));
        }
        from += len;
    }
    Ok(None)
}

/// Finds the first bad number in whole blocks: its block or element, and its value.
type Find = Box<dyn Fn(&[u8]) -> Option<(usize, f64)>>;

fn finder(tensor: &TensorInfo) -> Option<Find> {
    use TensorType as T;
    // Infinity switches off a sink, or the rotation of a dimension.
    let infinity = ["sink", "rope_"].iter().any(|part| tensor.name().contains(part));
    let bad = move |v: f64| v.is_nan() || (v.is_infinite() && !infinity);
    Some(match tensor.ty() {
        T::F32 => values::<4>(move |b| f32::from_le_bytes(b).into(), bad),
        T::F64 => values::<8>(f64::from_le_bytes, bad),
        T::F16 => values::<2>(|b| half_to_f64(u16::from_le_bytes(b)), bad),
        T::BF16 => values::<2>(|b| bf16_to_f64(u16::from_le_bytes(b)), bad),
        T::F8_E4M3 => values::<1>(|[b]| if b & 0x7f == 0x7f { f64::NAN } else { 0.0 }, bad),
        T::Q8_K => values::<292>(
            |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into(),
            |v| !v.is_finite(),
        ),
        T::MXFP4 => values::<17>(|b| if b[0] == 0xff { f64::NAN } else { 0.0 }, f64::is_nan),
        T::IQ1_M => values::<56>(iq1_m_scale, |v| !v.is_finite()),
        ty => {
            let offsets = half_scales(ty);
            if offsets.is_empty() {
                return None;
            }
            let block = ty.block_bytes() as usize;
            Box::new(move |data| {
                data.chunks_exact(block).enumerate().find_map(|(i, block)| {
                    offsets.iter().find_map(|&at| {
                        let v = half_to_f64(u16::from_le_bytes([block[at], block[at + 1]]));
                        (!v.is_finite()).then_some((i, v))
                    })
                })
            })
        }
    })
}

fn values<const N: usize>(
    decode: impl Fn([u8; N]) -> f64 + 'static,
    bad: impl Fn(f64) -> bool + 'static,
) -> Find {
    Box::new(move |data| {
        data.as_chunks::<N>().0.iter().enumerate().find_map(|(i, &bytes)| {
            let v = decode(bytes);
            bad(v).then_some((i, v))
        })
    })
}

/// Where the half-precision scales (and minimums) of a block are, in bytes from its start.
fn half_scales(ty: TensorType) -> &'static [usize] {
    use TensorType as T;
    match ty {
        T::Q1_0 | T::Q2_0 | T::Q4_0 | T::Q5_0 | T::Q8_0 => &[0],
        T::Q4_1 | T::Q5_1 | T::Q8_1 | T::Q4_K | T::Q5_K => &[0, 2],
        T::Q2_K => &[80, 82],
        T::Q3_K => &[108],
        T::Q6_K => &[208],
        T::IQ1_S | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S => &[0],
        T::IQ3_XXS | T::IQ3_S | T::IQ4_NL | T::IQ4_XS => &[0],
        T::TQ1_0 => &[52],
        T::TQ2_0 => &[64],
        // Integers, and scales that have no encoding for infinity.
        _ => &[],
    }
}

/// The scale is in the top four bits of the block's last four words.
fn iq1_m_scale(block: [u8; 56]) -> f64 {
    let word = |i: usize| u16::from_le_bytes([block[48 + 2 * i], block[49 + 2 * i]]);
    let bits = (word(0) >> 12)
        | ((word(1) >> 8) & 0x00f0)
        | ((word(2) >> 4) & 0x0f00)
        | (word(3) & 0xf000);
    half_to_f64(bits)
}

/// Exact for infinity and NaN, and finite for the rest, which is all that matters here.
fn half_to_f64(bits: u16) -> f64 {
    non_finite(bits, 0x7c00)
}

fn bf16_to_f64(bits: u16) -> f64 {
    non_finite(bits, 0x7f80)
}

fn non_finite(bits: u16, exponent: u16) -> f64 {
    let magnitude = bits & 0x7fff;
    if magnitude & exponent != exponent {
        0.0
    } else if magnitude > exponent {
        f64::NAN
    } else if bits & 0x8000 != 0 {
        f64::NEG_INFINITY
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_within_their_block_and_known_for_all_types_that_have_them() {
        for &ty in TensorType::ALL {
            for &at in half_scales(ty) {
                assert!(at as u64 + 2 <= ty.block_bytes(), "{ty}");
            }
            let tensor = TensorInfo::new("w", &[ty.block_len()], ty, 0).unwrap();
            let without = matches!(
                ty,
                TensorType::I8
                    | TensorType::I16
                    | TensorType::I32
                    | TensorType::I64
                    | TensorType::NVFP4
            );
            assert_eq!(finder(&tensor).is_none(), without, "{ty}");
            if let Some(find) = finder(&tensor) {
                // All bits set is NaN in every scale; no bits set is fine.
                let size = ty.block_bytes() as usize;
                assert_eq!(find(&vec![0; size]), None, "{ty}");
                let (index, v) = find(&[vec![0; size], vec![0xff; size]].concat()).unwrap();
                assert_eq!((index, v.is_nan()), (1, true), "{ty}");
            }
        }
    }

    #[test]
    fn infinity_is_found_by_sign() {
        assert_eq!(half_to_f64(0x7c00), f64::INFINITY);
        assert_eq!(half_to_f64(0xfc00), f64::NEG_INFINITY);
        assert!(half_to_f64(0x7bff).is_finite());
        assert_eq!(bf16_to_f64(0xff80), f64::NEG_INFINITY);
        assert!(bf16_to_f64(0x7fc0).is_nan());
    }
}

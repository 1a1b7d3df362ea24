//! Safe conversion of rows between `f32` and the tensor types of ggml, by ggml's own reference code.

use crate::*;
use std::ffi::CStr;
use std::fmt;

/// Why rows could not be converted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuantError {
    /// No such tensor type in the pinned ggml.
    UnknownType(i32),
    /// ggml has no conversion in this direction for the type (or needs an importance matrix for it).
    Unsupported(&'static str),
    /// The number of values or bytes does not make whole rows of whole blocks.
    Length {
        /// What was given.
        given: usize,
        /// What it has to be a multiple of.
        multiple_of: usize,
    },
    /// ggml reported something else.
    Failed(String),
}

impl fmt::Display for QuantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuantError::UnknownType(id) => write!(f, "tensor type {id} does not exist"),
            QuantError::Unsupported(name) => {
                write!(f, "ggml cannot convert {name} in this direction")
            }
            QuantError::Length { given, multiple_of } => {
                write!(f, "{given} is no multiple of {multiple_of}")
            }
            QuantError::Failed(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for QuantError {}

/// Facts about a tensor type.
struct Layout {
    ty: ggml_type,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
}

fn layout(ty: i32) -> Result<Layout, QuantError> {
    let known = u32::try_from(ty)
        .ok()
        .filter(|ty| *ty < GGML_TYPE_COUNT)
        .ok_or(QuantError::UnknownType(ty))?;
    // SAFETY: the id is below GGML_TYPE_COUNT, the length of the table that is read (ggml.c:1439, ggml_blck_size).
    let block_len = unsafe { ggml_blck_size(known) } as usize;
    // SAFETY: as above (ggml_type_size).
    let block_bytes = unsafe { ggml_type_size(known) };
    // SAFETY: as above (ggml_type_name); the result is NULL or a string literal.
    let name = unsafe { ggml_type_name(known) };
    // Removed types keep their ids with an empty block.
    if block_len == 0 || block_bytes == 0 || name.is_null() {
        return Err(QuantError::UnknownType(ty));
    }
    // SAFETY: not NULL, and a literal of the type table lives for ever.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?");
    Ok(Layout { ty: known, name, block_len, block_bytes })
}

/// Converts rows of `n_per_row` values to the tensor type `ty` (an id of `enum ggml_type`).
///
/// # Errors
///
/// Unknown types, types that ggml cannot quantize to (or only with an importance matrix), lengths that are not whole
/// rows of whole blocks.
pub fn quantize(ty: i32, src: &[f32], n_per_row: usize) -> Result<Vec<u8>, QuantError> {
    quantize_weighted(ty, src, n_per_row, None)
}

/// Converts as [`quantize`] does, by the importance of each column of the rows, `n_per_row` numbers: the types that
/// need it too.
///
/// # Errors
///
/// As [`quantize`], and an importance of another length or with numbers that are negative or not finite.
pub fn quantize_weighted(
    ty: i32,
    src: &[f32],
    n_per_row: usize,
    importance: Option<&[f32]>,
) -> Result<Vec<u8>, QuantError> {
    let layout = layout(ty)?;
    // The list of ggml_quantize_chunk (ggml.c:8186), which asserts on any other type.
    const SUPPORTED: &[ggml_type] = &[
        GGML_TYPE_F32,
        GGML_TYPE_F16,
        GGML_TYPE_BF16,
        GGML_TYPE_Q1_0,
        GGML_TYPE_Q2_0,
        GGML_TYPE_Q4_0,
        GGML_TYPE_Q4_1,
        GGML_TYPE_Q5_0,
        GGML_TYPE_Q5_1,
        GGML_TYPE_Q8_0,
        GGML_TYPE_MXFP4,
        GGML_TYPE_NVFP4,
        GGML_TYPE_F8_E4M3,
        GGML_TYPE_Q2_K,
        GGML_TYPE_Q3_K,
        GGML_TYPE_Q4_K,
        GGML_TYPE_Q5_K,
        GGML_TYPE_Q6_K,
        GGML_TYPE_TQ1_0,
        GGML_TYPE_TQ2_0,
        GGML_TYPE_IQ3_XXS,
        GGML_TYPE_IQ3_S,
        GGML_TYPE_IQ2_S,
        GGML_TYPE_IQ4_NL,
        GGML_TYPE_IQ4_XS,
    ];
    // Without an importance their quantizers assert, or give noise.
    const WITH_IMPORTANCE: &[ggml_type] =
        &[GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ1_S, GGML_TYPE_IQ1_M];
    let weighted = importance.is_some() && WITH_IMPORTANCE.contains(&layout.ty);
    if !weighted && !SUPPORTED.contains(&layout.ty) {
        return Err(QuantError::Unsupported(layout.name));
    }
    if let Some(importance) = importance {
        if importance.len() != n_per_row {
            return Err(QuantError::Length { given: importance.len(), multiple_of: n_per_row });
        }
        if let Some(bad) = importance.iter().find(|value| !value.is_finite() || **value < 0.0) {
            return Err(QuantError::Failed(format!("an importance of {bad}")));
        }
    }
    if n_per_row == 0 || !n_per_row.is_multiple_of(layout.block_len) {
        return Err(QuantError::Length { given: n_per_row, multiple_of: layout.block_len });
    }
    if !src.len().is_multiple_of(n_per_row) {
        return Err(QuantError::Length { given: src.len(), multiple_of: n_per_row });
    }
    let n_rows = src.len() / n_per_row;
    let mut dst = vec![0_u8; src.len() / layout.block_len * layout.block_bytes];
    let mut written = 0;
    let importance = importance.map_or(std::ptr::null(), <[f32]>::as_ptr);
    // SAFETY: `src` has n_rows * n_per_row values; `dst` has room for the same number of blocks, which is what
    // ggml_quantize_chunk writes (ggml.c:8162); the type is one of its list, so that it does not assert; the importance
    // is NULL, for types that can do without, or of a row.
    let status = unsafe {
        smol_quantize(
            layout.ty,
            src.as_ptr(),
            dst.as_mut_ptr().cast(),
            n_rows as i64,
            n_per_row as i64,
            importance,
            &mut written,
        )
    };
    if status != SMOL_OK {
        return Err(QuantError::Failed(last_error()));
    }
    debug_assert_eq!(written, dst.len());
    Ok(dst)
}

/// Converts `n` values of the tensor type `ty` (an id of `enum ggml_type`) to `f32`.
///
/// # Errors
///
/// Unknown types, types without a conversion, `n` that is not whole blocks, `src` of another size than `n` values take.
pub fn dequantize(ty: i32, src: &[u8], n: usize) -> Result<Vec<f32>, QuantError> {
    let layout = layout(ty)?;
    if !n.is_multiple_of(layout.block_len) {
        return Err(QuantError::Length { given: n, multiple_of: layout.block_len });
    }
    let bytes = n / layout.block_len * layout.block_bytes;
    if src.len() != bytes {
        return Err(QuantError::Length { given: src.len(), multiple_of: bytes });
    }
    // ggml reads blocks as structs: give them an aligned copy.
    let mut aligned = vec![0_u64; bytes.div_ceil(8)];
    for (to, from) in aligned.iter_mut().zip(src.chunks(8)) {
        let mut word = [0_u8; 8];
        word[..from.len()].copy_from_slice(from);
        *to = u64::from_ne_bytes(word);
    }
    let mut dst = vec![0_f32; n];
    let mut supported = false;
    // SAFETY: `aligned` holds n / block_len whole blocks, `dst` has room for n floats, which is what to_float reads and
    // writes (ggml.h, ggml_to_float_t); the type is known.
    let status = unsafe {
        smol_dequantize(
            layout.ty,
            aligned.as_ptr().cast(),
            dst.as_mut_ptr(),
            n as i64,
            &mut supported,
        )
    };
    if status != SMOL_OK {
        return Err(QuantError::Failed(last_error()));
    }
    if supported { Ok(dst) } else { Err(QuantError::Unsupported(layout.name)) }
}

fn last_error() -> String {
    // SAFETY: takes nothing and has no requirements (smol.h, smol_last_error).
    let text = unsafe { smol_last_error() };
    // SAFETY: never NULL, and the buffer is this thread's own and NUL-terminated (guard.cpp, smol_set_error).
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i as f32) * 0.7).sin()).collect()
    }

    #[test]
    fn every_supported_type_comes_back_close() {
        for ty in 0..GGML_TYPE_COUNT as i32 {
            let src = values(512);
            match quantize(ty, &src, 256) {
                Ok(bytes) => {
                    let back =
                        dequantize(ty, &bytes, 512).unwrap_or_else(|e| panic!("type {ty}: {e}"));
                    let error: f32 =
                        src.iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / 512.0;
                    // One bit a weight keeps the mean magnitude: the variance that is left is about 0.1.
                    assert!(error < 0.2, "type {ty}: mean squared error {error}");
                }
                Err(QuantError::Unsupported(_) | QuantError::UnknownType(_)) => {}
                Err(error) => panic!("type {ty}: {error}"),
            }
        }
    }

    #[test]
    fn columns_of_importance_come_back_closer() {
        let src = values(256);
        let mut importance = vec![1e-3; 256];
        importance[..16].fill(1.0);
        for ty in [GGML_TYPE_Q4_0, GGML_TYPE_Q3_K] {
            let error = |importance: &[f32]| {
                let bytes = quantize_weighted(ty as i32, &src, 256, Some(importance)).unwrap();
                let back = dequantize(ty as i32, &bytes, 256).unwrap();
                src[..16].iter().zip(&back).map(|(a, b)| (a - b).powi(2)).sum::<f32>()
            };
            let (weighted, even) = (error(&importance), error(&[1.0; 256]));
            assert!(weighted < even, "type {ty}: {weighted} {even}");
        }
        let iq2_xxs = GGML_TYPE_IQ2_XXS as i32;
        assert_eq!(quantize(iq2_xxs, &src, 256), Err(QuantError::Unsupported("iq2_xxs")));
        for bad in [&importance[..16], &[f32::NAN; 256], &[-1.0; 256]] {
            assert!(quantize_weighted(iq2_xxs, &src, 256, Some(bad)).is_err());
        }
    }

    #[test]
    fn f32_is_exact() {
        let src = values(7);
        let bytes = quantize(GGML_TYPE_F32 as i32, &src, 7).expect("f32");
        assert_eq!(dequantize(GGML_TYPE_F32 as i32, &bytes, 7).expect("f32"), src);
    }

    #[test]
    fn wrong_lengths_and_types_are_errors() {
        let q8_0 = GGML_TYPE_Q8_0 as i32;
        assert_eq!(
            quantize(q8_0, &values(33), 33),
            Err(QuantError::Length { given: 33, multiple_of: 32 })
        );
        assert_eq!(
            quantize(q8_0, &values(33), 32),
            Err(QuantError::Length { given: 33, multiple_of: 32 })
        );
        assert_eq!(
            dequantize(q8_0, &[0; 33], 32),
            Err(QuantError::Length { given: 33, multiple_of: 34 })
        );
        assert_eq!(quantize(-1, &[], 32), Err(QuantError::UnknownType(-1)));
        assert_eq!(quantize(9999, &[], 32), Err(QuantError::UnknownType(9999)));
    }
}

//! `general.file_type`: what most of a model's weights are.

use smol_gguf::{TensorInfo, TensorType};
use std::collections::HashMap;

/// The number of the mix that has most bytes in the type that these tensors have most bytes in; `before`: the model's number
/// so far, which stays if it is of that type too. `None`: there is no number for it.
pub(super) fn file_type<'a>(
    tensors: impl Iterator<Item = &'a TensorInfo>,
    before: Option<u64>,
) -> Option<u32> {
    let mut bytes = HashMap::new();
    for tensor in tensors.filter(|tensor| tensor.shape().len() > 1) {
        *bytes.entry(tensor.ty()).or_insert(0) += tensor.n_bytes();
    }
    // Of equally many the type with the lowest id.
    let most = bytes.into_iter().max_by_key(|(ty, bytes)| (*bytes, std::cmp::Reverse(ty.id())));
    let mixes = mixes(most?.0);
    let kept = mixes.iter().find(|&&mix| Some(u64::from(mix)) == before);
    kept.or(mixes.first()).copied()
}

/// The mixes that are mostly of a type, by their numbers in llama.cpp (llama.h, `llama_ftype`); first the one that has least
/// of other types.
fn mixes(ty: TensorType) -> &'static [u32] {
    use TensorType::*;
    match ty {
        F32 => &[0],
        F16 => &[1],
        Q4_0 => &[2],
        Q4_1 => &[3],
        Q8_0 => &[7],
        Q5_0 => &[8],
        Q5_1 => &[9],
        Q2_K => &[10, 21],
        Q3_K => &[11, 12, 13],
        Q4_K => &[14, 15],
        Q5_K => &[16, 17],
        Q6_K => &[18],
        IQ2_XXS => &[19],
        IQ2_XS => &[20],
        IQ3_XXS => &[23],
        IQ1_S => &[24],
        IQ4_NL => &[25],
        IQ3_S => &[26, 22, 27],
        IQ2_S => &[28, 29],
        IQ4_XS => &[30],
        IQ1_M => &[31],
        BF16 => &[32],
        TQ1_0 => &[36],
        TQ2_0 => &[37],
        MXFP4 => &[38],
        NVFP4 => &[39],
        Q1_0 => &[40],
        Q2_0 => &[41],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_bytes_count() {
        let tensor = |rows, ty| TensorInfo::new("a", &[256, rows], ty, 0).unwrap();
        let (q4, q6) = (tensor(100, TensorType::Q4_K), tensor(60, TensorType::Q6_K));
        let norm = TensorInfo::new("norm", &[1 << 20], TensorType::F32, 0).unwrap();
        let of = |tensors: &[&TensorInfo], before| file_type(tensors.iter().copied(), before);
        assert_eq!(of(&[&q4, &q6, &norm], Some(7)), Some(14));
        assert_eq!(of(&[&q4, &q6, &norm], Some(15)), Some(15));
        // Fewer elements, but more bytes.
        assert_eq!(of(&[&q4, &q6, &q6], Some(15)), Some(18));
        assert_eq!(of(&[&norm], None), None);
        assert_eq!(of(&[&tensor(1, TensorType::I32)], None), None);
    }
}

//! Weights and activations to test and measure with.

use smol_gguf::TensorType;

use crate::error::{Error, ErrorKind, Result};

/// A stream of numbers that look random and are the same each time (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A number of a bell-shaped distribution around 0 with a variance of 1.
    pub(super) fn normal(&mut self) -> f32 {
        let uniform = |bits: u64| (bits & 0xffff) as f32 / 65536.0 - 0.5;
        let bits = self.next();
        (0..4).map(|i| uniform(bits >> (16 * i))).sum::<f32>() * 3_f32.sqrt()
    }

    pub(super) fn activations(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// How weights are distributed: layouts that depend on the weights take some of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weights {
    /// Any values.
    Normal,
    /// Three values times a scale, which changes along a row.
    Ternary,
    /// Three values times one scale a row.
    TernaryRows,
}

impl Weights {
    pub(super) const ALL: [Self; 3] = [Self::Normal, Self::Ternary, Self::TernaryRows];

    /// Rows in the plain form of a type.
    pub(super) fn rows(
        self,
        weight_type: TensorType,
        rows: usize,
        columns: usize,
        random: &mut Random,
    ) -> Result<Vec<u8>> {
        // The least that a scale of a quantized type applies to, or a multiple.
        const SCALED: usize = 256;
        let mut weights = Vec::with_capacity(rows * columns);
        for _ in 0..rows {
            let mut scale = 0.0;
            for column in 0..columns {
                if column == 0 || (column % SCALED == 0 && self != Self::TernaryRows) {
                    scale = 0.02 * (1.0 + random.normal().abs());
                }
                weights.push(match self {
                    Self::Normal => scale * random.normal(),
                    _ => scale * (random.below(3) as f32 - 1.0),
                });
            }
        }
        ggml_sys::quants::quantize(weight_type.id() as i32, &weights, columns)
            .map_err(|error| Error::new(ErrorKind::Unsupported, error.to_string()))
    }
}

/// `rows` rows made of a few, cheaply: 251, a prime number, so that no two rows or experts at a distance that a mistake
/// could have are the same.
pub(super) fn many_rows(
    weights: Weights,
    weight_type: TensorType,
    rows: usize,
    columns: usize,
    random: &mut Random,
) -> Result<Vec<u8>> {
    const DISTINCT: usize = 251;
    let distinct = weights.rows(weight_type, rows.min(DISTINCT), columns, random)?;
    let row_bytes = distinct.len() / rows.min(DISTINCT);
    let mut all = Vec::with_capacity(rows * row_bytes);
    while all.len() < rows * row_bytes {
        let rest = rows * row_bytes - all.len();
        all.extend_from_slice(&distinct[..rest.min(distinct.len())]);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_have_mean_0_and_variance_1() {
        let values = Random::new(1).activations(100_000);
        let mean = values.iter().sum::<f32>() / 1e5;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn ternary_weights_have_three_values_a_block() {
        let bytes = Weights::Ternary.rows(TensorType::TQ2_0, 1, 256, &mut Random::new(2)).unwrap();
        let id = TensorType::TQ2_0.id() as i32;
        let mut values = ggml_sys::quants::dequantize(id, &bytes, 256).unwrap();
        values.sort_by(f32::total_cmp);
        values.dedup();
        assert_eq!(values.len(), 3);
        assert_eq!(values[1], 0.0);
        assert_eq!(values[0], -values[2]);
    }

    #[test]
    fn many_rows_repeat_after_251() {
        let rows =
            many_rows(Weights::Normal, TensorType::Q8_0, 260, 32, &mut Random::new(3)).unwrap();
        let row = |i: usize| &rows[i * 34..(i + 1) * 34];
        assert_eq!(rows.len(), 260 * 34);
        assert_eq!(row(251), row(0));
        assert!((1..251).all(|i| row(i) != row(0)));
    }
}

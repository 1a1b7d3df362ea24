//! Products of a router's rows and a hidden state.

/// Sums kept apart, so that the compiler may use vector registers and several at once.
const LANES: usize = 32;

/// Returns the product of a row and `x`; what one has beyond the other does not count.
pub(super) fn dot_f32(row: &[f32], x: &[f32]) -> f32 {
    dot(row, x, |weight| weight)
}

/// Does the same for a row of bfloat16, given by its bits.
pub(super) fn dot_bf16(row: &[u16], x: &[f32]) -> f32 {
    dot(row, x, |bits| f32::from_bits(u32::from(bits) << 16))
}

#[inline(always)]
fn dot<T: Copy>(row: &[T], x: &[f32], weight: impl Fn(T) -> f32) -> f32 {
    let length = row.len().min(x.len());
    let (row, x) = (&row[..length], &x[..length]);
    let (rows, row_rest) = row.as_chunks::<LANES>();
    let (xs, x_rest) = x.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (row, x) in rows.iter().zip(xs) {
        for lane in 0..LANES {
            sums[lane] += weight(row[lane]) * x[lane];
        }
    }
    // A tree, as accurate as the lanes allow.
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
    }
    let rest: f32 = row_rest.iter().zip(x_rest).map(|(w, x)| weight(*w) * x).sum();
    sums[0] + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_sum_of_products_for_all_lengths() {
        for length in (0..100).chain([2048, 2049, 2879]) {
            // Integers below 2^24: exact in any order.
            let row: Vec<f32> = (0..length).map(|i| (i * 7 % 15) as f32 - 7.0).collect();
            let x: Vec<f32> = (0..length).map(|i| (i * 5 % 31) as f32 - 15.0).collect();
            let sum: f32 = row.iter().zip(&x).map(|(w, x)| w * x).sum();
            assert_eq!(dot_f32(&row, &x), sum, "{length}");
            let bits: Vec<u16> = row.iter().map(|w| (w.to_bits() >> 16) as u16).collect();
            assert_eq!(dot_bf16(&bits, &x), sum, "{length}");
            let longer: Vec<f32> = x.iter().copied().chain([3.0; 40]).collect();
            assert_eq!(dot_f32(&row, &longer), sum, "{length}");
            assert_eq!(dot_f32(&longer, &row), sum, "{length}");
        }
    }
}

//! Whether the kernels of a layout agree with each other.

use super::Layout;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::kernels::Aligned;

/// What the kernels of a layout make of some weights and activations.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Verification {
    /// The first fault that was found.
    pub fault: Option<String>,
    /// The weights as the layout gives them back, row after row; empty if a fault came before.
    pub unpacked: Vec<f32>,
    /// A vector for each row of activations with a product for each row of weights; empty if a fault came before.
    pub products: Vec<Vec<f32>>,
}

/// Up to this many rows of activations gemm is run with each number of them.
const EACH_NUMBER: usize = 9;

impl Layout {
    /// Packs rows of `columns` weights, multiplies them with rows of activations, and compares bit for bit: the kernel
    /// for one row of activations with the scalar reference, the one for several rows with that for one, and for exact
    /// layouts the packed weights with the plain ones. Writing outside of the outputs is found, too.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the weights or activations are no whole rows;
    /// [`ErrorKind::Unsupported`] if the layout doesn't take rows of this length or these weights.
    pub fn verify(
        &self,
        columns: usize,
        weights: &[u8],
        activations: &[f32],
    ) -> Result<Verification> {
        let row_bytes = self.packable(columns, weights)?;
        if activations.is_empty() || !activations.len().is_multiple_of(columns) {
            return Err(Error::invalid(format!("no whole rows of {columns} activations")));
        }
        let mut found = Verification { fault: None, unpacked: Vec::new(), products: Vec::new() };
        found.fault = self.compare(columns, weights, row_bytes, activations, &mut found).err();
        Ok(found)
    }

    /// Packs rows of `columns` weights and returns what the layout makes of them, row after row.
    ///
    /// # Errors
    /// As [`Layout::verify`].
    pub fn round_trip(&self, columns: usize, weights: &[u8]) -> Result<Vec<f32>> {
        let row_bytes = self.packable(columns, weights)?;
        let unpack = || -> Result<Vec<f32>, String> {
            let packed = self.raw().pack(columns, weights, row_bytes)?;
            let mut unpacked = Vec::with_capacity(weights.len() / row_bytes * columns);
            for row in 0..weights.len() / row_bytes {
                unpacked.extend(self.raw().unpack_row(&packed, row)?);
            }
            Ok(unpacked)
        };
        unpack()
            .map_err(|fault| Error::new(ErrorKind::Internal, format!("{}: {fault}", self.name())))
    }

    /// Returns the bytes of a row of weights that can be packed.
    fn packable(&self, columns: usize, weights: &[u8]) -> Result<usize> {
        let row_bytes = self.plain_row_bytes(columns)?;
        if weights.is_empty() || !weights.len().is_multiple_of(row_bytes) {
            return Err(Error::invalid(format!("no whole rows of {columns} weights")));
        }
        if !self.raw().accepts(columns, weights, row_bytes) {
            let message = format!("{} does not take these weights", self.name());
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(row_bytes)
    }

    fn compare(
        &self,
        columns: usize,
        weights: &[u8],
        row_bytes: usize,
        activations: &[f32],
        found: &mut Verification,
    ) -> Result<(), String> {
        let raw = self.raw();
        let rows = weights.len() / row_bytes;
        let packed = raw.pack(columns, weights, row_bytes)?;
        for row in 0..rows {
            found.unpacked.extend(raw.unpack_row(&packed, row)?);
        }
        if self.is_exact() {
            let plain = ggml_sys::quants::dequantize(
                self.weight_type().id() as i32,
                weights,
                rows * columns,
            );
            let plain = plain.map_err(|error| error.to_string())?;
            if let Some(at) = difference(&found.unpacked, &plain) {
                let (row, column) = (at / columns, at % columns);
                return Err(format!(
                    "unpacking row {row}, column {column}: {} instead of {}",
                    found.unpacked[at], plain[at]
                ));
            }
        }
        let prepared: Result<Vec<Aligned>, String> =
            activations.chunks_exact(columns).map(|row| raw.prepare(row)).collect();
        let prepared = prepared?;
        let mut products = Vec::new();
        for row in &prepared {
            let one = raw.gemv(&packed, row)?;
            let reference = raw.reference(&packed, row)?;
            same(&one, &reference, "gemv", "the reference")?;
            products.push(one);
        }
        let numbers = (1..=prepared.len()).filter(|n| *n <= EACH_NUMBER || *n == prepared.len());
        for n in numbers {
            let several = raw.gemm(&packed, &prepared[..n])?;
            for (column, (several, one)) in several.iter().zip(&products).enumerate() {
                same(several, one, &format!("gemm, row {column} of {n}"), "gemv")?;
            }
        }
        // Padding is no product of anything.
        products.iter_mut().for_each(|products| products.truncate(rows));
        found.products = products;
        Ok(())
    }
}

fn same(got: &[f32], expected: &[f32], what: &str, by_whom: &str) -> Result<(), String> {
    match difference(got, expected) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{what}: product {at} is {:e} and by {by_whom} {:e}",
            got[at], expected[at]
        )),
    }
}

/// Where the first difference is; any two NaNs are the same.
fn difference(got: &[f32], expected: &[f32]) -> Option<usize> {
    assert_eq!(got.len(), expected.len());
    let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    got.iter().zip(expected).position(differ)
}

#[cfg(test)]
mod tests {
    use super::super::random::{Random, Weights};
    use super::super::{Layout, layouts};
    use super::*;
    use crate::ffi::kernels::faulty;

    #[test]
    fn faults_are_found() {
        let good = layouts().unwrap()[0];
        let mut random = Random::new(5);
        let columns = 2 * good.column_multiple();
        let rows = good.group_rows() + 3;
        let weights = Weights::Normal.rows(good.weight_type(), rows, columns, &mut random).unwrap();
        let activations = random.activations(3 * columns);
        let found = good.verify(columns, &weights, &activations).unwrap();
        assert_eq!(found.fault, None);
        assert_eq!(found.products.len(), 3);
        assert!(found.products.iter().all(|products| products.len() == rows));
        for (raw, words) in faulty::all() {
            let layout = Layout::from_raw(raw).unwrap();
            let fault = layout.verify(columns, &weights, &activations).unwrap().fault;
            let fault = fault.unwrap_or_else(|| panic!("no fault in {words}"));
            assert!(fault.contains(words), "{fault}");
            if words != "behind its output" {
                // What writes too far could do harm there.
                assert!(layout.self_test().is_some(), "{words}");
            }
        }
    }

    #[test]
    fn odd_lengths_are_refused() {
        let layout = layouts().unwrap()[0];
        let columns = layout.column_multiple();
        let kind = |columns, weights: &[u8], activations: &[f32]| {
            layout.verify(columns, weights, activations).unwrap_err().kind().clone()
        };
        assert_eq!(kind(columns + 1, &[0], &[0.0]), ErrorKind::Unsupported);
        assert_eq!(kind(0, &[], &[]), ErrorKind::Unsupported);
        assert_eq!(kind(columns, &[0], &vec![0.0; columns]), ErrorKind::InvalidArgument);
        assert_eq!(kind(columns, &[], &vec![0.0; columns]), ErrorKind::InvalidArgument);
    }
}

//! What a file's header says about a tensor.

use crate::error::{Error, ErrorKind, Result};
use crate::{MAX_DIMS, MAX_NAME_BYTES, TensorType};

/// Name, shape, type and place of a tensor.
///
/// Always consistent: the name fits, rows are whole blocks and the size in bytes fits `u64`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    dims: [u64; MAX_DIMS],
    n_dims: usize,
    ty: TensorType,
    offset: u64,
    n_bytes: u64,
}

impl TensorInfo {
    /// Describes a tensor. `shape` is in ggml's order: the length of a row comes first.
    /// `offset` counts bytes from the start of the file's data section.
    ///
    /// # Errors
    ///
    /// When the name is 64 bytes or longer, there are more than 4 dimensions, a row isn't a whole
    /// number of blocks, or the number of elements or bytes exceeds `i64`.
    pub fn new(
        name: impl Into<String>,
        shape: &[u64],
        ty: TensorType,
        offset: u64,
    ) -> Result<Self> {
        let name = name.into();
        if name.len() > MAX_NAME_BYTES {
            return Err(ErrorKind::TensorNameLength { len: name.len() as u64, name }.into());
        }
        if shape.len() > MAX_DIMS {
            return Err(ErrorKind::TensorDims { tensor: name, found: shape.len() as u64 }.into());
        }
        let mut dims = [1; MAX_DIMS];
        dims[..shape.len()].copy_from_slice(shape);
        let Some(row_bytes) = ty.row_bytes(dims[0]) else {
            return Err(if dims[0].is_multiple_of(ty.block_len()) {
                overflow(&name, shape)
            } else {
                ErrorKind::TensorRow { tensor: name, ty, found: dims[0], block: ty.block_len() }
                    .into()
            });
        };
        // A zero anywhere makes the product zero, but the others must still be representable.
        let product = |first: u64| {
            dims[1..]
                .iter()
                .try_fold(first.max(1), |n, &d| n.checked_mul(d.max(1)))
                .filter(|&n| i64::try_from(n).is_ok())
        };
        let (Some(_), Some(n_bytes)) = (product(dims[0]), product(row_bytes)) else {
            return Err(overflow(&name, shape));
        };
        let n_bytes = if dims.contains(&0) { 0 } else { n_bytes };
        Ok(Self { name, dims, n_dims: shape.len(), ty, offset, n_bytes })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the dimensions as stored, the length of a row first; at most 4.
    pub fn shape(&self) -> &[u64] {
        &self.dims[..self.n_dims]
    }

    /// Returns the dimensions filled up with ones to 4.
    pub fn dims(&self) -> [u64; MAX_DIMS] {
        self.dims
    }

    /// Returns the type of the elements.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Returns the start of the data in bytes from the start of the data section.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the size of the data in bytes, without padding.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Returns the size of a row in bytes.
    pub fn row_bytes(&self) -> u64 {
        self.ty.row_bytes(self.dims[0]).unwrap_or(0)
    }

    /// Returns the number of rows.
    pub fn n_rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// Reports whether at most one dimension is longer than 1.
    pub fn is_vector(&self) -> bool {
        self.dims[1..].iter().all(|&d| d == 1)
    }

    pub(crate) fn with_offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }
}

fn overflow(name: &str, shape: &[u64]) -> Error {
    ErrorKind::TensorTooLarge { tensor: name.to_owned(), shape: shape.to_vec() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_from_shape_and_type() {
        let t = TensorInfo::new("w", &[64, 3, 2], TensorType::Q8_0, 0).unwrap();
        assert_eq!((t.n_elements(), t.n_rows(), t.row_bytes(), t.n_bytes()), (384, 6, 68, 408));
        assert_eq!(t.dims(), [64, 3, 2, 1]);
        assert!(!t.is_vector());
        let scalar = TensorInfo::new("s", &[], TensorType::F32, 0).unwrap();
        assert_eq!((scalar.n_elements(), scalar.n_bytes()), (1, 4));
        assert!(scalar.is_vector());
    }

    #[test]
    fn impossible_tensors_are_refused() {
        let kind = |shape: &[u64], ty| {
            TensorInfo::new("w", shape, ty, 0).map_err(|e| e.kind().to_string()).unwrap_err()
        };
        assert!(kind(&[33], TensorType::Q8_0).contains("multiple of 32"));
        assert!(kind(&[1, 1, 1, 1, 1], TensorType::F32).contains("5 dimensions"));
        assert!(kind(&[1 << 32, 1 << 32], TensorType::I8).contains("too large"));
        assert!(kind(&[1 << 62], TensorType::F32).contains("too large"));
        assert!(kind(&[u64::MAX], TensorType::F32).contains("too large"));
        assert!(kind(&[0, 1 << 40, 1 << 40], TensorType::F32).contains("too large"));
        assert!(TensorInfo::new("x".repeat(64), &[1], TensorType::F32, 0).is_err());
        assert!(TensorInfo::new("x".repeat(63), &[1], TensorType::F32, 0).is_ok());
    }
}

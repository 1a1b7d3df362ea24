//! One weight matrix in memory.

use std::sync::Arc;

use smol_gguf::TensorType;

use super::{Layout, Operation, Product};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::kernels::{Place, RawMatrix};

/// The size of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    /// Weights of a row.
    pub columns: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Matrices of a mixture of experts; `None` for a plain matrix.
    pub experts: Option<usize>,
}

impl MatrixShape {
    /// Makes the shape of a plain matrix.
    pub fn new(rows: usize, columns: usize) -> Self {
        Self { columns, rows, experts: None }
    }

    /// Makes the shape of the matrices of several experts.
    pub fn experts(experts: usize, rows: usize, columns: usize) -> Self {
        Self { columns, rows, experts: Some(experts) }
    }

    /// Returns the number of rows of all matrices together; `None` if it is beyond `usize`.
    pub fn all_rows(&self) -> Option<usize> {
        self.rows.checked_mul(self.experts.unwrap_or(1))
    }

    /// Returns the number of weights; `None` if it is beyond `usize`.
    pub fn weights(&self) -> Option<usize> {
        self.all_rows()?.checked_mul(self.columns)
    }
}

/// Written as in `2048x4096` or `32x512x1536`: experts, rows, columns.
impl std::fmt::Display for MatrixShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(experts) = self.experts {
            write!(f, "{experts}x")?;
        }
        write!(f, "{}x{}", self.rows, self.columns)
    }
}

/// How weights lie in memory.
#[derive(Debug, Clone, Copy)]
pub enum Storage {
    /// Packed by one of this library's layouts.
    Packed(Layout),
    /// Packed by one of ggml's own layouts.
    Repack,
    /// As in the file.
    Plain,
}

impl Storage {
    /// Returns the name of the layout, `repack` or `plain`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Packed(layout) => layout.name(),
            Self::Repack => "repack",
            Self::Plain => "plain",
        }
    }
}

/// A weight matrix in memory, which doesn't change. Clones share the memory.
#[derive(Clone)]
pub struct Matrix {
    raw: Arc<RawMatrix>,
    shape: MatrixShape,
    storage: Storage,
}

impl Matrix {
    /// Puts a matrix into memory; `rows` are the bytes of all rows in the type's plain form.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `rows` has another length than the shape says;
    /// [`ErrorKind::Unsupported`] if the weights can't be stored that way.
    pub fn new(
        weight_type: TensorType,
        shape: MatrixShape,
        rows: &[u8],
        storage: Storage,
    ) -> Result<Self> {
        let row_bytes = weight_type.row_bytes(shape.columns as u64);
        let expected = row_bytes
            .and_then(|bytes| usize::try_from(bytes).ok())
            .and_then(|bytes| bytes.checked_mul(shape.all_rows()?));
        if expected != Some(rows.len()) || rows.is_empty() {
            let message =
                format!("{} bytes are no {} matrix {shape}", rows.len(), weight_type.name());
            return Err(Error::invalid(message));
        }
        let place = match storage {
            Storage::Packed(layout) => Place::Packed(layout.raw()),
            Storage::Repack => Place::Buffer("CPU_REPACK"),
            Storage::Plain => Place::Buffer("CPU"),
        };
        let sizes = [shape.columns, shape.rows, shape.experts.unwrap_or(0)];
        let raw = RawMatrix::new(weight_type.id(), sizes, rows, place)?;
        Ok(Self { raw: Arc::new(raw), shape, storage })
    }

    /// Puts a matrix into memory as stock llama.cpp would: packed by ggml where it has a layout, else as in the file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] as for [`Matrix::new`].
    pub fn stock(weight_type: TensorType, shape: MatrixShape, rows: &[u8]) -> Result<Self> {
        match Self::new(weight_type, shape, rows, Storage::Repack) {
            Err(error) if error.kind() == &ErrorKind::Unsupported => {
                Self::new(weight_type, shape, rows, Storage::Plain)
            }
            other => other,
        }
    }

    /// Returns the shape.
    pub fn shape(&self) -> MatrixShape {
        self.shape
    }

    /// Returns how the weights lie in memory.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// Returns the bytes of the weights in memory.
    pub fn bytes(&self) -> usize {
        self.raw.bytes()
    }

    /// Prepares an operation with the matrix, computed by `threads` threads.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the operation doesn't fit the matrix; [`ErrorKind::OutOfMemory`].
    pub fn operation(&self, operation: &Operation, threads: u32) -> Result<Product> {
        Product::new(&self.raw, self.shape, operation, threads)
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Matrix")
            .field("shape", &self.shape)
            .field("storage", &self.storage)
            .finish_non_exhaustive()
    }
}

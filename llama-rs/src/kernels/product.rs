//! What a model does with a weight matrix.

use std::sync::Arc;

use super::MatrixShape;
use crate::error::{Error, Result};
use crate::ffi::kernels::{ProductKind, RawMatrix, RawProduct};

/// What is done with a matrix, and with how many inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    kind: ProductKind,
    activations: [usize; 3],
    gap: usize,
    ids: [usize; 2],
}

impl Operation {
    /// Multiplies `rows` rows of activations (`MUL_MAT`): one when a token is generated, many in a prompt.
    pub fn product(rows: usize) -> Self {
        Self::batched_product([rows, 1, 1])
    }

    /// Multiplies activations with two more dimensions.
    pub fn batched_product(rows: [usize; 3]) -> Self {
        Self { kind: ProductKind::Product, activations: rows, gap: 0, ids: [0; 2] }
    }

    /// Multiplies the activations of `tokens` tokens with `used` experts each (`MUL_MAT_ID`).
    ///
    /// A token has `inputs` rows of activations: one for all of its experts, or one for each.
    pub fn experts(tokens: usize, used: usize, inputs: usize) -> Self {
        Self {
            kind: ProductKind::Experts,
            activations: [inputs, tokens, 1],
            gap: 0,
            ids: [used, tokens],
        }
    }

    /// Gets `n` rows of the matrix as floats (`GET_ROWS`).
    pub fn rows(n: usize) -> Self {
        Self { kind: ProductKind::Rows, activations: [0; 3], gap: 0, ids: [n, 1] }
    }

    /// Leaves `floats` floats between two rows of activations.
    #[must_use]
    pub fn with_gap(mut self, floats: usize) -> Self {
        self.gap = floats;
        self
    }

    /// Returns the floats that [`Product::set_inputs`] wants for a matrix with rows of `columns` weights.
    pub fn activations(&self, columns: usize) -> usize {
        match self.kind {
            ProductKind::Rows => 0,
            _ => self
                .activations
                .iter()
                .product::<usize>()
                .saturating_mul(columns.saturating_add(self.gap)),
        }
    }

    /// Returns the ids that [`Product::set_inputs`] wants: of experts, or of rows to get.
    pub fn ids(&self) -> usize {
        self.ids[0] * self.ids[1]
    }

    /// Returns the number of products of a row of weights with a row of activations, for each row of a matrix.
    pub fn columns(&self) -> usize {
        match self.kind {
            ProductKind::Product => self.activations.iter().product(),
            _ => self.ids(),
        }
    }

    /// Returns ggml's name of the operation.
    pub fn name(&self) -> &'static str {
        match self.kind {
            ProductKind::Product => "MUL_MAT",
            ProductKind::Experts => "MUL_MAT_ID",
            ProductKind::Rows => "GET_ROWS",
        }
    }

    /// Returns the number of distinct ids that are allowed for a matrix.
    pub(super) fn id_range(&self, shape: MatrixShape) -> usize {
        if self.kind == ProductKind::Rows { shape.rows } else { shape.experts.unwrap_or(1) }
    }
}

/// An operation with its matrix, inputs, output and threads, as often computed as wanted.
pub struct Product {
    raw: RawProduct,
}

impl Product {
    pub(super) fn new(
        matrix: &Arc<RawMatrix>,
        shape: MatrixShape,
        operation: &Operation,
        threads: u32,
    ) -> Result<Self> {
        if threads == 0 || threads > MAX_THREADS {
            return Err(Error::invalid(format!("{threads} threads: must be 1 to {MAX_THREADS}")));
        }
        if (operation.kind == ProductKind::Experts) != shape.experts.is_some() {
            let message = format!("{} with a matrix {shape}", operation.name());
            return Err(Error::invalid(message));
        }
        let Operation { kind, activations, gap, ids } = *operation;
        let stride = shape.columns.saturating_add(gap);
        Ok(Self { raw: RawProduct::new(matrix, kind, activations, stride, ids, threads)? })
    }

    /// Sets the inputs: rows of activations with gaps where the operation has them, and ids.
    ///
    /// The id -1 of an expert skips it: its products are zeros. Before the first call all inputs are zeros.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if they are not as many as the operation has
    /// ([`Operation::activations`], [`Operation::ids`]), or if there is no expert or row of an id.
    pub fn set_inputs(&mut self, activations: &[f32], ids: &[i32]) -> Result<()> {
        self.raw.set_inputs(activations, ids)
    }

    /// Computes the output, several times if that is to be measured.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`](crate::ErrorKind::OutOfMemory) for the work memory of the computation.
    pub fn compute(&mut self, times: u32) -> Result<()> {
        self.raw.compute(times)
    }

    /// Returns the output: for each row of activations or use of an expert one float a row of the matrix, or the rows.
    pub fn output(&self) -> &[f32] {
        self.raw.output()
    }
}

impl std::fmt::Debug for Product {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Product").finish_non_exhaustive()
    }
}

/// More threads than any machine of the kind has are a mistake.
const MAX_THREADS: u32 = 512;

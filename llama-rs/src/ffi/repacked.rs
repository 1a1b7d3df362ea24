//! llama.cpp's own packed form of matrices, outside of its buffers.

use ggml_sys as sys;

/// How llama.cpp packs a matrix on this CPU. Packed rows take as many bytes as plain ones.
#[derive(Clone, Copy)]
pub(crate) struct Repacked {
    ty: sys::ggml_type,
    columns: i64,
    rows: i64,
    group_rows: usize,
}

impl Repacked {
    /// The name of all such forms: which of them it is follows from type, shape and CPU (pack_cache.cpp, describe).
    pub(crate) const NAME: &'static str = "repack";

    /// The form of a matrix of a type, by its number in files; `None` if there is none. The library must be
    /// [initialized](super::call::init).
    pub(crate) fn of(ty: u32, columns: u64, rows: u64) -> Option<Self> {
        let ty = ty as sys::ggml_type;
        let (columns, rows) = (i64::try_from(columns).ok()?, i64::try_from(rows).ok()?);
        // SAFETY: computes a number from its arguments (repacked.cpp); `ty` is a type of the enum, as smol-gguf knows no
        // others.
        let group_rows = unsafe { sys::smol_repacked_rows(ty, columns, rows) };
        let group_rows = usize::try_from(group_rows).ok().filter(|rows| *rows > 0)?;
        Some(Self { ty, columns, rows, group_rows })
    }

    /// Rows that are packed together.
    pub(crate) fn group_rows(self) -> usize {
        self.group_rows
    }

    /// Packs rows of `stride` bytes, in whole groups, into as many bytes.
    pub(crate) fn pack_into(self, rows: &[u8], stride: usize, packed: &mut [u8]) {
        let n = rows.len() / stride;
        assert!(packed.len() == rows.len() && rows.len().is_multiple_of(stride * self.group_rows));
        // SAFETY: a type and row length that the library has packed rows of (of).
        let row = unsafe { sys::ggml_row_size(self.ty, self.columns) };
        assert!(row == stride && n as i64 <= self.rows);
        let (from, to) = (rows.as_ptr().cast(), packed.as_mut_ptr().cast());
        // SAFETY: `n` rows of this matrix lie at `from`, whole groups, and as many bytes have room at `to` (smol.h,
        // smol_repack).
        unsafe { sys::smol_repack(self.ty, self.columns, self.rows, from, n as i64, to) };
    }
}

//! The list of packed layouts.

use smol_gguf::TensorType;

use crate::error::{Error, ErrorKind, Result};
use crate::ffi::kernels::{self as raw, RawLayout};

/// A way to keep the rows of a weight matrix in memory, with the kernels that read it.
///
/// Rows lie interleaved in groups; the last group is padded, so that a matrix can have any number of rows.
#[derive(Clone, Copy)]
pub struct Layout {
    raw: RawLayout,
    weight_type: TensorType,
}

/// Returns the layouts of the CPU level that runs; for one weight type the preferred one comes first.
///
/// # Errors
/// [`ErrorKind::Cpu`] if the CPU can't run this build.
pub fn layouts() -> Result<Vec<Layout>> {
    raw::layouts()?.into_iter().map(Layout::from_raw).collect()
}

impl Layout {
    pub(crate) fn from_raw(raw: RawLayout) -> Result<Self> {
        let weight_type = TensorType::from_id(raw.weight_type()).ok_or_else(|| {
            let message = format!("layout {} is for tensor type {}", raw.name(), raw.weight_type());
            Error::new(ErrorKind::Internal, message)
        })?;
        Ok(Self { raw, weight_type })
    }

    pub(super) fn raw(&self) -> RawLayout {
        self.raw
    }

    /// Returns the name, which no other layout has.
    pub fn name(&self) -> &'static str {
        self.raw.name()
    }

    /// Returns the version of the packed bytes: they differ between versions.
    pub fn version(&self) -> u32 {
        self.raw.version()
    }

    /// Returns the type of the weights that the layout packs.
    pub fn weight_type(&self) -> TensorType {
        self.weight_type
    }

    /// Returns the number of rows in a group.
    pub fn group_rows(&self) -> usize {
        self.raw.rows()
    }

    /// Returns what the length of a row must be a multiple of.
    pub fn column_multiple(&self) -> usize {
        self.raw.columns()
    }

    /// Returns the name of the form that activations are brought into.
    pub fn activation(&self) -> &'static str {
        self.raw.activation()
    }

    /// Reports whether it computes what ggml's own kernel of the type computes, up to the order of float additions.
    pub fn is_exact(&self) -> bool {
        self.raw.exact()
    }

    /// Reports whether it is used only when it is asked for by name: it loses accuracy, or trades memory for speed.
    pub fn is_optional(&self) -> bool {
        self.raw.optional()
    }

    /// Reports whether it depends on the weights whether they can be packed this way.
    pub fn is_selective(&self) -> bool {
        self.raw.selective()
    }

    /// Returns the bytes of a packed matrix with rows of `columns` weights; `None` if rows of that length can't be packed.
    pub fn packed_bytes(&self, columns: usize, rows: usize) -> Option<usize> {
        if columns == 0 || !columns.is_multiple_of(self.column_multiple()) {
            return None;
        }
        rows.div_ceil(self.group_rows()).checked_mul(self.raw.group_bytes(columns))
    }

    /// Returns the memory that a weight takes, in bits, scales included.
    pub fn bits_per_weight(&self) -> f64 {
        // A length that all layouts take, so that what a row has once counts as in a model.
        let columns = 16 * self.column_multiple();
        let weights = columns * self.group_rows();
        self.raw.group_bytes(columns) as f64 * 8.0 / weights as f64
    }

    /// Runs the short test that comes before the first use, and returns what it finds wrong.
    pub fn self_test(&self) -> Option<String> {
        self.raw.self_test()
    }

    /// Returns the bytes of a plain row.
    pub(super) fn plain_row_bytes(&self, columns: usize) -> Result<usize> {
        let multiple = self.column_multiple();
        let bytes = self.weight_type.row_bytes(columns as u64).filter(|_| columns > 0);
        match bytes.and_then(|bytes| usize::try_from(bytes).ok()) {
            Some(bytes) if columns.is_multiple_of(multiple) => Ok(bytes),
            _ => Err(Error::new(
                ErrorKind::Unsupported,
                format!("rows of {columns} weights: {} takes multiples of {multiple}", self.name()),
            )),
        }
    }
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Layout").field(&self.name()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_names_of_their_own_and_no_fault() {
        let all = layouts().unwrap();
        assert!(!all.is_empty());
        for (i, layout) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other.name() != layout.name()), "{layout:?}");
            assert_eq!(layout.self_test(), None, "{layout:?}");
            assert!((0.5..16.0).contains(&layout.bits_per_weight()), "{layout:?}");
            assert_eq!(layout.packed_bytes(layout.column_multiple() + 1, 1), None);
            let group = layout.packed_bytes(layout.column_multiple(), 1).unwrap();
            let rows = layout.group_rows();
            assert_eq!(layout.packed_bytes(layout.column_multiple(), rows), Some(group));
            assert_eq!(layout.packed_bytes(layout.column_multiple(), rows + 1), Some(2 * group));
        }
    }
}

//! The packed forms of matrices that are streamed.

use smol_engine::pack_cache::Weight;
use smol_engine::stream::Packer;
use smol_gguf::TensorInfo;

use crate::ffi::kernels::RawLayout;
use crate::ffi::pager::layout_of;
use crate::ffi::repacked::Repacked;

/// How a matrix is packed, any whole groups of its rows at a time.
#[derive(Clone, Copy)]
pub(super) struct Form {
    kind: Kind,
    columns: usize,
    rows: usize,
    /// Bytes of a plain row.
    row_bytes: usize,
}

#[derive(Clone, Copy)]
enum Kind {
    Layout(RawLayout),
    /// As llama.cpp packs it.
    Repacked(Repacked),
}

impl Form {
    /// The form that this thread has [chosen](crate::ffi::layouts::choose) for a matrix, or that of llama.cpp if that may
    /// be taken. `None`: it stays as it is in the file.
    pub(super) fn of(info: &TensorInfo, repack: bool) -> Option<Self> {
        let [columns, rows, matrices, rest] = info.dims();
        if matrices * rest != 1 || rows < 2 {
            return None;
        }
        let repacked = || Repacked::of(info.ty().id(), columns, rows).filter(|_| repack);
        let layout = layout_of(info.ty().id(), columns).map(Kind::Layout);
        let kind = layout.or_else(|| repacked().map(Kind::Repacked))?;
        let row_bytes = (info.n_bytes() / rows) as usize;
        Some(Self { kind, columns: columns as usize, rows: rows as usize, row_bytes })
    }

    /// The layout, if it is one of this library.
    pub(super) fn layout(&self) -> Option<RawLayout> {
        match self.kind {
            Kind::Layout(layout) => Some(layout),
            Kind::Repacked(_) => None,
        }
    }

    /// Rows that are packed together.
    pub(super) fn group_rows(&self) -> usize {
        match self.kind {
            Kind::Layout(layout) => layout.rows(),
            Kind::Repacked(repacked) => repacked.group_rows(),
        }
    }

    /// Bytes of so many packed rows.
    fn packed_bytes(&self, rows: usize) -> usize {
        match self.kind {
            Kind::Layout(layout) => layout.packed_bytes(self.columns, rows),
            Kind::Repacked(_) => rows * self.row_bytes,
        }
    }

    /// Bytes of the packed matrix.
    pub(super) fn bytes(&self) -> usize {
        self.packed_bytes(self.rows)
    }

    /// The matrix as a cache knows it.
    pub(super) fn weight(&self, info: &TensorInfo) -> Weight {
        let (layout, version) = match self.kind {
            Kind::Layout(layout) => (layout.name(), layout.version()),
            Kind::Repacked(_) => (Repacked::NAME, 0),
        };
        Weight {
            name: info.name().to_owned(),
            layout: layout.to_owned(),
            version,
            ty: info.ty().id(),
            shape: info.dims(),
            bytes: self.bytes() as u64,
        }
    }

    /// Calls `next` with plain rows to be filled in, in order, a few groups at a time, and `done` with what becomes of them.
    pub(super) fn pack_by_parts<E>(
        &self,
        part: usize,
        mut next: impl FnMut(&mut [u8]) -> Result<(), E>,
        mut done: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let group = self.group_rows();
        let step = (part / (group * self.row_bytes).max(1)).max(1) * group;
        let mut plain = vec![0; step.min(self.rows) * self.row_bytes];
        let mut packed = vec![0; self.packed_bytes(step.min(self.rows))];
        for first in (0..self.rows).step_by(step) {
            let rows = step.min(self.rows - first);
            let plain = &mut plain[..rows * self.row_bytes];
            next(plain)?;
            let packed = &mut packed[..self.packed_bytes(rows)];
            self.pack(plain, packed);
            done(packed)?;
        }
        Ok(())
    }
}

impl Packer for Form {
    fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        match self.kind {
            Kind::Layout(layout) => {
                layout.pack_into(self.columns, plain, self.row_bytes, packed);
            }
            Kind::Repacked(repacked) => repacked.pack_into(plain, self.row_bytes, packed),
        }
    }
}

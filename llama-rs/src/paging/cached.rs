//! Packed experts that a pager reads from a cache, so that none is packed while the model runs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use smol_engine::io::IoChoice;
use smol_engine::pack_cache::Weight;

use super::{Form, Paging};
use crate::cancel::CancelToken;
use crate::pack_cache::{ModelCache, PackCacheStatistics, go_on};

/// A tensor of experts that is packed.
struct Packed {
    layer: usize,
    tensor: usize,
    form: Form,
    weight: Weight,
}

impl Paging<'_> {
    /// Lets packed experts be read from a cache, which is written if it lacks them. Where that can't be done, they are
    /// packed as they are read. `None`: none of them is packed.
    pub(crate) fn use_cache(
        &mut self,
        cache: &ModelCache,
        io: IoChoice,
        cancel: Option<&CancelToken>,
    ) -> Option<PackCacheStatistics> {
        let packed = self.packed();
        if packed.is_empty() {
            return None;
        }
        let mut statistics = cache.statistics();
        let wanted: Vec<_> = packed.iter().map(|one| one.weight.clone()).collect();
        let file = cache.complete(
            &wanted,
            |_| true,
            &mut statistics,
            |number, out| self.pack(&packed[number], out, cancel),
        );
        let Some(file) = file else { return Some(statistics) };
        match file.open_direct(io) {
            Ok(opened) => self.opened.push(Arc::new(opened)),
            Err(error) => {
                statistics.note = Some(error.to_string());
                return Some(statistics);
            }
        }
        for one in &packed {
            let Some(place) = file.offset(&one.weight) else { continue };
            let tensor = &mut self.layers[one.layer].tensors[one.tensor];
            tensor.file = self.opened.len() - 1;
            tensor.offset = place;
            tensor.stride = tensor.bytes as u64;
            tensor.packer = None;
        }
        Some(statistics)
    }

    fn packed(&self) -> Vec<Packed> {
        let mut packed = Vec::new();
        for (layer, routed) in self.routed.layers.iter().enumerate() {
            for (tensor, routed_tensor) in routed.tensors.iter().enumerate() {
                let Some(form) = Form::of(routed_tensor) else { continue };
                let experts = u64::from(routed.experts);
                let weight = Weight {
                    name: routed_tensor.name.clone(),
                    layout: form.layout.name().to_owned(),
                    version: form.layout.version(),
                    ty: routed_tensor.ty.id(),
                    shape: [routed_tensor.columns, routed_tensor.rows, experts, 1],
                    bytes: form.bytes() as u64 * experts,
                };
                packed.push(Packed { layer, tensor, form, weight });
            }
        }
        packed
    }

    /// Reads the experts of a tensor, and writes them packed.
    fn pack(
        &self,
        one: &Packed,
        out: &mut dyn Write,
        cancel: Option<&CancelToken>,
    ) -> io::Result<()> {
        let layer = &self.routed.layers[one.layer];
        let tensor = &layer.tensors[one.tensor];
        let mut file = File::open(&self.files.paths()[tensor.file])?;
        file.seek(SeekFrom::Start(tensor.offset))?;
        let mut plain = vec![0; tensor.stride as usize];
        let mut packed = vec![0; one.form.bytes()];
        for _ in 0..layer.experts {
            go_on(cancel)?;
            file.read_exact(&mut plain)?;
            one.form.layout.pack_into(one.form.columns, &plain, one.form.stride, &mut packed);
            out.write_all(&packed)?;
        }
        Ok(())
    }
}

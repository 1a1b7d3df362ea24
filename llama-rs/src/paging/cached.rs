//! Packed experts that a pager reads from a cache, so that none is packed while the model runs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use smol_engine::io::{DirectFile, IoChoice};
use smol_engine::pack_cache::{PackedFile, Weight};

use super::{Form, Paging};
use crate::cancel::CancelToken;
use crate::pack_cache::{ModelCache, PackCacheStatistics};

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
        let whole = |file: PackedFile| places(&file, &packed).map(|places| (file, places));
        let mut found = cache.find(&mut statistics).and_then(whole);
        if found.is_some() {
            statistics.hits = packed.len();
        } else {
            statistics.misses = packed.len();
            let bytes = packed.iter().map(|one| one.weight.bytes).sum();
            let written = cache.write(bytes, &mut statistics, |writer| {
                packed
                    .iter()
                    .try_for_each(|one| writer.add(&one.weight, |out| self.pack(one, out, cancel)))
            });
            if written {
                found = cache.find_again().and_then(whole);
            }
        }
        let (file, places) = found?;
        match DirectFile::open_with(file.path(), io) {
            Ok(opened) => self.opened.push(Arc::new(opened)),
            Err(error) => {
                statistics.note = Some(error.to_string());
                return Some(statistics);
            }
        }
        for (one, place) in packed.iter().zip(places) {
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
            if cancel.is_some_and(CancelToken::is_cancelled) {
                return Err(io::Error::other("loading was cancelled"));
            }
            file.read_exact(&mut plain)?;
            one.form.layout.pack_into(one.form.columns, &plain, one.form.stride, &mut packed);
            out.write_all(&packed)?;
        }
        Ok(())
    }
}

/// Where each tensor begins in the file; `None` unless all are there.
fn places(file: &PackedFile, packed: &[Packed]) -> Option<Vec<u64>> {
    packed.iter().map(|one| file.offset(&one.weight)).collect()
}

//! Weights that kernels read as the model's files have them, mapped from there.

use std::collections::HashMap;

use smol_engine::pack_cache::{MappedFile, Weight};

use crate::error::Result;
use crate::ffi::mapping::MappingGuard;
use crate::files::{FileState, ModelFiles};
use crate::model::files_lost;

/// Smaller ones are as quick to read.
const MIN_BYTES: u64 = 64 << 10;
/// At which kernels may expect a weight to begin, as llama.cpp has it for tensors that it maps.
const ALIGNMENT: u64 = 32;

/// The files of a model, mapped. Outlives the model.
pub(crate) struct PlainWeights {
    guard: MappingGuard,
    files: Vec<MappedFile>,
    places: HashMap<String, Place>,
}

struct Place {
    file: usize,
    offset: u64,
    ty: u32,
    shape: [u64; 4],
    bytes: u64,
}

impl PlainWeights {
    /// Maps the files; `None` where that can't be done, which is no reason not to read them.
    pub(crate) fn map(files: &ModelFiles) -> Option<Self> {
        let mapped = files.map().ok()?;
        let guard = MappingGuard::new(files.paths());
        guard.refresh();
        let mut places = HashMap::new();
        for (index, file) in files.shards().iter().enumerate() {
            for tensor in file.tensors().iter().filter(|tensor| tensor.n_bytes() >= MIN_BYTES) {
                let offset = file.file_offset(tensor).ok()?;
                if !offset.is_multiple_of(ALIGNMENT) {
                    continue;
                }
                let place = Place {
                    file: index,
                    offset,
                    ty: tensor.ty().id(),
                    shape: tensor.dims(),
                    bytes: tensor.n_bytes(),
                };
                places.insert(tensor.name().to_owned(), place);
            }
        }
        Some(Self { guard, files: mapped, places })
    }

    /// Returns the bytes of a weight, if they are those of a tensor of the same type and shape.
    pub(crate) fn find(&self, weight: &Weight) -> Option<&[u8]> {
        let place = self.places.get(&weight.name)?;
        let same = (place.ty, place.shape, place.bytes) == (weight.ty, weight.shape, weight.bytes);
        let start = usize::try_from(place.offset).ok().filter(|_| same)?;
        self.files[place.file].get(start..)?.get(..place.bytes as usize)
    }

    /// Refuses to compute with weights that are not in the files any more, or to trust what was computed with them.
    pub(crate) fn check_unchanged(&self, files: &[FileState]) -> Result<()> {
        files.iter().try_for_each(FileState::check_not_shortened)?;
        match (self.guard.was_hit(), files.first()) {
            (true, Some(file)) => Err(files_lost(file.path())),
            _ => Ok(()),
        }
    }
}

//! Packed weights that are streamed from a cache, so that none is packed while the model runs.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use smol_engine::io::IoChoice;
use smol_engine::pack_cache::{PackedFile, Weight};
use smol_engine::stream::{PackedPlace, StreamTensor};

use super::{Form, Streaming};
use crate::cancel::CancelToken;
use crate::files::ModelFiles;
use crate::pack_cache::{ModelCache, PackCacheStatistics, go_on};

/// Plain bytes that are packed at once when a cache is written.
const PART: usize = 1 << 20;

/// A packed matrix of the model, and where its plain bytes are.
struct Packed {
    form: Form,
    file: usize,
    offset: u64,
}

impl Streaming {
    /// Lets packed weights be read from a cache. If it lacks some of the `matrices`, those of the model that are streamed
    /// in one amount of memory or another, it is written first. Where that can't be done, they are packed as they are
    /// read. `None`: none of them is packed.
    pub(crate) fn use_cache(
        &mut self,
        files: &ModelFiles,
        matrices: &[&str],
        cache: &ModelCache,
        io: IoChoice,
        cancel: Option<&CancelToken>,
    ) -> Option<PackCacheStatistics> {
        let is_packed = |tensor: &&StreamTensor| tensor.packer.is_some();
        let streamed: HashSet<_> =
            self.tensors.iter().filter(is_packed).map(|tensor| tensor.name.clone()).collect();
        if streamed.is_empty() {
            return None;
        }
        let mut statistics = cache.statistics();
        let is_read = |weight: &Weight| streamed.contains(&weight.name);
        let found = complete(files, matrices, self.repack, cache, is_read, &mut statistics, cancel);
        let Some((file, weights)) = found else { return Some(statistics) };
        match file.open_direct(io) {
            Ok(opened) => self.opened.push(Arc::new(opened)),
            Err(error) => {
                statistics.note = Some(error.to_string());
                return Some(statistics);
            }
        }
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.packer.is_some()) {
            let weight = weights.iter().find(|weight| weight.name == tensor.name);
            if let Some(offset) = weight.and_then(|weight| file.offset(weight)) {
                tensor.packed = Some(PackedPlace { file: self.opened.len() - 1, offset });
            }
        }
        Some(statistics)
    }
}

/// Opens a cache once it has those of these matrices of a model that are packed, with `repack` also as llama.cpp does it;
/// returns those too. See [`ModelCache::complete`].
pub(crate) fn complete(
    files: &ModelFiles,
    matrices: &[&str],
    repack: bool,
    cache: &ModelCache,
    is_read: impl Fn(&Weight) -> bool,
    statistics: &mut PackCacheStatistics,
    cancel: Option<&CancelToken>,
) -> Option<(PackedFile, Vec<Weight>)> {
    let (mut packed, mut wanted) = (Vec::new(), Vec::new());
    for (number, shard) in files.shards().iter().enumerate() {
        for info in shard.tensors().iter().filter(|info| matrices.contains(&info.name())) {
            let Some(form) = Form::of(info, repack) else { continue };
            let Ok(offset) = shard.file_offset(info) else { continue };
            packed.push(Packed { form, file: number, offset });
            wanted.push(form.weight(info));
        }
    }
    let file = cache.complete(&wanted, is_read, statistics, |number, out| {
        packed[number].write(files, out, cancel)
    })?;
    Some((file, wanted))
}

impl Packed {
    /// Reads the matrix, and writes it packed, a part at a time.
    fn write(
        &self,
        files: &ModelFiles,
        out: &mut dyn Write,
        cancel: Option<&CancelToken>,
    ) -> io::Result<()> {
        let mut file = File::open(&files.paths()[self.file])?;
        file.seek(SeekFrom::Start(self.offset))?;
        let next = |plain: &mut [u8]| {
            go_on(cancel)?;
            file.read_exact(plain)
        };
        self.form.pack_by_parts(PART, next, |packed| out.write_all(packed))
    }
}

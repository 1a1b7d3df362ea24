//! Setting up the streamed weights of a model that is about to be loaded.

mod cached;
mod form;

use std::collections::HashMap;
#[cfg(feature = "tools")]
use std::path::Path;
use std::sync::Arc;

use smol_engine::io::{DirectFile, ReadAt};
use smol_engine::stream::{Stream, StreamTensor};
use smol_gguf::{Gguf, TensorInfo};

use crate::cancel::CancelToken;
use crate::error::{Error, Result};
#[cfg(feature = "tools")]
use crate::expert_pager::has_experts;
use crate::ffi::stream::{StreamedTensor, StreamedWeights, error_of};
use crate::files::{ModelFiles, gguf_error};
#[cfg(feature = "tools")]
use crate::guard::Guard;
#[cfg(feature = "tools")]
use crate::pack_cache::Kind;
use crate::pack_cache::{ModelCache, PackCacheStatistics};
#[cfg(feature = "tools")]
use crate::placement::{Placement, Wishes, decide};
#[cfg(feature = "tools")]
use crate::plan::PlannedContext;
use crate::plan::{Matrix, Streamed};
use crate::weight_stream::WeightStream;
#[cfg(feature = "tools")]
pub(crate) use cached::complete;
use form::Form;

/// Name of the table of embeddings, and of a head of its own.
const TABLE: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// The streamed weights of a model. Outlives the model.
pub(crate) struct StreamedModel {
    weights: StreamedWeights,
}

impl StreamedModel {
    pub(crate) fn stream(&self) -> &Arc<Stream> {
        self.weights.stream()
    }

    /// Loads the model.
    pub(crate) fn during_load<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<T> {
        self.weights.during_load(load)
    }

    /// Streams the weights of the model that upstream's code loads on this thread, until the process ends.
    #[cfg(feature = "tools")]
    pub(crate) fn keep(self) -> Result<Arc<Stream>> {
        let kept: &'static Self = Box::leak(Box::new(self));
        kept.weights.keep()?;
        std::mem::forget(Guard::watch(vec![Arc::downgrade(kept.stream()) as _])?);
        Ok(Arc::clone(kept.stream()))
    }
}

/// Sets up the streaming that was chosen, of some of these matrices, from a cache if there is one; whether llama.cpp's own
/// form may be taken.
pub(crate) fn set_up(
    files: &ModelFiles,
    options: &WeightStream,
    chosen: &Streamed,
    matrices: &[Matrix],
    (cache, repack): (Option<&ModelCache>, bool),
    cancel: Option<&CancelToken>,
) -> Result<(StreamedModel, Option<PackCacheStatistics>)> {
    // llama.cpp's own form is read from a cache; packing it anew for each token would cost more than it brings.
    let mut streaming = Streaming::new(files, &chosen.names, repack && cache.is_some(), options)?;
    let names: Vec<_> = matrices.iter().map(|matrix| &*matrix.name).collect();
    let cached =
        cache.and_then(|cache| streaming.use_cache(files, &names, cache, options.io, cancel));
    Ok((streaming.start(chosen, options)?, cached))
}

/// Streams the model at `path` when upstream's code loads it, on this thread. `None`: it is a mixture, which is for the pager.
#[cfg(feature = "tools")]
pub(crate) fn stream_for_upstream(
    path: &Path,
    options: &crate::EngineOptions,
    repack: bool,
) -> Result<Option<(Arc<Stream>, Option<PackCacheStatistics>)>> {
    let files = ModelFiles::open(path)?;
    let metadata = files.metadata().clone();
    let Some(stream) = options.stream.clone() else { return Ok(None) };
    if has_experts(&metadata) {
        return Ok(None);
    }
    let cache = ModelCache::for_upstream(Kind::Weights, &files, options, repack)?;
    let wishes = Wishes {
        ram: None,
        planned: PlannedContext::default(),
        pager: None,
        stream: Some(&stream),
        readers: None,
        may_stream: false,
        cached: cache.is_some(),
    };
    let decision = decide(&files, &metadata, None, wishes)?;
    let Placement::Streamed(chosen) = decision.placement else { return Ok(None) };
    let matrices = &decision.needs.weights.matrices;
    let cache = (cache.as_ref(), repack);
    let (streamed, cached) = set_up(&files, &stream, &chosen, matrices, cache, None)?;
    Ok(Some((streamed.keep()?, cached)))
}

/// The tensors of a model that are to be streamed, in the form in which kernels will read them.
pub(crate) struct Streaming {
    opened: Vec<Arc<dyn ReadAt>>,
    tensors: Vec<StreamTensor>,
    places: HashMap<String, StreamedTensor>,
    repack: bool,
}

impl Streaming {
    /// Opens the files, and lays the tensors of these names out as this thread has
    /// [chosen](crate::ffi::layouts::choose), others with `repack` as llama.cpp does. A table of embeddings that is no head is
    /// only read by row.
    ///
    /// # Errors
    /// If there is no such tensor, it is not one matrix, or a file cannot be opened.
    pub(crate) fn new<S: AsRef<str>>(
        files: &ModelFiles,
        names: &[S],
        repack: bool,
        options: &WeightStream,
    ) -> Result<Self> {
        let opened = DirectFile::open_all(files.paths(), options.io);
        let opened = opened.map_err(|error| error_of(error.into()))?;
        let untied = files.shards().tensor(HEAD).is_some();
        let mut streaming = Self { opened, tensors: Vec::new(), places: HashMap::new(), repack };
        for name in names {
            let name = name.as_ref();
            let found = files.shards().iter().enumerate().find_map(|(number, file)| {
                Some((number, file, file.tensors().iter().find(|info| info.name() == name)?))
            });
            let Some((number, file, info)) = found else {
                return Err(Error::invalid(format!("the file has no tensor `{name}` to stream")));
            };
            streaming.add(number, file, info, untied && name == TABLE)?;
        }
        Ok(streaming)
    }

    fn add(
        &mut self,
        number: usize,
        file: &Gguf,
        info: &TensorInfo,
        rows_only: bool,
    ) -> Result<()> {
        let [_, rows, matrices, rest] = info.dims();
        if matrices * rest != 1 || rows < 2 {
            let message = format!("`{}` cannot be streamed: it is not one matrix", info.name());
            return Err(Error::invalid(message));
        }
        let path = || file.path().unwrap_or_else(|| std::path::Path::new(""));
        let offset = file.file_offset(info).map_err(|error| gguf_error(error, path()))?;
        let size = info.n_bytes();
        let row_bytes = (size / rows) as usize;
        let form = Form::of(info, self.repack).filter(|_| !rows_only);
        let bytes = match &form {
            _ if rows_only => 0,
            Some(form) => form.bytes(),
            None => size as usize,
        };
        let layout = form.and_then(|form| form.layout());
        let repacked = form.is_some() && layout.is_none();
        let tensor = self.tensors.len() as u32;
        self.tensors.push(StreamTensor {
            name: info.name().to_owned(),
            file: number,
            offset,
            file_bytes: size,
            bytes,
            row_bytes,
            rows,
            group_rows: form.map_or(0, |form| form.group_rows()),
            packed: None,
            packer: form.map(|form| Arc::new(form) as _),
        });
        let file = number as u16;
        let place =
            StreamedTensor { tensor, layout, repacked, rows_only, row_bytes, file, offset, size };
        match self.places.insert(info.name().to_owned(), place) {
            Some(_) => Err(Error::invalid(format!("`{}` is to be streamed twice", info.name()))),
            None => Ok(()),
        }
    }

    /// Makes the stream, in the memory that was chosen.
    ///
    /// # Errors
    /// If the zone that was asked for does not hold the largest tensor, or the system gives no memory or no thread.
    pub(crate) fn start(self, chosen: &Streamed, options: &WeightStream) -> Result<StreamedModel> {
        // What the choice supposed may be a bit too little for the ends of reads.
        let least = || Stream::floor(&self.opened, &self.tensors, &options.config(u64::MAX));
        let zone = options.zone.asked().unwrap_or_else(|| chosen.zone.max(least()));
        let stream =
            Stream::new(self.opened, self.tensors, &options.config(zone)).map_err(error_of)?;
        Ok(StreamedModel { weights: StreamedWeights::new(stream, self.places) })
    }
}

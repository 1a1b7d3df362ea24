//! Setting up the streamed weights of a model that is about to be loaded.

use std::collections::HashMap;
#[cfg(feature = "tools")]
use std::path::Path;
use std::sync::Arc;

use smol_engine::io::{DirectFile, ReadAt};
use smol_engine::stream::{Packer, Stream, StreamTensor};
use smol_gguf::{Gguf, TensorInfo};

use crate::error::{Error, Result};
#[cfg(feature = "tools")]
use crate::expert_pager::has_experts;
use crate::ffi::kernels::RawLayout;
use crate::ffi::pager::layout_of;
use crate::ffi::stream::{StreamedTensor, StreamedWeights, error_of};
use crate::files::{ModelFiles, gguf_error};
#[cfg(feature = "tools")]
use crate::guard::Guard;
#[cfg(feature = "tools")]
use crate::model_builder::start_stream;
#[cfg(feature = "tools")]
use crate::placement::{Placement, Wishes, decide};
#[cfg(feature = "tools")]
use crate::plan::PlannedContext;
use crate::weight_stream::WeightStream;

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

/// Streams the model at `path` when upstream's code loads it, on this thread. `None`: it is a mixture, which is for the pager.
#[cfg(feature = "tools")]
pub(crate) fn stream_for_upstream(
    path: &Path,
    options: &crate::EngineOptions,
) -> Result<Option<Arc<Stream>>> {
    let files = ModelFiles::open(path)?;
    let metadata = files.metadata().clone();
    let Some(stream) = options.stream.clone() else { return Ok(None) };
    if has_experts(&metadata) {
        return Ok(None);
    }
    let wishes = Wishes {
        ram: None,
        planned: PlannedContext::default(),
        pager: None,
        stream: Some(&stream),
        may_stream: false,
    };
    let decision = decide(&files, &metadata, None, wishes)?;
    let Placement::Streamed(chosen) = decision.placement else { return Ok(None) };
    start_stream(&files, Some(stream.clone()), &chosen)?.keep().map(Some)
}

/// The tensors of a model that are to be streamed, in the form in which kernels will read them.
pub(crate) struct Streaming {
    opened: Vec<Arc<dyn ReadAt>>,
    tensors: Vec<StreamTensor>,
    places: HashMap<String, StreamedTensor>,
}

impl Streaming {
    /// Opens the files, and lays the tensors of these names out as this thread has
    /// [chosen](crate::ffi::layouts::choose). A table of embeddings that is no head is only read by row.
    ///
    /// # Errors
    /// If there is no such tensor, it is not one matrix, or a file cannot be opened.
    pub(crate) fn new<S: AsRef<str>>(
        files: &ModelFiles,
        names: &[S],
        options: &WeightStream,
    ) -> Result<Self> {
        let opened = DirectFile::open_all(files.paths(), options.io);
        let opened = opened.map_err(|error| error_of(error.into()))?;
        let untied = files.shards().tensor(HEAD).is_some();
        let mut streaming = Self { opened, tensors: Vec::new(), places: HashMap::new() };
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
        let [columns, rows, matrices, rest] = info.dims();
        if matrices * rest != 1 || rows < 2 {
            let message = format!("`{}` cannot be streamed: it is not one matrix", info.name());
            return Err(Error::invalid(message));
        }
        let path = || file.path().unwrap_or_else(|| std::path::Path::new(""));
        let offset = file.file_offset(info).map_err(|error| gguf_error(error, path()))?;
        let size = info.n_bytes();
        let row_bytes = (size / rows) as usize;
        let layout = if rows_only { None } else { layout_of(info.ty().id(), columns) };
        let form = layout.map(|layout| Form { layout, columns: columns as usize, row_bytes });
        let bytes = match &form {
            _ if rows_only => 0,
            Some(form) => form.layout.packed_bytes(form.columns, rows as usize),
            None => size as usize,
        };
        let tensor = self.tensors.len() as u32;
        self.tensors.push(StreamTensor {
            name: info.name().to_owned(),
            file: number,
            offset,
            file_bytes: size,
            bytes,
            row_bytes,
            rows,
            group_rows: layout.map_or(0, RawLayout::rows),
            packer: form.map(|form| Arc::new(form) as _),
        });
        let file = number as u16;
        let place = StreamedTensor { tensor, layout, rows_only, row_bytes, file, offset, size };
        match self.places.insert(info.name().to_owned(), place) {
            Some(_) => Err(Error::invalid(format!("`{}` is to be streamed twice", info.name()))),
            None => Ok(()),
        }
    }

    /// The least zone for these tensors.
    pub(crate) fn least_zone(&self, options: &WeightStream) -> u64 {
        Stream::floor(&self.opened, &self.tensors, &options.config(u64::MAX))
    }

    /// Makes the stream. `zone`: bytes of memory for it.
    ///
    /// # Errors
    /// If the zone does not hold the largest tensor, or the system gives no memory or no thread.
    pub(crate) fn start(self, zone: u64, options: &WeightStream) -> Result<StreamedModel> {
        let stream =
            Stream::new(self.opened, self.tensors, &options.config(zone)).map_err(error_of)?;
        Ok(StreamedModel { weights: StreamedWeights::new(stream, self.places) })
    }
}

/// How a matrix is packed, any whole groups of its rows at a time.
struct Form {
    layout: RawLayout,
    columns: usize,
    /// Bytes of a plain row.
    row_bytes: usize,
}

impl Packer for Form {
    fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        self.layout.pack_into(self.columns, plain, self.row_bytes, packed);
    }
}

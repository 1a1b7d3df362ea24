//! Setting up the streamed weights of a model that is about to be loaded.

mod choice;

use std::collections::HashMap;
use std::sync::Arc;

use smol_engine::io::{DirectFile, ReadAt};
use smol_engine::stream::{Packer, Stream, StreamTensor};
use smol_gguf::{Gguf, TensorInfo};

pub(crate) use choice::choose;

use crate::error::{Error, Result};
use crate::ffi::kernels::RawLayout;
use crate::ffi::pager::layout_of;
use crate::ffi::stream::{StreamedTensor, StreamedWeights, error_of};
use crate::files::{ModelFiles, gguf_error};
use crate::weight_stream::WeightStream;

/// Name of the table of embeddings, and of a head of its own.
const TABLE: &str = "token_embd.weight";
const HEAD: &str = "output.weight";

/// The zone is no smaller by default: reads of flash are fast only when many go on.
const GOOD_ZONE: u64 = 32 << 20;

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

    /// Bytes of the streamed tensors in the files.
    pub(crate) fn bytes(&self) -> u64 {
        self.stream().tensors().iter().map(|tensor| tensor.file_bytes).sum()
    }

    /// Streams the weights of the model that upstream's code loads on this thread, until the process ends.
    #[cfg(feature = "tools")]
    pub(crate) fn keep(self) -> Result<Arc<Stream>> {
        let kept: &'static Self = Box::leak(Box::new(self));
        kept.weights.keep()?;
        Ok(Arc::clone(kept.stream()))
    }
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
        let mut opened: Vec<Arc<dyn ReadAt>> = Vec::new();
        for path in files.paths() {
            let file =
                DirectFile::open_with(path, options.io).map_err(|error| error_of(error.into()))?;
            opened.push(Arc::new(file));
        }
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

    /// A good zone for these tensors: one is used while the next is read.
    fn good_zone(&self, options: &WeightStream) -> u64 {
        let bytes = |tensor: &StreamTensor| tensor.bytes as u64;
        let largest = self.tensors.iter().map(bytes).max().unwrap_or(0);
        let all: u64 = self.tensors.iter().map(bytes).sum();
        let floor = Stream::floor(&self.opened, &self.tensors, &options.config(u64::MAX));
        // What the floor has beside a matrix is for the ends of reads and the readers' buffers.
        let extra = floor.saturating_sub(largest);
        (2 * largest).max(GOOD_ZONE).min(all).saturating_add(extra).max(floor)
    }

    /// Makes the stream. `zone`: bytes of memory for it; `None`: as is good.
    ///
    /// # Errors
    /// If the zone does not hold the largest tensor, or the system gives no memory or no thread.
    pub(crate) fn start(self, zone: Option<u64>, options: &WeightStream) -> Result<StreamedModel> {
        let zone = zone.unwrap_or_else(|| self.good_zone(options));
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

//! What listens to the routing of a paged model: the prediction of experts, and the recording of a trace.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smol_engine::expert::predict::Predictor;
use smol_engine::expert::trace::{self, LayerHeader, TraceHeader, TraceWriter};
use smol_engine::expert::{ExpertLayer, Pager};

use crate::error::{Error, ErrorKind, Result};
use crate::ffi::pager::Watcher;

/// Reads experts ahead.
pub(super) struct Prediction(pub(super) Predictor);

impl Watcher for Prediction {
    fn hidden(&self, layer: usize, x: &[f32]) {
        self.0.hidden(layer, x);
    }
}

/// Writes a trace.
pub(super) struct Recorder {
    writer: Arc<TraceWriter>,
    pager: Arc<Pager>,
    /// What all graphs so far have waited.
    waited: Mutex<Duration>,
}

impl Recorder {
    pub(super) fn create(
        path: &Path,
        model: &str,
        layers: &[ExpertLayer],
        pager: Arc<Pager>,
    ) -> Result<Self> {
        let header =
            TraceHeader { model: model.to_owned(), layers: layers.iter().map(of).collect() };
        let writer =
            TraceWriter::create(path, &header).map_err(|error| trace_error(error, path))?;
        let writer = Arc::new(writer);
        let reads = Arc::clone(&writer);
        pager.watch_reads(move |read| {
            reads.read(read.layer, read.expert, read.started, read.took, read.bytes);
        });
        Ok(Self { writer, pager, waited: Mutex::default() })
    }
}

fn of(layer: &ExpertLayer) -> LayerHeader {
    let size = |tensor: &smol_engine::expert::ExpertTensor| trace::TensorSize {
        file: tensor.stride,
        memory: tensor.bytes as u64,
    };
    LayerHeader {
        block: layer.block,
        experts: layer.experts,
        used: layer.used,
        tensors: layer.tensors.iter().map(size).collect(),
    }
}

/// The error of this crate for one of a trace.
pub(super) fn trace_error(error: trace::Error, path: &Path) -> Error {
    let (kind, reason) = match &error {
        trace::Error::Io { source, .. } => (ErrorKind::Io(source.kind()), format!(": {source}")),
        _ => (ErrorKind::InvalidArgument, String::new()),
    };
    let text = error.to_string();
    // The error of this crate shows the path itself.
    let message = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text);
    Error::new(kind, format!("{message}{reason}")).with_path(path).with_source(error)
}

impl Watcher for Recorder {
    fn chosen(&self, run: usize, layer: usize, used: usize, ids: &[i32]) {
        // A token without some of its experts is none that a pager could learn from.
        if ids.iter().all(|id| *id >= 0) {
            self.writer.choose(run, layer, used, ids);
        }
    }

    fn ended(&self, run: usize) {
        let statistics = self.pager.statistics();
        let waited = statistics.wait_ms_per_token / 1e3 * statistics.tokens as f64;
        let waited = Duration::try_from_secs_f64(waited).unwrap_or_default();
        let before = std::mem::replace(
            &mut *self.waited.lock().unwrap_or_else(PoisonError::into_inner),
            waited,
        );
        self.writer.end(run, waited.saturating_sub(before));
    }
}

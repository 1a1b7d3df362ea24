//! Engines in effect: what [`EngineOptions::install`](crate::EngineOptions::install) set up.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use smol_engine::expert::Pager;
use smol_engine::stream::Stream;

use crate::error::{Error, ErrorKind, Result};
use crate::expert_pager::ExpertPager;
use crate::ffi::{self, call};
use crate::graph_report::GraphCounter;
use crate::layouts::LayoutOptions;
use crate::observe::{self, ObserverGuard};
use crate::options::{EngineOptions, LevelChoice, ReportTarget};
use crate::pack_cache::{PackCache, PackCacheStatistics};
use crate::weight_stream::WeightStream;

/// The layouts of models whose builder does not say.
static LAYOUTS: Mutex<Option<LayoutOptions>> = Mutex::new(None);

/// The pager of mixtures whose builder does not say.
static EXPERT_PAGER: Mutex<Option<ExpertPager>> = Mutex::new(None);

/// The cache of packed weights of models whose builder does not say.
static PACK_CACHE: Mutex<Option<PackCache>> = Mutex::new(None);

pub(crate) fn pack_cache() -> Option<PackCache> {
    PACK_CACHE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The streaming of models whose builder does not say.
static WEIGHT_STREAM: Mutex<Option<WeightStream>> = Mutex::new(None);

pub(crate) fn weight_stream() -> Option<WeightStream> {
    WEIGHT_STREAM.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn expert_pager() -> Option<ExpertPager> {
    EXPERT_PAGER.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

pub(crate) fn layouts() -> LayoutOptions {
    LAYOUTS.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
}

/// The engines of a process, in effect until this is dropped.
///
/// Dropping writes the report that was asked for, and logs if that fails; [`Engines::finish`] returns the error.
#[must_use = "the engines are taken out when this is dropped"]
pub struct Engines {
    report: Option<Report>,
    /// Those of the model that upstream's code loads.
    pager: Option<Arc<Pager>>,
    stream: Option<Arc<Stream>>,
    cache: Option<PackCacheStatistics>,
}

/// A report that is being gathered.
struct Report {
    counter: Arc<GraphCounter>,
    sink: Sink,
    observer: ObserverGuard,
}

/// Where a report goes.
enum Sink {
    StandardError,
    File(File, PathBuf),
}

impl Engines {
    pub(crate) fn install(options: &EngineOptions) -> Result<Self> {
        if let LevelChoice::Level(level) = options.cpu.level {
            // First the check: a CPU that can't run the build is another error than a level that can't be chosen.
            ggml_sys::cpu::check().map_err(|e| Error::new(ErrorKind::Cpu, e.to_string()))?;
            ggml_sys::cpu::select(level.name)
                .map_err(|e| Error::new(ErrorKind::Config, format!("cpu.level: {e}")))?;
        }
        call::init()?;
        // For a model that upstream's code loads, on this thread; those of a ModelBuilder ask for the default.
        ffi::layouts::choose(&options.layouts)
            .map_err(|e| Error::new(ErrorKind::Config, format!("layouts: {}", e.message())))?;
        *LAYOUTS.lock().unwrap_or_else(PoisonError::into_inner) = Some(options.layouts.clone());
        *EXPERT_PAGER.lock().unwrap_or_else(PoisonError::into_inner) = options.pager.clone();
        *WEIGHT_STREAM.lock().unwrap_or_else(PoisonError::into_inner) = options.stream.clone();
        *PACK_CACHE.lock().unwrap_or_else(PoisonError::into_inner) = options.pack_cache.clone();
        let wanted = &options.observe;
        let report = match &wanted.report {
            Some(target) => {
                let sink = Sink::open(target)?;
                let counter = Arc::new(GraphCounter::new(wanted.ops.as_deref()));
                let observer = observe::observe(counter.clone())?;
                Some(Report { counter, sink, observer })
            }
            None => None,
        };
        Ok(Self { report, pager: None, stream: None, cache: None })
    }

    /// Adds a pager to the report.
    #[cfg(feature = "tools")]
    pub(crate) fn set_pager(&mut self, pager: Option<Arc<Pager>>) {
        self.pager = pager;
    }

    /// Adds streamed weights to the report.
    #[cfg(feature = "tools")]
    pub(crate) fn set_stream(&mut self, stream: Option<Arc<Stream>>) {
        self.stream = stream;
    }

    /// Adds a cache of packed weights to the report.
    #[cfg(feature = "tools")]
    pub(crate) fn set_cache(&mut self, cache: Option<PackCacheStatistics>) {
        self.cache = cache;
    }

    /// Takes the engines out and writes the report.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the report can't be written.
    pub fn finish(mut self) -> Result<()> {
        self.take_out()
    }

    fn take_out(&mut self) -> Result<()> {
        let Some(report) = self.report.take() else { return Ok(()) };
        let text = self.json(&report);
        drop(report.observer);
        report.sink.write(&text)
    }

    fn json(&self, report: &Report) -> serde_json::Value {
        let mut json = report.counter.json();
        if let Some(pager) = &self.pager {
            json["pager"] = serde_json::json!(pager.statistics());
        }
        if let Some(stream) = &self.stream {
            json["stream"] = serde_json::json!(stream.statistics());
        }
        if let Some(cache) = &self.cache {
            json["cache"] = serde_json::json!(cache);
        }
        json
    }

    /// Writes the report without taking anything out: the process is ending, and other threads may still compute.
    #[cfg(feature = "tools")]
    pub(crate) fn finish_at_exit(mut self) -> Result<()> {
        let Some(report) = self.report.take() else { return Ok(()) };
        let text = self.json(&report);
        std::mem::forget(report.observer);
        report.sink.write(&text)
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        if let Err(error) = self.take_out() {
            tracing::error!("{error}");
        }
    }
}

impl fmt::Debug for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counter = self.report.as_ref().map(|report| &report.counter);
        f.debug_struct("Engines").field("report", &counter).finish()
    }
}

impl Sink {
    /// Opens the file now: a path that can't be written should fail before the work, not after it.
    fn open(target: &ReportTarget) -> Result<Self> {
        match target {
            ReportTarget::StandardError => Ok(Self::StandardError),
            ReportTarget::File(path) => match File::create(path) {
                Ok(file) => Ok(Self::File(file, path.clone())),
                Err(e) => Err(Error::io(e, "observe.report: cannot be created", Some(path))),
            },
        }
    }

    fn write(self, report: &serde_json::Value) -> Result<()> {
        let text = format!("{report:#}\n");
        match self {
            Self::StandardError => io::stderr()
                .write_all(text.as_bytes())
                .map_err(|e| Error::io(e, "observe.report: standard error", None)),
            Self::File(mut file, path) => file
                .write_all(text.as_bytes())
                .map_err(|e| Error::io(e, "observe.report: cannot be written", Some(&path))),
        }
    }
}

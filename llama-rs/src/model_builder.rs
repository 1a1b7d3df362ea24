//! Settings of loading a model.

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use smol_engine::machine::Memory;
use smol_gguf::{Depth, Metadata, Value};

use crate::cancel::CancelToken;
use crate::context_builder::DEFAULT_N_BATCH;
use crate::engines;
use crate::error::{Error, ErrorKind, Result};
use crate::expert_pager::{self, ExpertPager};
use crate::experts::RoutedExperts;
use crate::experts_used::experts_override;
use crate::ffi::mapping::MappingGuard;
use crate::ffi::model::{LoadRequest, ProgressFn, RawLoadMode, RawModel, RawOverride};
use crate::ffi::{self, call};
use crate::files::{FileState, ModelFiles, gguf_error};
use crate::guard::{Guard, Relieve};
use crate::kernels;
use crate::layouts::LayoutOptions;
use crate::memory::human;
use crate::model::{Inner, Model, files_lost};
use crate::pack_cache::{CachedWeights, Kind, Mapped, ModelCache, PackCache, PackCacheStatistics};
use crate::paging::{PagedModel, Paging};
use crate::placement::{self, Decision, Placement, Wishes};
use crate::plan::{self, MemoryPlan, PlannedContext};
use crate::streaming::{self, StreamedModel};
use crate::weight_stream::{self, WeightStream};

/// How weights get into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LoadMode {
    /// Read, if the weights fit into the available memory with room to spare. Otherwise the experts of a mixture are paged
    /// ([`ExpertPager`]), and the file of another model is mapped, unless [`ram`](ModelBuilder::ram) lets its weights be
    /// streamed. What a [cache](ModelBuilder::pack_cache) has is mapped from there, and the rest from the model's file.
    #[default]
    Auto,
    /// Read into memory of the process. Nothing that happens to the file afterwards has an effect.
    Read,
    /// Map the file: the system reads pages when they are used and drops them when memory is short.
    ///
    /// If the file is shortened while the model lives, each further decode returns an error. On Linux and Android that
    /// holds in the middle of a decode too, by a handler of SIGBUS that lets all other faults pass; elsewhere such a
    /// decode ends the process, as with every memory map.
    Mmap,
    /// Map the file and keep its pages in memory.
    Mlock,
    /// Read past the system's page cache where the file system can do that.
    DirectIo,
}

/// A value that takes the place of one in the file's metadata.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum MetadataOverride {
    /// A whole number, whatever its width in the file.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A text of at most 127 bytes.
    Text(String),
}

/// Settings of loading a model, from [`Model::builder`]. Values are checked by [`load`](Self::load).
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use std::ops::ControlFlow;
/// use llama_rs::{CancelToken, Model};
///
/// let cancel = CancelToken::new();
/// let model = Model::builder("model.gguf")
///     .on_progress(|fraction| {
///         println!("{:.0} %", fraction * 100.0);
///         ControlFlow::Continue(())
///     })
///     .cancel(&cancel)
///     .load()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until load() is called"]
pub struct ModelBuilder {
    path: PathBuf,
    mode: LoadMode,
    repack: bool,
    check_tensors: bool,
    layouts: Option<LayoutOptions>,
    overrides: Vec<(String, MetadataOverride)>,
    progress: Option<ProgressFn>,
    cancel: Option<CancelToken>,
    expert_pager: Option<ExpertPager>,
    weight_stream: Option<WeightStream>,
    readers: Option<usize>,
    ram: Option<u64>,
    planned: PlannedContext,
    experts_used: Option<u32>,
    record_experts: Option<PathBuf>,
    pack_cache: Option<PackCache>,
}

/// What is known of a model before it is decided how it is loaded.
struct Prepared {
    files: ModelFiles,
    /// With the overrides.
    metadata: Metadata,
    pager: Option<ExpertPager>,
    stream: Option<WeightStream>,
    /// The experts that may be paged.
    routed: Option<RoutedExperts>,
    layouts: LayoutOptions,
    available: Option<u64>,
}

impl ModelBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            mode: LoadMode::Auto,
            repack: true,
            check_tensors: false,
            layouts: None,
            overrides: Vec::new(),
            progress: None,
            cancel: None,
            expert_pager: None,
            weight_stream: None,
            readers: None,
            ram: None,
            planned: PlannedContext::default(),
            experts_used: None,
            record_experts: None,
            pack_cache: None,
        }
    }

    /// Reads the experts of a mixture from the file when they are needed, instead of keeping all in memory; by default
    /// what [`EngineOptions`](crate::EngineOptions) have. Loading a model without experts fails then.
    pub fn expert_pager(mut self, pager: ExpertPager) -> Self {
        self.expert_pager = Some(pager);
        self
    }

    /// Reads weights from the file each time they are used, instead of keeping all in memory; by default what
    /// [`EngineOptions`](crate::EngineOptions) have. Routed experts stay in memory then, whatever the pager's options are.
    pub fn weight_stream(mut self, stream: WeightStream) -> Self {
        self.weight_stream = Some(stream);
        self
    }

    /// Sets the threads that read weights where [`ram`](Self::ram) has no room for all of them, 1 to 64; by default up to 4.
    /// The readers of an [`expert_pager`](Self::expert_pager) or [`weight_stream`](Self::weight_stream) come first.
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = Some(readers);
        self
    }

    /// Sets the bytes of RAM that this process may fill, with weights, a context and all else.
    ///
    /// Where a mixture of experts does not fit, its experts are paged ([`expert_pager`](Self::expert_pager)); of another
    /// model the matrices that do not fit are streamed ([`weight_stream`](Self::weight_stream)). If even that takes more, the
    /// load fails with every number. Files that are to be mapped ([`LoadMode::Mmap`]) are mapped, whatever their size. Of
    /// more RAM than there is, only that is used. The context counts as [`planned_context`](Self::planned_context) says;
    /// [`plan`](Self::plan) tells what would happen.
    ///
    /// # Examples
    /// ```no_run
    /// # fn main() -> llama_rs::Result<()> {
    /// use llama_rs::Model;
    /// use llama_rs::plan::PlannedContext;
    ///
    /// // One context of 2048 tokens, and 900 MiB for everything.
    /// let planned = PlannedContext { n_ctx: Some(2048), ..PlannedContext::default() };
    /// let model = Model::builder("model.gguf").ram(900 << 20).planned_context(planned).load()?;
    /// let context = model.context().n_ctx(2048).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ram(mut self, bytes: u64) -> Self {
        self.ram = Some(bytes);
        self
    }

    /// Sets the context for which [`ram`](Self::ram) leaves room.
    pub fn planned_context(mut self, context: PlannedContext) -> Self {
        self.planned = context;
        self
    }

    /// Sets how many experts each token uses, at most as many as the file says. Fewer are faster and worse.
    pub fn experts_used(mut self, experts: u32) -> Self {
        self.experts_used = Some(experts);
        self
    }

    /// Records which experts the model chooses, and how long their reads take, into a file, which is created or replaced.
    /// The model is paged for that, with the default settings if nothing else was said.
    pub fn record_experts(mut self, path: impl Into<PathBuf>) -> Self {
        self.record_experts = Some(path.into());
        self
    }

    /// Keeps packed weights in a folder, so that the next load maps them; by default what
    /// [`EngineOptions`](crate::EngineOptions) have. See [`PackCache`], which the path of a folder becomes.
    ///
    /// A load that checks all weights ([`check_tensors`](Self::check_tensors)) does without.
    pub fn pack_cache(mut self, cache: impl Into<PackCache>) -> Self {
        self.pack_cache = Some(cache.into());
        self
    }

    /// Sets which matrices are packed and how; the default is what [`EngineOptions`](crate::EngineOptions) have, or
    /// the fastest exact layout for each type.
    pub fn layouts(mut self, layouts: LayoutOptions) -> Self {
        self.layouts = Some(layouts);
        self
    }

    /// Sets how weights get into memory.
    pub fn load_mode(mut self, mode: LoadMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets whether weights are rearranged for the CPU's vector instructions where there is a layout for them, by
    /// default true.
    pub fn repack(mut self, repack: bool) -> Self {
        self.repack = repack;
        self
    }

    /// Sets whether all weights are checked to be finite numbers, which reads the whole file, by default false.
    pub fn check_tensors(mut self, check: bool) -> Self {
        self.check_tensors = check;
        self
    }

    /// Replaces a value of the file's metadata. The model is checked with the new value.
    pub fn override_metadata(mut self, key: impl Into<String>, value: MetadataOverride) -> Self {
        self.overrides.push((key.into(), value));
        self
    }

    /// Calls a function with the fraction that is loaded, on the loading thread; it may stop loading.
    ///
    /// A panic of the function is contained and becomes an error.
    pub fn on_progress(
        mut self,
        progress: impl FnMut(f32) -> ControlFlow<()> + Send + 'static,
    ) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Sets a token that stops loading.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.cancel = Some(token.clone());
        self
    }

    /// Loads the model.
    ///
    /// The files are checked first: whatever would make llama.cpp abort or compute garbage is refused.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Gguf`], [`ErrorKind::MissingShards`] about the files;
    /// [`ErrorKind::InvalidArgument`] for overrides; [`ErrorKind::Cancelled`]; [`ErrorKind::CallbackPanicked`];
    /// [`ErrorKind::OutOfMemory`]; [`ErrorKind::FileChanged`]; [`ErrorKind::Cpu`]; [`ErrorKind::Load`] otherwise.
    pub fn load(self) -> Result<Model> {
        let path = self.path.clone();
        self.load_unplaced().map_err(|error| error.or_path(path))
    }

    /// Tells how the model would run, by the code that decides about it at [`load`](Self::load), without loading it.
    ///
    /// # Errors
    /// As [`load`](Self::load), up to where llama.cpp opens the files: [`ErrorKind::OutOfMemory`] if the model does not
    /// fit into the [RAM](Self::ram), with the numbers.
    pub fn plan(mut self) -> Result<MemoryPlan> {
        let path = self.path.clone();
        let plan = self.prepare().and_then(|prepared| self.plan_of(&prepared));
        plan.map_err(|error| error.or_path(path))
    }

    fn plan_of(&self, prepared: &Prepared) -> Result<MemoryPlan> {
        let Prepared { files, metadata, .. } = prepared;
        let decision = self.decide(prepared, self.planned)?;
        let mode = self.mode_of(prepared, &decision.placement)?;
        let mapped = matches!(mode, RawLoadMode::Mmap | RawLoadMode::Mlock);
        let estimate = placement::context_estimate(files, metadata, self.planned);
        let mut plan = decision.plan(mapped, &estimate);
        plan.n_ubatch = plan.n_ubatch.min(self.planned.n_batch.unwrap_or(DEFAULT_N_BATCH));
        let read = |planned| {
            let (_, read, _) = self.decide(prepared, planned).ok()?.outline(mapped);
            Some(read as f64 / 1e6)
        };
        let weights = &decision.needs.weights;
        plan.advice = plan::advice(&plan, self.planned, metadata, weights, &read);
        Ok(plan)
    }

    /// Opens and checks the files, and settles what depends on them.
    fn prepare(&mut self) -> Result<Prepared> {
        self.check_cancelled()?;
        call::init()?;
        let files = ModelFiles::open(&self.path)?;
        self.check_cancelled()?;
        let readers = self.readers.map_or(Ok(0), expert_pager::checked_readers);
        readers.map_err(|fault| Error::invalid(format!("readers {fault}")))?;
        let record = self.record_experts.is_some();
        let pager = expert_pager::wanted(self.expert_pager.as_ref(), record, files.metadata())?;
        let paging_asked = self.expert_pager.is_some() || record;
        let stream =
            weight_stream::wanted(self.weight_stream.as_ref(), paging_asked, files.metadata())?;
        let pager = pager.filter(|_| stream.is_none());
        let experts_used = self.experts_used.or(pager.as_ref().and_then(|pager| pager.experts));
        if let Some(used) = experts_used {
            self.overrides.push(experts_override(files.metadata(), used)?);
        }
        let metadata = overridden(files.metadata(), &self.overrides)?;
        check(&files, (!self.overrides.is_empty()).then_some(&metadata), &self.path)?;
        self.check_cancelled()?;
        let available = Memory::probe().usable();
        let routed = RoutedExperts::find(files.shards(), &metadata)?;
        // Experts that don't fit are paged rather than mapped, where that can be done.
        let too_large = self.mode == LoadMode::Auto && !fits(files.len(), available);
        let may_page =
            pager.is_some() || self.ram.is_some() || (too_large && ffi::pager::can_page());
        let routed = routed.filter(|_| may_page && stream.is_none());
        let mut layouts = self.layouts.clone().unwrap_or_else(engines::layouts);
        layouts.enabled &= self.repack;
        if layouts.enabled
            && let Some(file) = &layouts.measured
        {
            let types = files.shards().tensors().map(|(_, tensor)| tensor.ty()).collect();
            let mut slower = kernels::slower_than_stock(file, &types)?;
            slower.retain(|name| !layouts.prefer.contains(name));
            layouts.avoid.append(&mut slower);
        }
        ffi::layouts::choose(&layouts)?;
        Ok(Prepared { files, metadata, pager, stream, routed, layouts, available })
    }

    /// Decides where the weights are to be.
    fn decide(&self, prepared: &Prepared, planned: PlannedContext) -> Result<Decision> {
        let Prepared { files, metadata, pager, stream, routed, .. } = prepared;
        let mapped = matches!(self.mode, LoadMode::Mmap | LoadMode::Mlock);
        // What is mapped takes no memory that anything else could need.
        let free = self.mode == LoadMode::Mmap && routed.is_none() && stream.is_none();
        let wishes = Wishes {
            ram: self.ram.filter(|_| !free),
            planned,
            pager: pager.as_ref(),
            stream: stream.as_ref(),
            readers: self.readers,
            may_stream: self.ram.is_some() && !mapped && ffi::pager::can_page(),
            cached: self.packs_into(&prepared.layouts, self.repack).is_some(),
        };
        placement::decide(files, metadata, routed.as_ref(), wishes)
    }

    /// How llama.cpp reads what it keeps in memory itself.
    fn mode_of(&self, prepared: &Prepared, placement: &Placement) -> Result<RawLoadMode> {
        let elsewhere = match placement {
            Placement::Whole => None,
            Placement::Paged(_) => prepared.routed.as_ref().map(|routed| routed.bytes),
            Placement::Streamed(streamed) => Some(streamed.file_bytes),
        };
        let bytes = prepared.files.len().saturating_sub(elsewhere.unwrap_or(0));
        self.effective_mode(bytes, prepared.available, elsewhere.is_some())
    }

    fn load_unplaced(mut self) -> Result<Model> {
        let prepared = self.prepare()?;
        let Decision { placement, n_ubatch, needs, .. } = self.decide(&prepared, self.planned)?;
        let mode = self.mode_of(&prepared, &placement)?;
        let Prepared { files, metadata, pager, stream, routed, mut layouts, available } = prepared;
        let fingerprint = files.fingerprint()?;
        let cache = self.cache(Kind::Experts, &files, fingerprint, &layouts, self.repack);
        let paged = match (&routed, &placement) {
            (Some(routed), Placement::Paged(budget)) => {
                let paging = (&files, &metadata, routed);
                Some(self.page(paging, pager.as_ref(), *budget, cache.as_ref())?)
            }
            _ => None,
        };
        self.check_cancelled()?;
        let (paged, cached_experts) = paged.unzip();
        let cached_experts = cached_experts.flatten();
        // A packed copy of what is mapped because it does not fit would not fit either.
        let copies = self.mode != LoadMode::Auto || mode != RawLoadMode::Mmap;
        layouts.enabled &= copies;
        let repack = copies && self.repack;
        let cache = self.cache(Kind::Weights, &files, fingerprint, &layouts, repack);
        let stream = stream.unwrap_or_else(|| WeightStream::read_by(self.readers));
        let streamed = match &placement {
            Placement::Streamed(chosen) => {
                let matrices = &needs.weights.matrices;
                let cache = (cache.as_ref(), self.repack);
                let cancel = self.cancel.as_ref();
                Some(streaming::set_up(&files, &stream, chosen, matrices, cache, cancel)?)
            }
            _ => None,
        };
        self.check_cancelled()?;
        let (streamed, cached_streamed) = streamed.unzip();
        let guard = self.guard(paged.as_ref(), streamed.as_ref())?;
        // What was chosen to stay in memory is read, and so is everything for those who asked for that.
        let whole = matches!(placement, Placement::Whole);
        let map_plain = whole && self.mode == LoadMode::Auto && mode == RawLoadMode::Read;
        let mapped =
            Mapped { plain: map_plain.then_some(&files), whole: streamed.is_none(), available };
        let mut cached = cache.map(|cache| CachedWeights::open(cache, cached_experts, &mapped));
        if let Some(cached) = &mut cached {
            cached.note_streamed(cached_streamed.flatten());
        }
        let mapped = matches!(mode, RawLoadMode::Mmap | RawLoadMode::Mlock);
        let mapping = mapped.then(|| Arc::new(MappingGuard::new(files.paths())));
        let guarded = mapping.clone();
        let request = LoadRequest {
            paths: files.c_paths()?,
            mode,
            use_extra_bufts: repack,
            check_tensors: self.check_tensors,
            layouts,
            overrides: self.overrides.into_iter().map(|(key, value)| (key, value.into())).collect(),
            progress: self.progress,
            cancel: self.cancel.clone(),
            before_reading: guarded.map(|mapping| Box::new(move || mapping.refresh()) as _),
        };
        let load = || match &cached {
            Some(cached) => cached.during_load(|| RawModel::load(request)),
            None => RawModel::load(request).map(|raw| (raw, Vec::new())),
        };
        let (raw, packed) = match (&paged, &streamed) {
            (Some(paged), _) => paged.during_load(load)?,
            (None, Some(streamed)) => streamed.during_load(load)?,
            (None, None) => load()?,
        };
        let layouts = ffi::layouts::of_last_load();
        let n_tensors = files.shards().tensors().count();
        let files = files.into_states();
        files.iter().try_for_each(FileState::check_unchanged)?;
        if let Some(cached) = &mut cached {
            cached.keep(&raw, packed, self.cancel.as_ref());
            cached.check_unchanged(&files)?;
            if self.cancel.as_ref().is_some_and(CancelToken::is_cancelled) {
                return Err(Error::cancelled("loading the model"));
            }
        }
        if let Some(mapping) = &mapping {
            // llama.cpp has unmapped what it doesn't need.
            mapping.refresh();
            if mapping.was_hit() {
                return Err(files_lost(&self.path));
            }
        }
        Ok(Model::new(Inner {
            mapping,
            raw,
            path: self.path,
            metadata,
            n_tensors,
            n_ubatch,
            layouts,
            paged,
            streamed,
            cached,
            guard,
            files,
            fingerprint,
            #[cfg(feature = "json-schema")]
            schema_vocabulary: std::sync::OnceLock::new(),
        }))
    }

    /// Watches memory for a model that has some to give back, or whose memory was planned.
    fn guard(
        &self,
        paged: Option<&PagedModel>,
        streamed: Option<&StreamedModel>,
    ) -> Result<Option<Guard>> {
        let pager = paged.map(|paged| Arc::downgrade(paged.pager()) as Weak<dyn Relieve>);
        let stream = streamed.map(|streamed| Arc::downgrade(streamed.stream()) as _);
        let relieved: Vec<_> = pager.into_iter().chain(stream).collect();
        let watched = self.ram.is_some() || !relieved.is_empty();
        watched.then(|| Guard::watch(relieved)).transpose()
    }

    /// Sets up the pager with a budget in bytes.
    fn page(
        &self,
        (files, metadata, routed): (&ModelFiles, &Metadata, &RoutedExperts),
        pager: Option<&ExpertPager>,
        budget: u64,
        cache: Option<&ModelCache>,
    ) -> Result<(PagedModel, Option<PackCacheStatistics>)> {
        let io = pager.map(|pager| pager.io).unwrap_or_default();
        let mut paging = Paging::new(files, metadata, routed, io)?;
        let cached = cache.and_then(|cache| paging.use_cache(cache, io, self.cancel.as_ref()));
        let record = self.record_experts.as_deref();
        if let Some(record) = record
            && files.paths().iter().any(|file| smol_gguf::is_same_file(file, record))
        {
            let message = "experts can't be recorded into the model's own file; choose another one";
            return Err(Error::invalid(message).with_path(record));
        }
        let pager = pager.cloned().unwrap_or_else(|| ExpertPager::read_by(self.readers));
        let paged = paging.start(&pager, budget, record)?;
        Ok((paged, cached))
    }

    /// The cache of packed weights, if one was asked for and weights may come from there.
    fn cache(
        &self,
        kind: Kind,
        files: &ModelFiles,
        fingerprint: u128,
        layouts: &LayoutOptions,
        repack: bool,
    ) -> Option<ModelCache> {
        let cache = self.packs_into(layouts, repack)?;
        Some(ModelCache::new(&cache, kind, files, fingerprint, layouts, repack))
    }

    /// The folder of the cache, in the same way.
    fn packs_into(&self, layouts: &LayoutOptions, repack: bool) -> Option<PackCache> {
        let cache = self.pack_cache.clone().or_else(engines::pack_cache)?;
        Some(cache).filter(|_| (repack || layouts.enabled) && !self.check_tensors)
    }

    fn check_cancelled(&self) -> Result<()> {
        match &self.cancel {
            Some(token) if token.is_cancelled() => Err(Error::cancelled("loading the model")),
            _ => Ok(()),
        }
    }

    /// What `Auto` means here; refuses what cannot fit.
    fn effective_mode(
        &self,
        bytes: u64,
        available: Option<u64>,
        partly: bool,
    ) -> Result<RawLoadMode> {
        let mode = match self.mode {
            LoadMode::Mmap | LoadMode::Mlock if partly => {
                let message = "weights that are paged or streamed are not mapped; load the model with LoadMode::Auto, \
                               Read or DirectIo";
                return Err(Error::invalid(message));
            }
            LoadMode::Auto if partly || fits(bytes, available) => RawLoadMode::Read,
            LoadMode::Auto | LoadMode::Mmap => RawLoadMode::Mmap,
            LoadMode::Read => RawLoadMode::Read,
            LoadMode::Mlock => RawLoadMode::Mlock,
            LoadMode::DirectIo => RawLoadMode::DirectIo,
        };
        let needs_all = matches!(mode, RawLoadMode::Read | RawLoadMode::DirectIo);
        match available {
            Some(available) if needs_all && bytes > available => Err(Error::new(
                ErrorKind::OutOfMemory { needed: Some(bytes), available: Some(available) },
                format!(
                    "the weights take {} but {} are available; map the file instead (LoadMode::Mmap)",
                    human(bytes),
                    human(available)
                ),
            )),
            _ => Ok(mode),
        }
    }
}

/// Whether weights of so many bytes leave room for the caches of a context and for the rest of the machine.
fn fits(bytes: u64, available: Option<u64>) -> bool {
    available.is_none_or(|available| bytes.saturating_add(bytes / 4) <= available)
}

/// Refuses files that llama.cpp must not see; `metadata` are those with overrides, if there are any.
fn check(files: &ModelFiles, metadata: Option<&Metadata>, path: &Path) -> Result<()> {
    let report = match metadata {
        None => smol_gguf::check_shards(files.shards(), Depth::Header),
        Some(metadata) => {
            let shards = files.shards().clone().with_metadata(metadata.clone());
            smol_gguf::check_shards(&shards, Depth::Header)
        }
    };
    let warnings = report.into_result().map_err(|error| gguf_error(error, path))?;
    for warning in warnings {
        // Other files are fine as such, but were not checked as models.
        if matches!(warning.error().kind(), smol_gguf::ErrorKind::NotLanguageModel { .. }) {
            return Err(gguf_error(warning.into_error(), path));
        }
        tracing::warn!(target: "llama.cpp", "{}", warning.error());
    }
    Ok(())
}

/// The metadata as llama.cpp will see it.
fn overridden(metadata: &Metadata, overrides: &[(String, MetadataOverride)]) -> Result<Metadata> {
    let mut metadata = metadata.clone();
    for (key, value) in overrides {
        let new = value.as_type_of(key, metadata.get(key))?;
        metadata.set(key.clone(), new);
    }
    Ok(metadata)
}

impl MetadataOverride {
    /// The value in the type that the file has, which is the type that llama.cpp asks for.
    fn as_type_of(&self, key: &str, old: Option<&Value>) -> Result<Value> {
        let refused = |why: &str| Error::invalid(format!("metadata override of {key}: {why}"));
        if matches!(old, Some(Value::Array(_))) {
            return Err(refused("the file has an array there, which cannot be overridden"));
        }
        match self {
            Self::Int(value) => {
                let out_of_range =
                    || refused(&format!("{value} does not fit the type in the file"));
                let fitted = match old {
                    None | Some(Value::U32(_)) => u32::try_from(*value).ok().map(Value::U32),
                    Some(Value::U8(_)) => u8::try_from(*value).ok().map(Value::U8),
                    Some(Value::I8(_)) => i8::try_from(*value).ok().map(Value::I8),
                    Some(Value::U16(_)) => u16::try_from(*value).ok().map(Value::U16),
                    Some(Value::I16(_)) => i16::try_from(*value).ok().map(Value::I16),
                    Some(Value::I32(_)) => i32::try_from(*value).ok().map(Value::I32),
                    Some(Value::U64(_)) => u64::try_from(*value).ok().map(Value::U64),
                    Some(Value::I64(_)) => Some(Value::I64(*value)),
                    Some(_) => return Err(refused("the file has no whole number there")),
                };
                fitted.ok_or_else(out_of_range)
            }
            Self::Float(value) if !value.is_finite() => Err(refused("the value is not finite")),
            Self::Float(value) => match old {
                None | Some(Value::F32(_)) => Ok(Value::F32(*value as f32)),
                Some(Value::F64(_)) => Ok(Value::F64(*value)),
                Some(_) => Err(refused("the file has no floating-point number there")),
            },
            Self::Bool(value) => match old {
                None | Some(Value::Bool(_)) => Ok(Value::Bool(*value)),
                Some(_) => Err(refused("the file has no boolean there")),
            },
            Self::Text(value) => match old {
                None | Some(Value::String(_)) => Ok(Value::from(value.as_str())),
                Some(_) => Err(refused("the file has no text there")),
            },
        }
    }
}

impl From<MetadataOverride> for RawOverride {
    fn from(value: MetadataOverride) -> Self {
        match value {
            MetadataOverride::Int(value) => Self::Int(value),
            MetadataOverride::Float(value) => Self::Float(value),
            MetadataOverride::Bool(value) => Self::Bool(value),
            MetadataOverride::Text(value) => Self::Text(value),
        }
    }
}

impl fmt::Debug for ModelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelBuilder")
            .field("path", &self.path)
            .field("mode", &self.mode)
            .field("repack", &self.repack)
            .field("check_tensors", &self.check_tensors)
            .field("layouts", &self.layouts)
            .field("overrides", &self.overrides)
            .field("expert_pager", &self.expert_pager)
            .field("ram", &self.ram)
            .field("planned", &self.planned)
            .field("experts_used", &self.experts_used)
            .field("record_experts", &self.record_experts)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smol_gguf::Array;

    #[test]
    fn overrides_take_the_type_of_the_file() {
        let mut metadata = Metadata::new();
        metadata.set("a", 3u16);
        metadata.set("b", 1.5f32);
        let apply = |key: &str, value| overridden(&metadata, &[(key.to_owned(), value)]);
        let done = apply("a", MetadataOverride::Int(7)).unwrap();
        assert_eq!(done.get("a"), Some(&Value::U16(7)));
        let done = apply("new", MetadataOverride::Int(7)).unwrap();
        assert_eq!(done.get("new"), Some(&Value::U32(7)));
        for (key, value) in [
            ("a", MetadataOverride::Int(70_000)),
            ("a", MetadataOverride::Bool(true)),
            ("b", MetadataOverride::Int(1)),
            ("b", MetadataOverride::Float(f64::NAN)),
            ("b", MetadataOverride::Text("x".into())),
        ] {
            assert_eq!(apply(key, value).unwrap_err().kind(), &ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn arrays_cannot_be_overridden() {
        let mut metadata = Metadata::new();
        metadata.set("a", Array::U32(vec![1, 2]));
        let overrides = [("a".to_owned(), MetadataOverride::Int(1))];
        assert!(overridden(&metadata, &overrides).is_err());
    }

    #[test]
    fn automatic_mode_reads_what_fits_and_maps_the_rest() {
        let builder = ModelBuilder::new(Path::new("model.gguf"));
        let mode = |available| builder.effective_mode(1000, available, false).unwrap();
        assert_eq!(mode(None), RawLoadMode::Read);
        assert_eq!(mode(Some(1250)), RawLoadMode::Read);
        assert_eq!(mode(Some(1249)), RawLoadMode::Mmap);
        let builder = builder.load_mode(LoadMode::Read);
        let error = builder.effective_mode(1000, Some(999), false).unwrap_err();
        let expected = ErrorKind::OutOfMemory { needed: Some(1000), available: Some(999) };
        assert_eq!(error.kind(), &expected);
    }
}

//! Setting up the pager of a model that is about to be loaded.

mod cached;
mod routers;
mod watchers;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use smol_engine::expert::predict::Predictor;
use smol_engine::expert::prefetch::{Prefetch, WarmExpert, warm_list};
use smol_engine::expert::trace::Trace;
use smol_engine::expert::{ExpertLayer, ExpertTensor, Packer, Pager, PoolSize};
use smol_engine::io::{DirectFile, IoChoice, ReadAt};
use smol_gguf::Metadata;

use crate::error::{Error, Result};
use crate::expert_pager::{ExpertPager, PoolBudget};
use crate::experts::{RoutedExperts, RoutedTensor};
use crate::ffi::kernels::RawLayout;
use crate::ffi::pager::{self, PagedExperts, PagedTensor, Watcher, error_of};
use crate::files::ModelFiles;
#[cfg(feature = "tools")]
use crate::guard::Guard;
#[cfg(feature = "tools")]
use crate::pack_cache::{Kind, ModelCache, PackCacheStatistics};
#[cfg(feature = "tools")]
use crate::placement::{Placement, Wishes, decide};
#[cfg(feature = "tools")]
use crate::plan::PlannedContext;
use watchers::{Prediction, Recorder, trace_error};

/// The experts of a model in the form in which kernels will read them.
pub(crate) struct Paging<'a> {
    files: &'a ModelFiles,
    opened: Vec<Arc<dyn ReadAt>>,
    metadata: &'a Metadata,
    routed: &'a RoutedExperts,
    layers: Vec<ExpertLayer>,
    tensors: HashMap<String, PagedTensor>,
}

/// The pager of a model, and what goes on beside it. Outlives the model.
pub(crate) struct PagedModel {
    experts: PagedExperts,
}

impl PagedModel {
    pub(crate) fn pager(&self) -> &Arc<Pager> {
        self.experts.pager()
    }

    /// Loads the model.
    pub(crate) fn during_load<T>(&self, load: impl FnOnce() -> Result<T>) -> Result<T> {
        self.experts.during_load(load)
    }

    /// Pages the experts of the model that upstream's code loads on this thread, until the process ends.
    #[cfg(feature = "tools")]
    fn keep(self) -> Result<Arc<Pager>> {
        let kept: &'static Self = Box::leak(Box::new(self));
        kept.experts.keep()?;
        std::mem::forget(Guard::watch(vec![Arc::downgrade(kept.pager()) as _])?);
        Ok(Arc::clone(kept.pager()))
    }
}

/// Pages the experts of the model at `path` when upstream's code loads it, on this thread. `None`: it has none.
#[cfg(feature = "tools")]
pub(crate) fn page_for_upstream(
    path: &Path,
    options: &crate::EngineOptions,
    repack: bool,
) -> Result<Option<(Arc<Pager>, Option<PackCacheStatistics>)>> {
    let files = ModelFiles::open(path)?;
    let metadata = files.metadata().clone();
    let Some(routed) = RoutedExperts::find(files.shards(), &metadata)? else { return Ok(None) };
    let pager = options.pager.clone().unwrap_or_default();
    let mut paging = Paging::new(&files, &metadata, &routed, pager.io)?;
    let cache = ModelCache::for_upstream(Kind::Experts, &files, options, repack)?;
    let cached = cache.and_then(|cache| paging.use_cache(&cache, pager.io, None));
    let wishes = Wishes {
        ram: None,
        planned: PlannedContext::default(),
        pager: Some(&pager),
        stream: None,
        readers: None,
        may_stream: false,
        cached: false,
    };
    let decision = decide(&files, &metadata, Some(&routed), wishes)?;
    let Placement::Paged(budget) = decision.placement else { return Ok(None) };
    Ok(Some((paging.start(&pager, budget, None)?.keep()?, cached)))
}

impl<'a> Paging<'a> {
    /// Opens the files, and lays the experts out as this thread has [chosen](crate::ffi::layouts::choose).
    pub(crate) fn new(
        files: &'a ModelFiles,
        metadata: &'a Metadata,
        routed: &'a RoutedExperts,
        io: IoChoice,
    ) -> Result<Self> {
        let opened = DirectFile::open_all(files.paths(), io);
        let opened = opened.map_err(|error| error_of(error.into()))?;
        let (layers, tensors) = (Vec::new(), HashMap::new());
        let mut paging = Self { files, opened, metadata, routed, layers, tensors };
        for (index, layer) in routed.layers.iter().enumerate() {
            let mut tensors = Vec::new();
            for (number, tensor) in layer.tensors.iter().enumerate() {
                let form = Form::of(tensor);
                tensors.push(ExpertTensor {
                    name: tensor.name.clone(),
                    file: tensor.file,
                    offset: tensor.offset,
                    stride: tensor.stride,
                    bytes: form.as_ref().map_or(tensor.stride as usize, Form::bytes),
                    packer: form.as_ref().map(|form| Arc::new(form.clone()) as _),
                });
                let place = PagedTensor {
                    layer: index,
                    tensor: number,
                    layout: form.map(|form| form.layout),
                    file: tensor.file as u16,
                    offset: tensor.offset,
                    size: tensor.stride * u64::from(layer.experts),
                };
                paging.tensors.insert(tensor.name.clone(), place);
            }
            let (block, experts, used) = (layer.block, layer.experts, layer.used);
            paging.layers.push(ExpertLayer { block, experts, used, tensors });
        }
        Ok(paging)
    }

    /// The bytes that were asked for the pool and its buffers, if any were.
    pub(crate) fn asked_pool(&self, asked: &ExpertPager) -> Result<Option<u64>> {
        match asked.budget {
            PoolBudget::Bytes(bytes) => Ok(Some(bytes)),
            PoolBudget::Slots(slots) => {
                let config = asked.config(u64::MAX);
                let bytes = Pager::budget_of_slots(&self.opened, &self.layers, &config, slots);
                bytes.map(Some).map_err(error_of)
            }
            PoolBudget::Auto => Ok(None),
        }
    }

    /// The least bytes that a pool works with.
    pub(crate) fn least_pool(&self, asked: &ExpertPager) -> Result<u64> {
        let config = asked.config(u64::MAX);
        Pager::least_budget(&self.opened, &self.layers, &config).map_err(error_of)
    }

    /// What a pool of so many bytes will hold.
    pub(crate) fn pool_size(&self, asked: &ExpertPager, budget: u64) -> Result<PoolSize> {
        PoolSize::new(&self.opened, &self.layers, &asked.config(budget)).map_err(error_of)
    }

    /// Makes the pager, which begins to read what the trace of an earlier run says, if there is one; `record` is where the
    /// trace of this one goes.
    pub(crate) fn start(
        self,
        options: &ExpertPager,
        budget: u64,
        record: Option<&Path>,
    ) -> Result<PagedModel> {
        let warm = options.warm.as_deref().map(|path| self.warm_list(path)).transpose()?;
        let config = options.config(budget);
        let pager = Pager::new(self.opened, self.layers, &config).map_err(error_of)?;
        pager.warm(warm.as_deref().unwrap_or_default());
        let bias = options.cache_bias();
        let mut watchers: Vec<Arc<dyn Watcher>> = Vec::new();
        if options.prefetch != Prefetch::Off {
            let shards = self.files.shards();
            let routers = routers::read(shards, self.metadata, &self.routed.layers);
            let predictor = Predictor::new(pager.clone(), routers, options.prefetch, bias)
                .map_err(|error| Error::io(error, "cannot start a thread", None))?;
            if predictor.enabled() {
                watchers.push(Arc::new(Prediction(predictor)));
            }
        }
        if let Some(path) = record {
            let model = self.metadata.get_str("general.name").unwrap_or("unnamed");
            let recorder = Recorder::create(path, model, pager.layers(), pager.clone())?;
            watchers.push(Arc::new(recorder));
        }
        #[cfg(test)]
        watchers.extend(routers::tests::watcher(
            self.files.shards(),
            self.metadata,
            &self.routed.layers,
        ));
        let corrections = if bias.is_active() {
            routers::corrections(self.files.shards(), &self.routed.layers)
        } else {
            Vec::new()
        };
        let experts = PagedExperts::new(pager, self.tensors, bias, corrections, watchers);
        Ok(PagedModel { experts })
    }

    /// What a trace of this model says is used most, the most used first.
    fn warm_list(&self, path: &Path) -> Result<Vec<WarmExpert>> {
        let trace = Trace::read(path).map_err(|error| trace_error(error, path))?;
        let own: Vec<_> = self.layers.iter().map(|layer| layer.experts).collect();
        let traced: Vec<_> = trace.header.layers.iter().map(|layer| layer.experts).collect();
        if own != traced {
            let message =
                "this trace is of another model: it has other layers or numbers of experts";
            return Err(Error::invalid(message).with_path(path));
        }
        let mut uses: Vec<_> = own.iter().map(|experts| vec![0_u64; *experts as usize]).collect();
        for graph in &trace.graphs {
            for layer in graph.layers() {
                layer.ids.iter().for_each(|id| uses[layer.layer][*id as usize] += 1);
            }
        }
        Ok(warm_list(&uses, usize::MAX))
    }
}

/// How one expert of a tensor is packed.
#[derive(Clone)]
struct Form {
    layout: RawLayout,
    columns: usize,
    rows: usize,
    /// Bytes of a plain row.
    stride: usize,
}

impl Form {
    /// `None`: it stays as it is in the file.
    fn of(tensor: &RoutedTensor) -> Option<Self> {
        let layout = pager::layout_of(tensor.ty.id(), tensor.columns)?;
        let (columns, rows) = (tensor.columns as usize, tensor.rows as usize);
        Some(Self { layout, columns, rows, stride: tensor.stride as usize / rows.max(1) })
    }

    fn bytes(&self) -> usize {
        self.layout.packed_bytes(self.columns, self.rows)
    }
}

impl Packer for Form {
    fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        self.layout.pack_into(self.columns, plain, self.stride, packed);
    }
}

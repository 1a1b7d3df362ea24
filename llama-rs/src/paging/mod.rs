//! Setting up the pager of a model that is about to be loaded.

mod pressure;
mod routers;
mod watchers;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use smol_engine::expert::predict::Predictor;
use smol_engine::expert::prefetch::{Prefetch, WarmExpert, warm_list};
use smol_engine::expert::trace::Trace;
use smol_engine::expert::{ExpertLayer, ExpertTensor, Packer, Pager};
use smol_engine::io::{DirectFile, IoChoice, ReadAt};
use smol_gguf::Metadata;

use crate::context_builder::UBATCH_PAGED;
use crate::error::{Error, Result};
use crate::expert_pager::{ExpertPager, PoolBudget};
use crate::experts::{RoutedExperts, RoutedTensor};
use crate::ffi::kernels::RawLayout;
use crate::ffi::pager::{self, PagedExperts, PagedTensor, Watcher, error_of};
use crate::files::ModelFiles;
use crate::ram::{PlannedContext, RamNeeds, RamPlan, process_reserve, usable_ram, vocab_len};
use pressure::Pressure;
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
    #[allow(dead_code, reason = "works until it is dropped")]
    pressure: Pressure,
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
        Ok(Arc::clone(kept.pager()))
    }
}

/// What limits memory.
pub(crate) struct Limits {
    /// RAM for the process, if one was asked for.
    pub(crate) ram: Option<u64>,
    /// The context that it has to hold as well.
    pub(crate) planned: PlannedContext,
}

/// Pages the experts of the model at `path` when upstream's code loads it, on this thread. `None`: it has none.
#[cfg(feature = "tools")]
pub(crate) fn page_for_upstream(
    path: &Path,
    options: &crate::EngineOptions,
) -> Result<Option<Arc<Pager>>> {
    let files = ModelFiles::open(path)?;
    let metadata = files.metadata().clone();
    let Some(routed) = RoutedExperts::find(files.shards(), &metadata)? else { return Ok(None) };
    let pager = options.pager.clone().unwrap_or_default();
    let paging = Paging::new(&files, &metadata, &routed, pager.io)?;
    let limits = Limits { ram: None, planned: PlannedContext::default() };
    let budget = paging.budget(Some(&pager), &limits)?.unwrap_or(u64::MAX);
    paging.start(&pager, budget, None)?.keep().map(Some)
}

impl<'a> Paging<'a> {
    /// Opens the files, and lays the experts out as this thread has [chosen](crate::ffi::layouts::choose).
    pub(crate) fn new(
        files: &'a ModelFiles,
        metadata: &'a Metadata,
        routed: &'a RoutedExperts,
        io: IoChoice,
    ) -> Result<Self> {
        let mut opened: Vec<Arc<dyn ReadAt>> = Vec::new();
        for path in files.paths() {
            let file = DirectFile::open_with(path, io).map_err(|error| error_of(error.into()))?;
            opened.push(Arc::new(file));
        }
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

    /// Bytes of all experts in memory.
    fn bytes(&self) -> u64 {
        let of_layer = |layer: &ExpertLayer| {
            let expert: usize = layer.tensors.iter().map(|tensor| tensor.bytes).sum();
            expert as u64 * u64::from(layer.experts)
        };
        self.layers.iter().map(of_layer).sum()
    }

    /// The budget of the pool; `None`: the model is loaded whole, as it fits and no pager was asked for.
    pub(crate) fn budget(
        &self,
        asked: Option<&ExpertPager>,
        limits: &Limits,
    ) -> Result<Option<u64>> {
        let config = asked.cloned().unwrap_or_default().config(u64::MAX);
        let pool = match asked.map(|asked| asked.budget) {
            Some(PoolBudget::Bytes(bytes)) => Some(bytes),
            Some(PoolBudget::Slots(slots)) => {
                let bytes = Pager::budget_of_slots(&self.opened, &self.layers, &config, slots);
                Some(bytes.map_err(error_of)?)
            }
            Some(PoolBudget::Auto) | None => None,
        };
        if pool.is_some() && limits.ram.is_none() {
            return Ok(pool);
        }
        let Some(ram) = usable_ram(limits.ram) else { return Ok(asked.map(|_| u64::MAX)) };
        let floor = Pager::least_budget(&self.opened, &self.layers, &config).map_err(error_of)?;
        let needs = RamNeeds {
            ram,
            weights: self.files.len().saturating_sub(self.routed.bytes),
            experts: self.bytes(),
            pool_floor: pool.unwrap_or(floor),
            n_ctx: limits.planned.n_ctx(self.metadata),
            process: process_reserve(vocab_len(self.metadata)),
        };
        let n_tensors = self.files.shards().tensors().count() as u64;
        // Whether experts will be paged is what is to be found out: the larger of the two.
        let estimate =
            |n_ctx| limits.planned.estimate(self.metadata, n_tensors, n_ctx, UBATCH_PAGED);
        let plan = needs.plan(estimate);
        match (plan, pool) {
            // Nobody has asked for anything: the model is mapped.
            (Err(_), _) if asked.is_none() && limits.ram.is_none() => Ok(None),
            (Err(error), _) => Err(error),
            (Ok(_), Some(pool)) => Ok(Some(pool)),
            (Ok(RamPlan::Paged { pool }), None) => Ok(Some(pool)),
            (Ok(RamPlan::Resident), None) => Ok(asked.map(|_| u64::MAX)),
        }
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
        let pressure = Pressure::watch(&pager)?;
        let experts = PagedExperts::new(pager, self.tensors, bias, watchers);
        Ok(PagedModel { experts, pressure })
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

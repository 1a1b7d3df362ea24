//! Safe Rust API over the pinned, patched llama.cpp.
//!
//! [`Model`] loads a file, [`Context`] runs it, [`Session`] keeps a text going. Handles own what they need: a context or
//! vocabulary keeps its model alive, and nothing has a lifetime but results that the next decode overwrites.
//!
//! [`ModelBuilder`] has what can be said about loading: how much RAM there is ([`ram`](ModelBuilder::ram)), so that a mixture's
//! experts are paged ([`ExpertPager`]) or a dense model's weights streamed ([`WeightStream`]) if they do not fit; where packed
//! weights are kept for the next load ([`PackCache`]); and [`plan`](ModelBuilder::plan), which tells all of that beforehand
//! ([`MemoryPlan`](plan::MemoryPlan)). [`EngineOptions`] has the same for all models of a process, from a TOML file.
//!
//! ```no_run
//! # fn main() -> llama_rs::Result<()> {
//! let model = llama_rs::Model::builder("model.gguf").ram(900 << 20).pack_cache("cache/packed").load()?;
//! if let Some(statistics) = model.stream_statistics() {
//!     println!("{:.1} MB read for each token", statistics.mb_per_pass);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Errors name the cause and the file and carry the lines that llama.cpp printed ([`Error::log`]). Panics never cross
//! into C, C++ exceptions never into Rust, and files and arguments that would make llama.cpp abort are refused first.

mod batch;
mod byte_size;
mod cancel;
pub mod chat;
mod context;
mod context_builder;
mod embed;
mod engines;
mod error;
mod expert_pager;
mod experts;
mod experts_used;
mod ffi;
mod files;
pub mod generation;
pub mod grammar;
mod graph_report;
mod guard;
pub mod kernels;
mod kv;
mod layouts;
pub mod log;
pub mod loops;
mod memory;
mod model;
mod model_builder;
mod observe;
mod op;
mod options;
mod outputs;
mod pack_cache;
mod paging;
pub mod perplexity;
mod placement;
mod plain_weights;
pub mod plan;
mod quantize;
mod requantize;
pub mod sampler;
pub mod session;
mod state;
mod streaming;
pub mod text;
mod token;
#[cfg(feature = "tools")]
pub mod tools;
mod vocab;
pub mod vocab_selection;
mod weight_stream;
pub mod worker;

pub use batch::Batch;
pub use byte_size::{ByteSize, ParseByteSizeError};
pub use cancel::CancelToken;
pub use context::Context;
pub use context_builder::{ContextBuilder, FlashAttention, Pooling};
pub use embed::Embedder;
pub use engines::Engines;
pub use error::{Error, ErrorKind, Result};
pub use expert_pager::{ExpertPager, PoolBudget};
pub use generation::{Finish, GenerateOptions, Generation, Piece};
pub use ggml_sys::{BuildInfo, CpuLevel, PatchInfo, build_info, cpu};
pub use kv::{Kv, KvType};
pub use layouts::{LayoutOptions, LayoutSummary, WeightKernel, WeightLayout, WeightUse};
pub use memory::MemoryEstimate;
pub use model::Model;
pub use model_builder::{LoadMode, MetadataOverride, ModelBuilder};
pub use observe::{NodeInfo, Observer, ObserverGuard, observe};
pub use op::Op;
pub use options::{CpuOptions, EngineOptions, LevelChoice, ObserveOptions, ReportTarget};
pub use outputs::Outputs;
pub use pack_cache::{CacheFile, CacheState, PackCache, PackCacheStatistics};
pub use quantize::{FileType, Quantize};
pub use requantize::Requantize;
pub use sampler::{Sampler, SamplerBuilder};
pub use serde_json;
pub use session::{ChatOptions, Session};
pub use smol_engine::expert::prefetch::Prefetch;
pub use smol_engine::expert::{PagerStatistics, Policy, Scope};
pub use smol_engine::io::IoChoice;
pub use smol_engine::machine;
pub use smol_engine::stream::StreamStatistics;
pub use smol_gguf as gguf;
pub use token::{SeqId, Token};
pub use vocab::{TokenAttributes, TokenizeOptions, Vocab};
pub use weight_stream::{StreamSize, WeightStream};

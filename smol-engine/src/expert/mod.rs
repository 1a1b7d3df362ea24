//! Experts of mixtures that are larger than memory.

mod config;
mod error;
mod needs;
mod pager;
mod plan;
pub mod plot;
pub mod policy;
mod pool;
pub mod predict;
pub mod prefetch;
mod prefetching;
mod residency;
mod ring;
pub mod routing;
mod run;
pub mod scope;
pub mod simulate;
mod state;
mod statistics;
pub mod trace;
mod watch;

pub use config::{ExpertLayer, ExpertTensor, Packer, PagerConfig};
pub use error::{Error, Result};
pub use needs::PoolSize;
pub use pager::Pager;
pub use policy::Policy;
pub use run::Stop;
pub use scope::Scope;
pub use statistics::PagerStatistics;
pub use watch::ReadDone;

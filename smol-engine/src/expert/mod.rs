//! Experts of mixtures that are larger than memory.

mod config;
mod error;
mod pager;
pub mod policy;
pub mod predict;
pub mod prefetch;
pub mod routing;
pub mod scope;
mod statistics;
pub mod trace;

pub use config::{ExpertLayer, ExpertTensor, Packer, PagerConfig};
pub use error::{Error, Result};
pub use pager::{Pager, Stop};
pub use policy::Policy;
pub use scope::Scope;
pub use statistics::PagerStatistics;

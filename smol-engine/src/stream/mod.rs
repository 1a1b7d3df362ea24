//! Weights of models that are larger than memory, read in the order in which they are used.

mod config;
mod error;
mod history;
mod plan;
mod rows;
mod state;
mod statistics;
mod streaming;

pub use crate::expert::{Packer, Stop};
pub use config::{PackedPlace, StreamConfig, StreamTensor};
pub use error::{Error, Result};
pub use statistics::StreamStatistics;
pub use streaming::Stream;

//! Reading files past the page cache, measuring how fast that is, and freeing parts of files.
//!
//! A model that is larger than memory must not go through the page cache: its pages would
//! push out what is needed again, and the kernel's read-ahead fetches bytes that nobody asked
//! for.

mod aligned;
pub(crate) mod arena;
mod direct;
mod error;
#[cfg(test)]
pub(crate) mod in_memory;
mod punch;
pub(crate) mod queue;
pub(crate) mod readers;
mod source;
mod speed;
pub(crate) mod zones;

pub use aligned::AlignedBuf;
pub(crate) use direct::Identity;
pub use direct::{DirectFile, IoChoice, Mode, UnknownIoChoice};
pub(crate) use error::duplicate;
pub use error::{Error, Result};
pub use punch::{HolePunch, is_used_elsewhere};
pub use source::ReadAt;
pub use speed::{ReadSpeed, measure_read_speed};

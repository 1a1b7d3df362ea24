//! Safe Rust API over the pinned, patched llama.cpp.

mod cancel;
mod error;
pub mod log;
mod token;

pub use cancel::CancelToken;
pub use error::{Error, ErrorKind, Result};
pub use token::{SeqId, Token};

//! Safe Rust API over the pinned, patched llama.cpp.

mod cancel;
mod error;
pub mod grammar;
pub mod log;
pub mod loops;
pub mod sampler;
pub mod text;
mod token;

pub use cancel::CancelToken;
pub use error::{Error, ErrorKind, Result};
pub use token::{SeqId, Token};

//! The boundary to C: the only modules of the crate with `unsafe` code.
//!
//! Each wraps one kind of object or callback. Rust panics stop here on their way into C, and C++ exceptions on their
//! way into Rust (the guarded `smol_` functions turn them into a status).

pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod decoding;
#[cfg(test)]
mod drafts;
pub(crate) mod engine;
#[cfg(feature = "tools")]
pub(crate) mod exit;
pub(crate) mod grammar;
pub(crate) mod kernels;
pub(crate) mod layouts;
pub(crate) mod log;
pub(crate) mod mapping;
pub(crate) mod model;
pub(crate) mod pack_cache;
pub(crate) mod pager;
pub(crate) mod panics;
pub(crate) mod quantize;
pub(crate) mod repacked;
pub(crate) mod stream;
pub(crate) mod threadpool;
pub(crate) mod vocab;

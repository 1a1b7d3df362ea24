//! Writes test models: tiny random ones for every architecture, and larger function-preserving ones.
//!
//! - [`tiny`]: random weights, a few megabytes, the same bytes for the same seed on every machine.
//! - [`bad`]: broken variants of a model, each one fault away from the good file.
//! - [`pad`], [`quant`], [`moe`], [`deep`]: made from a real small model of the `llama`
//!   architecture; they compute the same function (or nearly) at the cost of a larger model.
//!
//! # Examples
//!
//! ```
//! use testkit::tiny::{self, Arch, TinyOptions};
//!
//! let folder = tempfile::tempdir()?;
//! let model = tiny::write(&folder.path().join("m.gguf"), Arch::Qwen3, &TinyOptions::default())?;
//! assert!(model.metadata()?.len() > 1_000_000);
//! # anyhow::Ok(())
//! ```

pub mod bad;
pub mod deep;
pub mod draft;
pub mod forward;
pub mod moe;
pub mod pad;
pub mod quant;
pub mod raw;
pub mod rng;
pub mod router;
pub mod source;
pub mod tiny;

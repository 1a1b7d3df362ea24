//! Runs the largest language model that a small device can hold: llama.cpp, patched and made safe.
//!
//! Nothing but a Rust toolchain and a C++17 compiler is needed to build it: no cmake, no libclang, no download by hand.
//!
//! ```no_run
//! use smolmaxxing::chat::Message;
//! use smolmaxxing::{ChatOptions, Model, SamplerBuilder, Session};
//!
//! fn main() -> smolmaxxing::Result<()> {
//!     let model = Model::load("SmolLM2-135M-Instruct.Q4_1.gguf")?;
//!     let sampler = SamplerBuilder::new().temp(0.7).build(&model)?;
//!     let mut session = Session::new(model.context().n_ctx(2048).build()?, sampler)?;
//!     let messages = [Message::user("Why is the sky blue?")];
//!     for piece in session.chat(&messages, &ChatOptions::default())? {
//!         print!("{}", piece?.text);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Where to find what
//! - [`Model`] loads a file, [`Context`] runs it, [`Session`] keeps a text going: the path that most programs take.
//!   [`Worker`](worker::Worker) puts a session on a thread of its own.
//! - [`ModelBuilder::ram`] runs models that are larger than memory, [`ModelBuilder::plan`] tells beforehand how, and
//!   [`ExpertPager`], [`WeightStream`] and [`PackCache`] are the settings of what is behind them.
//! - [`sampler`], [`grammar`] and [`chat`] choose tokens, constrain them and format conversations.
//! - [`gguf`] reads, checks, writes and rewrites model files without llama.cpp; [`Quantize`] and [`Requantize`] convert
//!   weights, [`vocab_selection`] finds the tokens that a smaller vocabulary head needs.
//! - [`perplexity`] measures how well a model predicts a text, [`kernels`] how fast packed layouts are.
//! - [`log`] decides where llama.cpp's lines go, [`observe`] watches its graphs, [`CancelToken`] stops its work.
//! - [`build_info`] tells which llama.cpp, patches and CPU level are inside.
//!
//! # Features
//! `json-schema`, on by default: answers constrained by a JSON schema. `multi-level`: kernels for several CPU levels in one
//! program; the best is selected at start.

pub use llama_rs::*;

/// The raw bindings, for what the safe API does not cover.
pub use ggml_sys as sys;

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
//! - [`sampler`], [`grammar`] and [`chat`] choose tokens, constrain them and format conversations.
//! - [`gguf`] reads, checks and writes model files without llama.cpp.
//! - [`log`] decides where llama.cpp's lines go, [`observe`] watches its graphs, [`CancelToken`] stops its work.
//! - [`build_info`] tells which llama.cpp, patches and CPU level are inside.

pub use llama_rs::*;

/// The raw bindings, for what the safe API does not cover.
pub use ggml_sys as sys;

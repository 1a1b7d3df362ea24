//! Facade of smolmaxxing.
pub use llama_rs::*;

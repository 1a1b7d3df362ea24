//! Safe Rust API over the pinned, patched llama.cpp.

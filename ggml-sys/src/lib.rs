//! Builds the pinned, patched llama.cpp with cargo alone, and its raw bindings.

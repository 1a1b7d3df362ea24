//! Raw bindings to the pinned, patched llama.cpp, which this crate's build script fetches, checks, patches and compiles.
//!
//! Nothing but a Rust toolchain and a C++17 compiler is needed: no cmake, no libclang, no checkout of llama.cpp.
//! Safe Rust over it is the crate `llama-rs`; use these bindings directly only for what that does not cover.
//!
//! # Build variables
//!
//! | variable | meaning |
//! |---|---|
//! | `GGML_SYS_CPU` | CPU level, `BASE[+FEATURE]...`, or preset; default: `native` for a host build, `generic` for a cross build |
//! | `GGML_SYS_LLAMA_DIR` | a llama.cpp tree of the pinned commit to use instead of fetching it; it is copied, not changed |
//! | `CC`, `CXX`, `AR`, `CFLAGS`, `CXXFLAGS`, ... | as the `cc` crate reads them, with `_TARGET` suffixes for cross builds |
//!
//! CPU levels: `x86-64`, `x86-64-v2`, `x86-64-v3`, `x86-64-v4` with `+avxvnni`, `+vbmi`, `+vnni`, `+bf16`;
//! `armv8-a`, `armv8.1-a`, `armv8.2-a`, `armv8.4-a`, `armv8.6-a`, `armv9-a` with `+dotprod`, `+fp16`, `+i8mm`, `+bf16`,
//! `+sve`, `+sve2`. `native` is detected with the operating system's consent and never includes AMX. Presets are devices:
//! `tvbox`, `rpi4`, `rpi5`, `ipad-air`; `generic` is what every 64-bit CPU of the architecture has.
//!
//! # Features
//!
//! `load-hook`, `work-buffer`, `yielding-barrier` and `pruned-head`, on by default: one for each patch of
//! `patches/series.toml`; without them upstream's code is compiled as it is. `multi-level`: the CPU backend once for each
//! of several CPU levels; [`cpu::check`] selects the best one that the CPU has. `tools`: upstream's command-line tools as
//! functions (module `tools`). `buildtime-bindgen`: regenerates the bindings from the pinned headers; needs libclang.
//!
//! # Metadata for dependents
//!
//! `links = "smol_llama"`: the build script of a direct dependent sees `DEP_SMOL_LLAMA_ROOT` (the patched tree),
//! `_INCLUDE` (folder of `smol.h`), `_NAMES` (folder of `smol-names.h`), `_LLAMA_VERSION`, `_LLAMA_COMMIT`, `_CPU_LEVELS`,
//! `_CPU_PRESET`, `_CPU_TUNE`, `_PATCHES` (names, comma separated) and `_PATCH_SET` (one hash for the applied patches).
//!
//! # Symbols
//!
//! Every native symbol of this library has a name of its own: C functions start with `smol_` (`llama_decode` is
//! `smol_llama_decode` for the linker), C++ names end with `.smol`. So another crate that brings its own ggml can be
//! linked into the same program. C or C++ code that calls into this library includes `smol-names.h` before `llama.h`.

// Generated declarations are documented by the headers that they come from.
#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    rust_2018_idioms,
    clippy::all,
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks
)]
mod bindings {
    #[cfg(feature = "buildtime-bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    #[cfg(not(feature = "buildtime-bindgen"))]
    include!("bindings.rs");
}
pub use bindings::*;

mod build_info;
pub mod cpu;
pub mod quants;
#[cfg(feature = "tools")]
pub mod tools;

pub use build_info::{BuildInfo, CpuLevel, PatchInfo, build_info};

//! What this build contains.

/// How llama.cpp was built into this binary.
#[derive(Debug, Clone, Copy)]
pub struct BuildInfo {
    /// Version of llama.cpp, for example `0.8.0`.
    pub llama_version: &'static str,
    /// Commit of llama.cpp.
    pub llama_commit: &'static str,
    /// Version of ggml.
    pub ggml_version: &'static str,
    /// Target triple.
    pub target: &'static str,
    /// Device that the build was made for, for example `tvbox`; empty when the level was chosen otherwise.
    pub cpu_preset: &'static str,
    /// CPU core that the kernels are scheduled for, as clang spells it; empty for none.
    pub cpu_tune: &'static str,
    /// CPU levels that the kernels were compiled for, lowest first: one, or several with the feature `multi-level`.
    pub cpu_levels: &'static [CpuLevel],
    /// First line of the C++ compiler's `--version`; empty when nothing was compiled.
    pub compiler: &'static str,
    /// One hash for ids, order and contents of the applied patches.
    pub patch_set: &'static str,
    /// The patch series, in order, with the patches that were left out.
    pub patches: &'static [PatchInfo],
}

/// A set of instructions that kernels were compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuLevel {
    /// Name, for example `x86-64-v3` or `armv8.2-a+dotprod`.
    pub name: &'static str,
    /// Compiler flags that the level stands for.
    pub flags: &'static str,
    /// CPU features that it needs, as `std::arch` spells them.
    pub features: &'static [&'static str],
}

/// One patch of the series.
#[derive(Debug, Clone, Copy)]
pub struct PatchInfo {
    /// Name, as in `patches/series.toml`.
    pub id: &'static str,
    /// File in `patches/`.
    pub file: &'static str,
    /// sha256 of the diff.
    pub sha256: &'static str,
    /// Whether this build applies it.
    pub applied: bool,
    /// What it is for.
    pub purpose: &'static str,
    /// Where the idea comes from.
    pub source: &'static str,
    /// What upstream has instead.
    pub upstream: &'static str,
    /// The test that proves it.
    pub test: &'static str,
}

static BUILD_INFO: BuildInfo = include!(concat!(env!("OUT_DIR"), "/build_info.rs"));

/// Returns what this build contains.
pub fn build_info() -> &'static BuildInfo {
    &BUILD_INFO
}

//! The files that are compiled, by library, as upstream's CMakeLists.txt files list them (a test compares).

/// ggml-base, in C.
pub const BASE_C: &[&str] = &["ggml/src/ggml.c", "ggml/src/ggml-alloc.c", "ggml/src/ggml-quants.c"];

/// ggml-base, in C++.
pub const BASE_CPP: &[&str] = &[
    "ggml/src/ggml.cpp",
    "ggml/src/ggml-backend.cpp",
    "ggml/src/ggml-backend-meta.cpp",
    "ggml/src/ggml-opt.cpp",
    "ggml/src/ggml-threading.cpp",
    "ggml/src/gguf.cpp",
];

/// The CPU backend, in C.
pub const CPU_C: &[&str] = &["ggml/src/ggml-cpu/ggml-cpu.c", "ggml/src/ggml-cpu/quants.c"];

/// The CPU backend, in C++; the slowest to compile first.
pub const CPU_CPP: &[&str] = &[
    "ggml/src/ggml-cpu/ops.cpp",
    "ggml/src/ggml-cpu/repack.cpp",
    "ggml/src/ggml-cpu/tiled/tiled-kernel.cpp",
    "ggml/src/ggml-cpu/llamafile/sgemm.cpp",
    "ggml/src/ggml-cpu/binary-ops.cpp",
    "ggml/src/ggml-cpu/unary-ops.cpp",
    "ggml/src/ggml-cpu/vec.cpp",
    "ggml/src/ggml-cpu/tiled/tiled.cpp",
    "ggml/src/ggml-cpu/ggml-cpu.cpp",
    "ggml/src/ggml-cpu/traits.cpp",
    "ggml/src/ggml-cpu/hbm.cpp",
    "ggml/src/ggml-cpu/amx/amx.cpp",
    "ggml/src/ggml-cpu/amx/mmq.cpp",
];

/// Kernels of one architecture: C files, C++ files.
pub fn cpu_arch(target_arch: &str) -> (&'static [&'static str], &'static [&'static str]) {
    match target_arch {
        "x86_64" => {
            (&["ggml/src/ggml-cpu/arch/x86/quants.c"], &["ggml/src/ggml-cpu/arch/x86/repack.cpp"])
        }
        "aarch64" => {
            (&["ggml/src/ggml-cpu/arch/arm/quants.c"], &["ggml/src/ggml-cpu/arch/arm/repack.cpp"])
        }
        _ => (&[], &[]),
    }
}

/// libllama without its model files; the slowest to compile first.
pub const LLAMA: &[&str] = &[
    "src/llama-model.cpp",
    "src/llama-vocab.cpp",
    "src/llama-context.cpp",
    "src/llama-graph.cpp",
    "src/llama-kv-cache.cpp",
    "src/llama-quant.cpp",
    "src/llama-sampler.cpp",
    "src/unicode.cpp",
    "src/llama-grammar.cpp",
    "src/llama-model-loader.cpp",
    "src/llama.cpp",
    "src/llama-adapter.cpp",
    "src/llama-arch.cpp",
    "src/llama-batch.cpp",
    "src/llama-chat.cpp",
    "src/llama-cparams.cpp",
    "src/llama-hparams.cpp",
    "src/llama-impl.cpp",
    "src/llama-io.cpp",
    "src/llama-kv-cache-iswa.cpp",
    "src/llama-kv-cache-dsa.cpp",
    "src/llama-kv-cache-dsa-iswa.cpp",
    "src/llama-kv-cache-msa.cpp",
    "src/llama-kv-cache-dsv4.cpp",
    "src/llama-memory.cpp",
    "src/llama-moe-cache.cpp",
    "src/llama-memory-hybrid.cpp",
    "src/llama-memory-hybrid-iswa.cpp",
    "src/llama-memory-hybrid-idx.cpp",
    "src/llama-memory-recurrent.cpp",
    "src/llama-mmap.cpp",
    "src/llama-model-saver.cpp",
    "src/unicode-data.cpp",
];

/// Folder of the model files; every `.cpp` of it that the pin lists is compiled, in batches as upstream does.
pub const MODELS: &str = "src/models/";

/// Model files in one translation unit (UNITY_BUILD_BATCH_SIZE upstream).
pub const MODELS_PER_UNIT: usize = 16;

/// Folders with headers, inside the tree.
pub const INCLUDES: &[&str] = &["ggml/include", "ggml/src", "ggml/src/ggml-cpu", "include", "src"];

/// The overlay, in `native/`.
pub const OVERLAY: &[&str] = &[
    "guard.cpp",
    "levels.cpp",
    "matrix_product.cpp",
    "overlay.cpp",
    "pruned_head.cpp",
    "weight_pages.cpp",
];

/// The part of the overlay that belongs to the CPU backend, in `native/`.
pub const DISPATCH: &[&str] = &[
    "dispatch.cpp",
    "matrix_vector.cpp",
    "one_row.cpp",
    "pack_cache.cpp",
    "packed_compute.cpp",
    "packed_weights.cpp",
    "paged_compute.cpp",
    "paged_weights.cpp",
    "repacked.cpp",
    "self_test.cpp",
    "streamed_compute.cpp",
    "streamed_weights.cpp",
];

/// Folder of the packed layouts and their kernels, in `native/`; every `.cpp` of it is compiled, for each CPU level.
pub const KERNELS: &str = "kernels";

/// Headers of `native/` with functions that are compiled for each CPU level and called from Rust.
pub const LEVEL_HEADERS: &[&str] = &["smol.h", "kernels/layout.h"];

/// The backend registry, in `native/`: instead of upstream's ggml-backend-reg.cpp and ggml-backend-dl.cpp.
pub const REGISTRY: &[&str] = &["registry.cpp", "thread_stack.cpp"];

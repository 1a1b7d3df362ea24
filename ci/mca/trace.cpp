// Runs one kernel after the other between calls of smol_mark, for an emulator that logs each instruction (mca.py).
//   list              a line for each layout: name and type
//   layout NAME       gemv, gemm and preparing activations, each at two row lengths
//   upstream TYPE     the same for llama.cpp's kernels of a type of weights
#include "activations.h"
#include "layout.h"

#include "ggml-cpu.h"
#include "quants.h"
#include "repack.h"
#include "runtime.h"

#include <string.h>

namespace {

constexpr int COLUMNS = 16; // of gemm
// The longer less the shorter leaves out what a call costs once. Multiples of every layout's `columns`.
constexpr int64_t LENGTHS[] = {2048, 4096}, LENGTHS_GEMM[] = {512, 1024};

alignas(64) uint64_t weights[16384], activation[65536], floats[1024];
float results[COLUMNS][64];

// Bytes without meaning: no kernel's time depends on the values. Halves and floats made of them are ordinary numbers.
void fill(uint64_t * out, size_t n) {
    uint64_t x = 0x9e3779b97f4a7c15;
    const size_t some = 128;
    for (size_t i = 0; i < some; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        out[i] = (x & 0x3f3f3f3f3f3f3f3f) | 0x2000200020002000;
    }
    for (size_t i = some; i < n; i += some) {
        memcpy(out + i, out, some * sizeof *out);
    }
}

using VecDot = decltype(ggml_vec_dot_q2_K_q8_K);

struct Upstream {
    const char * type;
    decltype(quantize_row_q8_0) * prepare;
    VecDot *     vec_dot;
    decltype(ggml_gemv_q1_0_4x4_q8_0) * gemv; // four rows at a time, where it has that
    decltype(ggml_gemm_q1_0_4x4_q8_0) * gemm;
};

const Upstream upstream[] = {
#ifdef __ARM_FEATURE_DOTPROD
    {"q1_0", quantize_row_q8_0, ggml_vec_dot_q1_0_q8_0, ggml_gemv_q1_0_4x4_q8_0, ggml_gemm_q1_0_4x4_q8_0},
#else
    {"q1_0", quantize_row_q8_0, ggml_vec_dot_q1_0_q8_0, nullptr, nullptr},
#endif
    {"q2_0", quantize_row_q8_0, ggml_vec_dot_q2_0_q8_0, nullptr, nullptr},
    {"q2_K", quantize_row_q8_K, ggml_vec_dot_q2_K_q8_K, nullptr, nullptr},
    {"tq1_0", quantize_row_q8_K, ggml_vec_dot_tq1_0_q8_K, nullptr, nullptr},
    {"tq2_0", quantize_row_q8_K, ggml_vec_dot_tq2_0_q8_K, nullptr, nullptr},
};

const char * type_name(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q1_0: return "q1_0";
        case GGML_TYPE_Q2_0: return "q2_0";
        case GGML_TYPE_Q2_K: return "q2_K";
        case GGML_TYPE_TQ1_0: return "tq1_0";
        case GGML_TYPE_TQ2_0: return "tq2_0";
        default: put("upstream's kernel for a type is not in ci/mca/trace.cpp: "), put_number(type), quit(1);
    }
}

} // namespace

extern "C" __attribute__((noinline)) void smol_mark() {
    asm volatile("" ::: "memory");
}

namespace {

// What is between a mark with weights and the next one is measured.
template <class F> void region(const char * kernel, int64_t k, int64_t products, F run) {
    put(kernel), put(" "), put_number(k), put(" "), put_number(products), put("\n");
    smol_mark();
    run();
    smol_mark();
}

void trace(const smol_layout & layout) {
    const void * rows[COLUMNS];
    float *      out[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        rows[i] = activation;
        out[i] = results[i];
    }
    if (LENGTHS_GEMM[0] % layout.columns != 0 || layout.rows > 64 || layout.group_bytes(LENGTHS[1]) > sizeof weights ||
        layout.activation->bytes(LENGTHS[1]) > sizeof activation) {
        put("the sizes in ci/mca/trace.cpp do not fit "), put(layout.name), quit(1);
    }
    for (int64_t k : LENGTHS) {
        region("gemv", k, k * layout.rows, [&] { layout.gemv(k, weights, 1, activation, results[0]); });
    }
    for (int64_t k : LENGTHS_GEMM) {
        region("gemm", k, k * layout.rows * COLUMNS, [&] { layout.gemm(k, weights, 1, COLUMNS, rows, out); });
    }
    for (int64_t k : LENGTHS_GEMM) {
        region("prepare", k, k, [&] { layout.activation->prepare(k, reinterpret_cast<float *>(floats), activation); });
    }
}

void trace(const Upstream & type) {
    for (int64_t k : LENGTHS) {
        const int n = int(k);
        if (type.gemv != nullptr) {
            region("gemv", k, k * 4, [&] { type.gemv(n, results[0], 4, weights, activation, 1, 4); });
        } else {
            region("gemv", k, k, [&] { type.vec_dot(n, results[0], 0, weights, 0, activation, 0, 1); });
        }
    }
    for (int64_t k : LENGTHS_GEMM) {
        if (type.gemm != nullptr) {
            const int n = int(k);
            region("gemm", k, k * 4 * COLUMNS, [&] { type.gemm(n, results[0], 4, weights, activation, COLUMNS, 4); });
        }
        region("prepare", k, k, [&] { type.prepare(reinterpret_cast<float *>(floats), activation, k); });
    }
}

} // namespace

int run(int argc, char ** argv) {
    size_t n;
    const smol_layout * const * layouts = smol_layouts(&n);
    fill(weights, sizeof weights / 8);
    fill(floats, sizeof floats / 8);
    if (argc == 2) {
        for (size_t i = 0; i < n; i++) {
            put(layouts[i]->name), put(" "), put(type_name(layouts[i]->type)), put("\n");
        }
        return 0;
    }
    fill(activation, sizeof activation / 8);
    for (size_t i = 0; i < n && argc == 3; i++) {
        if (strcmp(argv[1], "layout") == 0 && strcmp(argv[2], layouts[i]->name) == 0) {
            trace(*layouts[i]);
            return 0;
        }
    }
    for (const Upstream & type : upstream) {
        if (argc == 3 && strcmp(argv[1], "upstream") == 0 && strcmp(argv[2], type.type) == 0) {
            trace(type);
            return 0;
        }
    }
    put("nothing of that name\n");
    return 1;
}

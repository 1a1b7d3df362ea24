// Rows of activations, prepared for a layout, and their products with packed rows.
#pragma once

#include "expert_uses.h"
#include "kernels/layout.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstdint>

namespace smol {

constexpr int64_t MAX_ROWS = 64;  // of a group
constexpr int64_t COLUMNS = 32;   // activation rows that a kernel gets at a time
constexpr int64_t PART = 256;     // activations of a row that are prepared apart from the others

inline int64_t groups_of(const smol_layout * layout, const ggml_tensor * weights) {
    return (weights->ne[1] + layout->rows - 1) / layout->rows;
}

// Products of groups [begin, end) of one matrix with n activation rows; only rows that exist are written.
inline void multiply(const smol_layout * layout, int64_t k, const uint8_t * matrix, int64_t rows, int64_t begin, int64_t end,
              int64_t n, const void * const * activations, float * const * out) {
    const size_t group_bytes = layout->group_bytes(k);
    const int64_t group_rows = layout->rows;
    const int64_t full = std::min(end, rows / group_rows);
    if (begin < full) {
        const uint8_t * first = matrix + size_t(begin) * group_bytes;
        float * to[COLUMNS];
        for (int64_t i = 0; i < n; i++) {
            to[i] = out[i] + begin * group_rows;
        }
        if (n == 1) {
            layout->gemv(k, first, full - begin, activations[0], to[0]);
        } else {
            layout->gemm(k, first, full - begin, n, activations, to);
        }
    }
    if (full < end) {
        // The padded group: its last rows have no place in the result.
        float last[MAX_ROWS];
        for (int64_t i = 0; i < n; i++) {
            layout->gemv(k, matrix + size_t(full) * group_bytes, 1, activations[i], last);
            std::copy_n(last, rows - full * group_rows, out[i] + full * group_rows);
        }
    }
}

struct Activations {
    const ggml_tensor * tensor;
    const smol_activation * kind;
    int64_t k;
    size_t bytes; // of a prepared row
    uint8_t * prepared;

    Activations(const smol_layout * layout, const ggml_tensor * tensor, void * work)
        : tensor(tensor), kind(layout->activation), k(tensor->ne[0]), bytes(GGML_PAD(kind->bytes(k), 64)),
          // a cache line, as what the kernels read starts with its scale
          prepared(reinterpret_cast<uint8_t *>(GGML_PAD(reinterpret_cast<uintptr_t>(work), 64))) {}

    int64_t rows() const { return ggml_nrows(tensor); }
    // Row number i of those that are prepared.
    const void * row(int64_t i) const { return prepared + size_t(i) * bytes; }

    // Prepares this thread's part of rows [begin, end): whole rows, or where there are fewer rows than threads parts.
    void prepare(const ggml_compute_params * params, int64_t begin, int64_t end) const {
        const int64_t ne1 = tensor->ne[1], ne2 = tensor->ne[2];
        const int64_t parts = end - begin < params->nth ? (k + PART - 1) / PART : 1;
        const int64_t part = parts == 1 ? k : PART;
        const int64_t units = (end - begin) * parts;
        for (int64_t u = units * params->ith / params->nth; u < units * (params->ith + 1) / params->nth; u++) {
            const int64_t i = begin + u / parts, first = u % parts * part;
            const char * source = static_cast<const char *>(tensor->data) + i % ne1 * tensor->nb[1] +
                                  i / ne1 % ne2 * tensor->nb[2] + i / (ne1 * ne2) * tensor->nb[3];
            kind->prepare(std::min(part, k - first), reinterpret_cast<const float *>(source) + first,
                          prepared + size_t(i - begin) * bytes + kind->bytes(first));
        }
    }
};

// The row that one use of an expert gives.
inline float * expert_row(const ggml_tensor * node, ExpertUse use) {
    return reinterpret_cast<float *>(static_cast<char *>(node->data) + use.slot * node->nb[1] + use.token * node->nb[2]);
}

// Products of groups [begin, end) of an expert's matrix with the activation rows of all its uses.
inline void multiply_expert(const smol_layout * layout, const Activations & acts, const ggml_tensor * node, const ExpertUses & uses,
                            int32_t expert, const uint8_t * matrix, int64_t begin, int64_t end) {
    const int64_t inputs = acts.tensor->ne[1], last = uses.first[expert + 1];
    for (int64_t u = uses.first[expert]; u < last; u += COLUMNS) {
        const int64_t count = std::min(COLUMNS, last - u);
        const void * from[COLUMNS];
        float * to[COLUMNS];
        for (int64_t i = 0; i < count; i++) {
            const ExpertUse use = uses.all[u + i];
            from[i] = acts.row(use.slot % inputs + use.token * inputs);
            to[i] = expert_row(node, use);
        }
        multiply(layout, acts.k, matrix, node->src[0]->ne[1], begin, end, count, from, to);
    }
}

} // namespace smol

// MUL_MAT, MUL_MAT_ID and GET_ROWS with packed weights.
//
// All threads first prepare the activations (8-bit rows or lookup tables) in the work buffer; after a barrier they take
// chunks of row groups (chunks.h).
#include "chunks.h"
#include "expert_uses.h"
#include "packed.h"
#include "packed_rows.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>

namespace {

using namespace smol;

constexpr size_t PREPARED_BYTES = 4 << 20;

// Rows of activations that are prepared at a time: what stays in a cache of common size, and few enough that lookup
// tables for a long prompt take no memory that counts.
int64_t batch_rows(const smol_layout * layout, const ggml_tensor * activations) {
    const size_t bytes = GGML_PAD(layout->activation->bytes(activations->ne[0]), 64);
    const int64_t rows = std::max<int64_t>(int64_t(PREPARED_BYTES / bytes) / COLUMNS, 1) * COLUMNS;
    return std::min(rows, ggml_nrows(activations));
}

void mul_mat(const ggml_compute_params * params, ggml_tensor * node, const smol_layout * layout) {
    const ggml_tensor * weights = node->src[0];
    const Activations acts(layout, node->src[1], params->wdata);
    const auto * matrix = static_cast<const uint8_t *>(weights->data);
    const int64_t ne1 = node->ne[1], ne2 = node->ne[2], n = acts.rows(), batch = batch_rows(layout, node->src[1]);
    for (int64_t first = 0; first < n; first += batch) {
        const int64_t last = std::min(n, first + batch);
        if (first > 0) {
            // Others may still read what was prepared before.
            ggml_barrier(params->threadpool);
        }
        if (params->ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        acts.prepare(params, first, last);
        ggml_barrier(params->threadpool);
        run_chunks(params, groups_of(layout, weights), 1, [&](int64_t begin, int64_t end) {
            for (int64_t column = first; column < last; column += COLUMNS) {
                const int64_t count = std::min(COLUMNS, last - column);
                const void * from[COLUMNS];
                float * to[COLUMNS];
                for (int64_t i = 0; i < count; i++) {
                    const int64_t c = column + i;
                    from[i] = acts.row(c - first);
                    to[i] = reinterpret_cast<float *>(static_cast<char *>(node->data) + c % ne1 * node->nb[1] +
                                                      c / ne1 % ne2 * node->nb[2] + c / (ne1 * ne2) * node->nb[3]);
                }
                multiply(layout, acts.k, matrix, weights->ne[1], begin, end, count, from, to);
            }
        });
    }
}

void mul_mat_id(const ggml_compute_params * params, ggml_tensor * node, const smol_layout * layout) {
    const ggml_tensor * weights = node->src[0];
    const ggml_tensor * ids = node->src[2];
    const int64_t experts = weights->ne[2];
    ExpertUses uses(params->wdata, experts);
    const Activations acts(layout, node->src[1],
                           static_cast<char *>(params->wdata) + ExpertUses::bytes(experts, ggml_nelements(ids)));
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
        uses.sort(node, experts);
    }
    acts.prepare(params, 0, acts.rows());
    ggml_barrier(params->threadpool);

    const int64_t groups = groups_of(layout, weights);
    const size_t matrix_bytes = smol_packed_matrix_bytes(layout, weights);
    // Chunks go over the groups of all experts in use, so that there is one barrier for all of them.
    run_chunks(params, groups * *uses.active_n, 1, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int32_t expert = uses.active[begin / groups];
            const int64_t first = begin % groups, last = std::min(groups, first + end - begin);
            const auto * matrix = static_cast<const uint8_t *>(weights->data) + expert * matrix_bytes;
            multiply_expert(layout, acts, node, uses, expert, matrix, first, last);
            begin += last - first;
        }
    });
}

void get_rows(const ggml_compute_params * params, ggml_tensor * node, const smol_layout * layout) {
    const ggml_tensor * weights = node->src[0];
    const ggml_tensor * ids = node->src[1];
    const int64_t k = weights->ne[0], n = ggml_nelements(ids);
    for (int64_t i = params->ith; i < n; i += params->nth) {
        const int64_t i0 = i % ids->ne[0], i1 = i / ids->ne[0] % ids->ne[1], i2 = i / (ids->ne[0] * ids->ne[1]);
        const int32_t row = *reinterpret_cast<const int32_t *>(static_cast<const char *>(ids->data) + i0 * ids->nb[0] +
                                                               i1 * ids->nb[1] + i2 * ids->nb[2]);
        GGML_ASSERT(row >= 0 && row < weights->ne[1]);
        const auto * group = static_cast<const uint8_t *>(weights->data) + row / layout->rows * layout->group_bytes(k);
        layout->unpack_row(k, group, row % layout->rows,
                           reinterpret_cast<float *>(static_cast<char *>(node->data) + i0 * node->nb[1] +
                                                     i1 * node->nb[2] + i2 * node->nb[3]));
    }
}

} // namespace

size_t smol_packed_matrix_bytes(const smol_layout * layout, const ggml_tensor * tensor) {
    return size_t(groups_of(layout, tensor)) * layout->group_bytes(tensor->ne[0]);
}

size_t smol_packed_work_size(const ggml_tensor * node) {
    return smol_packed_work_size_as(node, smol_packed_layout(node->src[0]));
}

size_t smol_packed_work_size_as(const ggml_tensor * node, const smol_layout * layout) {
    if (node->op == GGML_OP_GET_ROWS) {
        return 0;
    }
    const ggml_tensor * acts = node->src[1];
    const int64_t rows = node->op == GGML_OP_MUL_MAT ? batch_rows(layout, acts) : ggml_nrows(acts);
    size_t size = size_t(rows) * GGML_PAD(layout->activation->bytes(acts->ne[0]), 64) + 64;
    if (node->op == GGML_OP_MUL_MAT_ID) {
        size += ExpertUses::bytes(node->src[0]->ne[2], ggml_nelements(node->src[2]));
    }
    return size;
}

void smol_packed_compute(ggml_compute_params * params, ggml_tensor * node) {
    smol_packed_compute_as(params, node, smol_packed_layout(node->src[0]));
}

void smol_packed_compute_as(ggml_compute_params * params, ggml_tensor * node, const smol_layout * layout) {
    GGML_ASSERT(layout && int64_t(layout->rows) <= MAX_ROWS);
    switch (node->op) {
        case GGML_OP_MUL_MAT: return mul_mat(params, node, layout);
        case GGML_OP_MUL_MAT_ID: return mul_mat_id(params, node, layout);
        case GGML_OP_GET_ROWS: return get_rows(params, node, layout);
        default: GGML_ABORT("packed weights in %s", ggml_op_name(node->op));
    }
}

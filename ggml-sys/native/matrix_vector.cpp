#include "matrix_vector.h"

#include "chunks.h"

#include "ggml-backend.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"

namespace {

// Least size of a chunk: with shorter ones a core's prefetching starts anew too often.
constexpr int64_t CHUNK_BYTES = 64 << 10;
// Nor are chunks larger than this part of a thread's share, or the last ones would take longer than the rest.
constexpr int64_t PARTS = 4;

bool is_plain(const ggml_tensor * weights) {
    return !weights->buffer || ggml_backend_buffer_is_host(weights->buffer);
}

} // namespace

bool smol_matrix_vector_wants(const ggml_tensor * node) {
#ifdef __MMA__
    return false; // There upstream's matrix product takes a single row too (sgemm.cpp:3910).
#endif
    if (node->op != GGML_OP_MUL_MAT || ggml_get_op_params_i32(node, 1) != GGML_HINT_NONE) {
        return false;
    }
    const ggml_tensor * weights = node->src[0];
    const ggml_tensor * activations = node->src[1];
    const bool known = ggml_is_quantized(weights->type) || weights->type == GGML_TYPE_F16 || weights->type == GGML_TYPE_BF16;
    return known && ggml_get_type_traits_cpu(weights->type)->vec_dot && is_plain(weights) &&
           weights->nb[0] == ggml_type_size(weights->type) && ggml_nrows(weights) == weights->ne[1] &&
           activations->type == GGML_TYPE_F32 && activations->nb[0] == sizeof(float) && ggml_nrows(activations) == 1 &&
           // Where memory belongs to a part of the cores, a thread keeps to its rows.
           !ggml_is_numa();
}

bool smol_matrix_vector(const ggml_compute_params * params, ggml_tensor * node) {
    if (params->use_ref || !smol_matrix_vector_wants(node)) {
        return false;
    }
    const ggml_tensor * weights = node->src[0];
    const ggml_type_traits_cpu * type = ggml_get_type_traits_cpu(weights->type);
    const int64_t k = weights->ne[0], rows = weights->ne[1], threads = params->nth;

    // All threads round the activations, a part each.
    const int64_t block = ggml_blck_size(type->vec_dot_type), blocks = k / block;
    const int64_t begin = blocks * params->ith / threads, end = blocks * (params->ith + 1) / threads;
    ggml_get_type_traits_cpu(type->vec_dot_type)
        ->from_float(static_cast<const float *>(node->src[1]->data) + begin * block,
                     static_cast<char *>(params->wdata) + begin * ggml_type_size(type->vec_dot_type), (end - begin) * block);
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
    }
    ggml_barrier(params->threadpool);

    const int64_t least = std::min(CHUNK_BYTES / int64_t(weights->nb[1]), rows / (PARTS * threads));
    smol::run_chunks(params, rows, std::max<int64_t>(least, 1), [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++) {
            type->vec_dot(int(k), static_cast<float *>(node->data) + row, 0,
                          static_cast<const char *>(weights->data) + row * weights->nb[1], 0, params->wdata, 0, 1);
        }
    });
    return true;
}

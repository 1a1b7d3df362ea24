// Graphs with streamed weights: the order of use, products, and rows of tables.
#include "streamed.h"

#include "matrix_vector.h"
#include "packed.h"

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ops.h"
#include "tiled/tiled.h"
#include "traits.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t CACHE_LINE = 64;
constexpr int64_t ROWS = 32; // of a table that are asked for at once

struct Graph {
    const smol_streamer * streamer;
    uintptr_t run;
};
// That of this thread.
thread_local Graph current;

// ---- the order of use ----

// What a graph does with its streamed weights.
struct Uses {
    const smol_streamer * streamer = nullptr;
    std::vector<smol_streamed *> products;
    std::vector<int32_t> tensors;
};

bool is_computed(const ggml_tensor * node) {
    return (node->flags & GGML_TENSOR_FLAG_COMPUTE) && !ggml_is_empty(node);
}

// Whether `node` uses its source number `source`, a streamed tensor, in one of the ways that are known here.
bool is_known(const ggml_tensor * node, int source, const smol_streamed * streamed) {
    const ggml_tensor * weight = node->src[source];
    const ggml_tensor * other = node->src[1];
    if (source != 0 || weight->view_src) {
        return false;
    }
    switch (node->op) {
        case GGML_OP_MUL_MAT:
            return !streamed->place.rows_only && other->type == GGML_TYPE_F32 && other->nb[0] == sizeof(float);
        case GGML_OP_GET_ROWS:
            return other->type == GGML_TYPE_I32 && node->type == GGML_TYPE_F32 && ggml_nrows(weight) == weight->ne[1];
        default:
            return false;
    }
}

bool refuse(const ggml_tensor * node, const ggml_tensor * weight, const char * why) {
    GGML_LOG_ERROR("%s: the streamed weight %s %s (node %s, %s); keep it resident\n", __func__, weight->name, why, node->name,
                   ggml_op_name(node->op));
    return false;
}

bool add(Uses & uses, const ggml_tensor * node, int source, const ggml_tensor * weight, smol_streamed * streamed) {
    if (!is_known(node, source, streamed)) {
        return refuse(node, weight, "is used in a way that streaming does not know");
    }
    if (uses.streamer && uses.streamer != streamed->streamer) {
        return refuse(node, weight, "is used together with those of another model");
    }
    uses.streamer = streamed->streamer;
    if (node->op != GGML_OP_MUL_MAT || !is_computed(node)) {
        return true;
    }
    if (std::find(uses.tensors.begin(), uses.tensors.end(), streamed->place.tensor) != uses.tensors.end()) {
        return refuse(node, weight, "is used twice");
    }
    uses.products.push_back(streamed);
    uses.tensors.push_back(streamed->place.tensor);
    return true;
}

bool find_uses(Uses & uses, const ggml_cgraph * graph) {
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        for (int source = 0; source < GGML_MAX_SRC; source++) {
            const ggml_tensor * from = node->src[source];
            if (!from) {
                continue;
            }
            const ggml_tensor * weight = from->view_src ? from->view_src : from;
            smol_streamed * streamed = smol_streamed_of(weight);
            if (streamed && !add(uses, node, source, weight, streamed)) {
                return false;
            }
        }
    }
    return true;
}

// ---- products ----

// A node with the weights at their place of the moment, as if they had never been elsewhere.
struct Placed {
    ggml_tensor weights, node;

    Placed(const ggml_tensor * original, void * address) : weights(*original->src[0]), node(*original) {
        weights.buffer = nullptr;
        weights.extra = nullptr;
        weights.data = address;
        node.src[0] = &weights;
    }
};

// As ggml_graph_plan() has it for products with plain weights (ggml-cpu.c:2908).
size_t plain_work_size(int n_threads, const ggml_tensor * original) {
    Placed placed(original, nullptr);
    const ggml_tensor * acts = original->src[1];
    const ggml_type type = ggml_get_type_traits_cpu(placed.weights.type)->vec_dot_type;
    const size_t prepared = acts->type == type ? 0 : ggml_row_size(type, ggml_nelements(acts));
    return GGML_PAD(prepared, CACHE_LINE) + ggml_tiled_wdata_size(n_threads, &placed.node);
}

void multiply(ggml_compute_params * params, ggml_tensor * original, smol_streamed * streamed) {
    const smol_streamer * streamer = streamed->streamer;
    const bool came = streamer->wait(streamer->ud, streamed->run, streamed->index);
    // All threads do the same, or they would wait for each other at different barriers; what has come for one stays.
    int32_t verdict = 0;
    if (streamed->verdict.compare_exchange_strong(verdict, came ? 1 : -1, std::memory_order_acq_rel)) {
        verdict = came ? 1 : -1;
    }
    if (verdict < 0) {
        // What the graph gives is of no use any more, but must be numbers.
        if (params->ith == 0) {
            memset(original->data, 0, ggml_nbytes(original));
        }
        return;
    }
    Placed placed(original, streamed->address);
    if (const smol_layout * layout = streamed->place.layout) {
        smol_packed_compute_as(params, &placed.node, layout);
    } else if (streamed->repacked) {
        streamed->repacked->compute_forward(params, &placed.node);
    } else if (!smol_matrix_vector(params, &placed.node)) {
        ggml_compute_forward_mul_mat(params, &placed.node);
    }
}

// ---- rows of tables ----

// A thread's part of the work buffer: the rows as they are in the file, and a group of a layout that is not exact.
struct RowWork {
    size_t row, group, size;

    explicit RowWork(const ggml_tensor * weights) {
        const smol_layout * layout = smol_streamed_of(weights)->place.layout;
        row = ggml_row_size(weights->type, weights->ne[0]);
        group = layout && !layout->exact ? GGML_PAD(layout->group_bytes(weights->ne[0]), CACHE_LINE) : 0;
        size = GGML_PAD(row * ROWS, CACHE_LINE) + group;
    }
};

// One row as the numbers that the weights stand for where they are in memory.
void to_floats(const ggml_tensor * weights, const RowWork & work, const char * row, char * group, float * out) {
    const int64_t k = weights->ne[0];
    if (work.group) {
        const smol_layout * layout = smol_streamed_of(weights)->place.layout;
        layout->pack(k, row, work.row, 1, group);
        layout->unpack_row(k, group, 0, out);
    } else if (weights->type == GGML_TYPE_F32) {
        memcpy(out, row, size_t(k) * sizeof(float));
    } else {
        ggml_get_type_traits(weights->type)->to_float(row, out, k);
    }
}

void get_rows(const ggml_compute_params * params, ggml_tensor * node, const smol_streamed * streamed) {
    const ggml_tensor * weights = node->src[0];
    const ggml_tensor * ids = node->src[1];
    const smol_streamer * streamer = streamed->streamer;
    const RowWork work(weights);
    char * rows = reinterpret_cast<char *>(GGML_PAD(reinterpret_cast<uintptr_t>(params->wdata), CACHE_LINE)) +
                  size_t(params->ith) * work.size;
    char * group = rows + (work.size - work.group);
    GGML_ASSERT(params->wsize >= work.size * size_t(params->nth) + CACHE_LINE);

    const int64_t n = ggml_nelements(ids), end = n * (params->ith + 1) / params->nth;
    for (int64_t first = n * params->ith / params->nth; first < end; first += ROWS) {
        const int64_t count = std::min(ROWS, end - first);
        int32_t wanted[ROWS];
        float * to[ROWS];
        for (int64_t j = 0; j < count; j++) {
            const int64_t i = first + j;
            const int64_t i0 = i % ids->ne[0], i1 = i / ids->ne[0] % ids->ne[1], i2 = i / (ids->ne[0] * ids->ne[1]);
            wanted[j] = *reinterpret_cast<const int32_t *>(static_cast<const char *>(ids->data) + i0 * ids->nb[0] +
                                                           i1 * ids->nb[1] + i2 * ids->nb[2]);
            GGML_ASSERT(wanted[j] >= 0 && wanted[j] < weights->ne[1]);
            to[j] = reinterpret_cast<float *>(static_cast<char *>(node->data) + i0 * node->nb[1] + i1 * node->nb[2] +
                                              i2 * node->nb[3]);
        }
        const bool came = streamer->rows(streamer->ud, streamed->place.tensor, wanted, count, rows);
        for (int64_t j = 0; j < count; j++) {
            if (came) {
                to_floats(weights, work, rows + size_t(j) * work.row, group, to[j]);
            } else {
                memset(to[j], 0, size_t(weights->ne[0]) * sizeof(float));
            }
        }
    }
}

} // namespace

bool smol_streamed_begin(const ggml_cgraph * graph, uintptr_t run) {
    current = {};
    if (!smol_streamed_any()) {
        return true;
    }
    Uses uses;
    if (!find_uses(uses, graph)) {
        return false;
    }
    if (!uses.streamer) {
        return true;
    }
    const size_t n = uses.products.size();
    std::vector<void *> addresses(n);
    current = {uses.streamer, run};
    if (!uses.streamer->begin(uses.streamer->ud, run, uses.tensors.data(), int32_t(n), addresses.data())) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        smol_streamed * streamed = uses.products[i];
        streamed->run = run;
        streamed->index = int32_t(i);
        streamed->address = addresses[i];
        streamed->verdict.store(0, std::memory_order_relaxed);
    }
    return true;
}

bool smol_streamed_end(void) {
    const Graph graph = current;
    current = {};
    return !graph.streamer || graph.streamer->end(graph.streamer->ud, graph.run);
}

bool smol_streamed_wants(const ggml_tensor * node) {
    return (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_GET_ROWS) && node->src[0] && smol_streamed_of(node->src[0]);
}

size_t smol_streamed_work_size(int n_threads, const ggml_tensor * node) {
    if (node->op == GGML_OP_GET_ROWS) {
        return RowWork(node->src[0]).size * size_t(n_threads) + CACHE_LINE;
    }
    const smol_streamed * streamed = smol_streamed_of(node->src[0]);
    if (const smol_layout * layout = streamed->place.layout) {
        return smol_packed_work_size_as(node, layout);
    }
    size_t size = 0;
    return streamed->repacked && streamed->repacked->work_size(n_threads, node, size) ? size : plain_work_size(n_threads, node);
}

void smol_streamed_compute(ggml_compute_params * params, ggml_tensor * node) {
    smol_streamed * streamed = smol_streamed_of(node->src[0]);
    if (node->op == GGML_OP_GET_ROWS) {
        get_rows(params, node, streamed);
    } else {
        multiply(params, node, streamed);
    }
}

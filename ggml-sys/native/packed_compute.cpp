// MUL_MAT, MUL_MAT_ID and GET_ROWS with packed weights.
//
// All threads first prepare the activations (8-bit rows or lookup tables) in the work buffer; after a barrier they take
// chunks of row groups, large ones first: a chunk is half of a thread's fair share of what remains (guided
// self-scheduling, Polychronopoulos and Kuck 1987), so that a slow core or thread ends with the others. Which rows
// belong to chunk number i follows from i alone, so one counter is all that threads share.
#include "packed.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t MAX_ROWS = 64;  // of a group
constexpr int64_t COLUMNS = 32;   // activation rows that a kernel gets at a time
constexpr int64_t PART = 256;     // activations of a row that are prepared apart from the others
constexpr size_t PREPARED_BYTES = 4 << 20;

int64_t groups_of(const smol_layout * layout, const ggml_tensor * weights) {
    return (weights->ne[1] + layout->rows - 1) / layout->rows;
}

// Chunks of `total` units for `threads` threads, in order of their number.
class Chunks {
  public:
    Chunks(int64_t total, int threads, int64_t least) : total(total), threads(threads), least(least) {}

    // The units of chunk `number`, which must not fall from call to call; false: there is no such chunk.
    bool find(int number, int64_t & begin, int64_t & end) {
        for (; at < number && next < total; at++) {
            next += size();
        }
        begin = next;
        end = std::min(total, next + size());
        return begin < end;
    }

  private:
    int64_t size() const { return std::max((total - next) / (2 * threads), least); }

    int64_t total, threads, least;
    int64_t next = 0; // first unit of chunk number `at`
    int at = 0;
};

// Runs chunks on this thread until none is left. ggml_threadpool_chunk_set(nth) was called before the last barrier.
template <typename F> void run_chunks(const ggml_compute_params * params, int64_t total, int64_t least, F && f) {
    Chunks chunks(total, params->nth, least);
    int64_t begin, end;
    for (int number = params->ith; chunks.find(number, begin, end);) {
        f(begin, end);
        number = ggml_threadpool_chunk_add(params->threadpool, 1);
    }
}

// Products of groups [begin, end) of one matrix with n activation rows; only rows that exist are written.
void multiply(const smol_layout * layout, int64_t k, const uint8_t * matrix, int64_t rows, int64_t begin, int64_t end,
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

// One use of an expert: which of the token's experts it is, and the token.
struct Use {
    int32_t slot, token;
};

// In the work buffer of MUL_MAT_ID, before the activations.
struct Uses {
    int32_t * first; // first use of each expert, and the end: experts + 1
    int32_t * active; // experts with at least one use
    int32_t * active_n;
    Use * all;

    static size_t bytes(int64_t experts, int64_t uses) {
        return size_t(2 * experts + 2) * sizeof(int32_t) + sizeof(Use) + size_t(uses) * sizeof(Use);
    }
    Uses(void * work, int64_t experts)
        : first(static_cast<int32_t *>(work)), active(first + experts + 1), active_n(active + experts),
          all(reinterpret_cast<Use *>(active_n + 2)) {}

    // Sorts the uses by expert; a slot without expert gets a row of zeros (ggml-cpu.c:1666).
    void sort(ggml_tensor * node, int64_t experts) {
        const ggml_tensor * ids = node->src[2];
        const auto id = [&](int64_t token, int64_t slot) {
            return *reinterpret_cast<const int32_t *>(static_cast<const char *>(ids->data) + token * ids->nb[1] +
                                                      slot * ids->nb[0]);
        };
        std::fill_n(first, experts + 1, 0);
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
                const int32_t expert = id(token, slot);
                GGML_ASSERT(expert >= -1 && expert < experts);
                if (expert >= 0) {
                    first[expert + 1]++;
                } else {
                    memset(static_cast<char *>(node->data) + slot * node->nb[1] + token * node->nb[2], 0,
                           node->ne[0] * sizeof(float));
                }
            }
        }
        *active_n = 0;
        for (int64_t e = 0; e < experts; e++) {
            if (first[e + 1]) {
                active[(*active_n)++] = int32_t(e);
            }
            first[e + 1] += first[e];
        }
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
                if (const int32_t expert = id(token, slot); expert >= 0) {
                    all[first[expert]++] = {int32_t(slot), int32_t(token)};
                }
            }
        }
        // Each count has moved to the end of its expert, which is the next one's begin.
        for (int64_t e = experts; e > 0; e--) {
            first[e] = first[e - 1];
        }
        first[0] = 0;
    }
};

void mul_mat_id(const ggml_compute_params * params, ggml_tensor * node, const smol_layout * layout) {
    const ggml_tensor * weights = node->src[0];
    const ggml_tensor * ids = node->src[2];
    const int64_t experts = weights->ne[2];
    Uses uses(params->wdata, experts);
    const Activations acts(layout, node->src[1],
                           static_cast<char *>(params->wdata) + Uses::bytes(experts, ggml_nelements(ids)));
    if (params->ith == 0) {
        ggml_threadpool_chunk_set(params->threadpool, params->nth);
        uses.sort(node, experts);
    }
    acts.prepare(params, 0, acts.rows());
    ggml_barrier(params->threadpool);

    const int64_t groups = groups_of(layout, weights);
    const size_t matrix_bytes = smol_packed_matrix_bytes(layout, weights);
    const int64_t inputs = node->src[1]->ne[1];
    // Chunks go over the groups of all experts in use, so that there is one barrier for all of them.
    run_chunks(params, groups * *uses.active_n, 1, [&](int64_t begin, int64_t end) {
        while (begin < end) {
            const int32_t expert = uses.active[begin / groups];
            const int64_t first = begin % groups, last = std::min(groups, first + end - begin);
            const auto * matrix = static_cast<const uint8_t *>(weights->data) + expert * matrix_bytes;
            for (int64_t u = uses.first[expert]; u < uses.first[expert + 1]; u += COLUMNS) {
                const int64_t count = std::min<int64_t>(COLUMNS, uses.first[expert + 1] - u);
                const void * from[COLUMNS];
                float * to[COLUMNS];
                for (int64_t i = 0; i < count; i++) {
                    const Use use = uses.all[u + i];
                    from[i] = acts.row(use.slot % inputs + use.token * inputs);
                    to[i] = reinterpret_cast<float *>(static_cast<char *>(node->data) + use.slot * node->nb[1] +
                                                      use.token * node->nb[2]);
                }
                multiply(layout, acts.k, matrix, weights->ne[1], first, last, count, from, to);
            }
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
    const smol_layout * layout = smol_packed_layout(node->src[0]);
    if (node->op == GGML_OP_GET_ROWS) {
        return 0;
    }
    const ggml_tensor * acts = node->src[1];
    const int64_t rows = node->op == GGML_OP_MUL_MAT ? batch_rows(layout, acts) : ggml_nrows(acts);
    size_t size = size_t(rows) * GGML_PAD(layout->activation->bytes(acts->ne[0]), 64) + 64;
    if (node->op == GGML_OP_MUL_MAT_ID) {
        size += Uses::bytes(node->src[0]->ne[2], ggml_nelements(node->src[2]));
    }
    return size;
}

void smol_packed_compute(ggml_compute_params * params, ggml_tensor * node) {
    const smol_layout * layout = smol_packed_layout(node->src[0]);
    GGML_ASSERT(layout && int64_t(layout->rows) <= MAX_ROWS);
    switch (node->op) {
        case GGML_OP_MUL_MAT: return mul_mat(params, node, layout);
        case GGML_OP_MUL_MAT_ID: return mul_mat_id(params, node, layout);
        case GGML_OP_GET_ROWS: return get_rows(params, node, layout);
        default: GGML_ABORT("packed weights in %s", ggml_op_name(node->op));
    }
}

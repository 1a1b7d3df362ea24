// MUL_MAT_ID with paged experts, and what is known about its router.
//
// One thread tells the pager which experts the node needs; then all threads go through them in one order, wait for each,
// and share its rows (chunks.h). Waiting blocks in the pager. Packed experts take the kernels of their layout, others
// the steps of upstream's own product (ggml-cpu.c:1563), so that the result is the same bit for bit.
#include "chunks.h"
#include "expert_uses.h"
#include "packed.h"
#include "packed_rows.h"
#include "paged.h"

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "ops.h"
#include "tiled/tiled.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace {

using namespace smol;

constexpr int64_t FEW = 8;          // tokens up to which the pager has a say in the order of experts
constexpr int64_t PLAIN_ROWS = 16;  // least rows of a chunk, as upstream has it
constexpr int64_t CACHE_LINE = 64;

static_assert(sizeof(ExpertUse) == 2 * sizeof(int32_t), "tiled.h takes pairs of slot and token");

// What the threads share about one expert of a node.
struct alignas(CACHE_LINE) Progress {
    std::atomic<int32_t> next; // chunk
    std::atomic<int32_t> left; // threads that have not passed
};

// The work buffer of a node. Activations come first: tiled.cpp expects plain ones at its begin.
struct Work {
    int64_t uses, order, progress, scratch, size;

    Work(const ggml_tensor * node, int threads) {
        const ggml_tensor * weights = node->src[0];
        const ggml_tensor * acts = node->src[1];
        const smol_paged * paged = smol_paged_of(weights);
        int64_t at;
        if (const smol_layout * layout = paged->place.layout) {
            at = ggml_nrows(acts) * int64_t(GGML_PAD(layout->activation->bytes(acts->ne[0]), CACHE_LINE));
        } else {
            at = int64_t(ggml_row_size(ggml_get_type_traits_cpu(weights->type)->vec_dot_type, ggml_nelements(acts)));
        }
        const auto place = [&](size_t bytes) {
            const int64_t begin = GGML_PAD(at, CACHE_LINE);
            at = begin + int64_t(bytes);
            return begin;
        };
        const int64_t n = ggml_nelements(node->src[2]);
        uses = place(ExpertUses::bytes(weights->ne[2], n));
        const size_t most = size_t(std::min(weights->ne[2], n));
        order = place(most * sizeof(uint32_t));
        progress = place(most * sizeof(Progress));
        scratch = place(paged->place.layout ? 0 : plain_scratch(node, threads));
        // The buffer itself is aligned for any type, not for a cache line.
        size = at + CACHE_LINE;
    }

  private:
    static size_t plain_scratch(const ggml_tensor * node, int threads) {
        ggml_tensor weights = *node->src[0];
        weights.extra = nullptr;
        ggml_tensor copy = *node;
        copy.src[0] = &weights;
        return ggml_tiled_wdata_size(threads, &copy);
    }
};

struct Graph {
    const smol_pager * pager;
    uintptr_t run;
};
// The pagers of the graph that this thread computes: those of one model, or of a model and its draft.
constexpr int MAX_PAGERS = 4;
thread_local Graph graphs[MAX_PAGERS];
thread_local int graphs_n;

uintptr_t run_of(const ggml_compute_params * params) {
    return reinterpret_cast<uintptr_t>(params->threadpool);
}

void remember(const smol_pager * pager, uintptr_t run) {
    for (int i = 0; i < graphs_n; i++) {
        if (graphs[i].pager == pager && graphs[i].run == run) {
            return;
        }
    }
    GGML_ASSERT(graphs_n < MAX_PAGERS);
    graphs[graphs_n++] = {pager, run};
}

// ---- the router ----

// Finds the sort whose first entries are the node's experts, and the router's product before it.
void find_router(const ggml_tensor * node) {
    const smol_paged * paged = smol_paged_of(node->src[0]);
    const ggml_tensor * ids = node->src[2];
    ggml_tensor * sort = ids->view_src;
    const int64_t experts = node->src[0]->ne[2];
    if (!sort || sort->op != GGML_OP_ARGSORT || ids->view_offs != 0 || sort->ne[0] != experts ||
        ggml_get_op_params_i32(sort, 0) != GGML_SORT_ORDER_DESC) {
        return;
    }
    paged->used.store(int32_t(ids->ne[0]), std::memory_order_relaxed);
    void * extra = const_cast<smol_paged *>(paged);
    sort->extra = extra;
    smol_gating gating = SMOL_GATING_LOGITS;
    ggml_tensor * at = sort->src[0];
    for (int steps = 0; at && steps < 16; steps++, at = at->src[0]) {
        if (at->op == GGML_OP_MUL_MAT) {
            if (at->src[0]->op == GGML_OP_NONE && at->ne[0] == experts && at->src[1]->type == GGML_TYPE_F32) {
                at->extra = extra;
            }
            break;
        }
        if (at->op == GGML_OP_SOFT_MAX) {
            gating = SMOL_GATING_SOFTMAX;
        } else if (at->op == GGML_OP_UNARY && ggml_get_unary_op(at) == GGML_UNARY_OP_SIGMOID) {
            gating = SMOL_GATING_SIGMOID;
        } else if (at->op == GGML_OP_UNARY && ggml_get_unary_op(at) == GGML_UNARY_OP_SOFTPLUS) {
            gating = SMOL_GATING_SQRT_SOFTPLUS;
        }
    }
    paged->gating.store(gating, std::memory_order_relaxed);
}

void tell_hidden(const ggml_tensor * node, const smol_paged * paged) {
    const ggml_tensor * x = node->src[1];
    const smol_pager * pager = paged->pager;
    if (pager->hidden && ggml_is_contiguous(x)) {
        pager->hidden(pager->ud, paged->place.layer, static_cast<const float *>(x->data), ggml_nelements(x));
    }
}

// Sorts the scores of a few tokens, with the pager's say, and tells it what was chosen.
void sort_experts(const ggml_compute_params * params, ggml_tensor * node, const smol_paged * paged) {
    const smol_pager * pager = paged->pager;
    const int32_t layer = paged->place.layer, used = paged->used.load(std::memory_order_relaxed);
    const smol_gating gating = paged->gating.load(std::memory_order_relaxed);
    const ggml_tensor * scores = node->src[0];
    bool sorted = false;
    for (int64_t row = params->ith; row < node->ne[1]; row += params->nth) {
        auto * order = reinterpret_cast<int32_t *>(static_cast<char *>(node->data) + row * node->nb[1]);
        const auto * values = reinterpret_cast<const float *>(static_cast<const char *>(scores->data) + row * scores->nb[1]);
        if (!pager->order || !pager->order(pager->ud, layer, gating, values, node->ne[0], order)) {
            if (!sorted) {
                // All rows of this thread, which are every nth one there too (ops.cpp:8713).
                ggml_compute_forward_argsort(params, node);
                sorted = true;
            }
        }
        if (node->ne[1] == 1) {
            pager->want(pager->ud, run_of(params), layer, order, used);
        }
    }
}

// ---- products ----

// As ggml-cpu.c:1640 does it: each thread a part of each row.
void prepare_plain(const ggml_compute_params * params, const ggml_tensor * acts, ggml_type type) {
    const auto * traits = ggml_get_type_traits_cpu(type);
    const int64_t k = acts->ne[0], block = ggml_blck_size(type);
    const size_t row_bytes = ggml_row_size(type, k);
    const int64_t begin = params->ith * (k / block) / params->nth, end = (params->ith + 1) * (k / block) / params->nth;
    for (int64_t i = 0; i < ggml_nrows(acts); i++) {
        const char * row = static_cast<const char *>(acts->data) + i % acts->ne[1] * acts->nb[1] + i / acts->ne[1] * acts->nb[2];
        traits->from_float(reinterpret_cast<const float *>(row) + begin * block,
                           static_cast<char *>(params->wdata) + i * row_bytes + begin * ggml_type_size(type), (end - begin) * block);
    }
}

class Product {
  public:
    Product(ggml_compute_params * params, ggml_tensor * node)
        : params(params), node(node), weights(node->src[0]), inputs(node->src[1]), paged(smol_paged_of(weights)),
          layout(paged->place.layout), pager(paged->pager), run(run_of(params)), work(node, params->nth),
          base(layout ? aligned(params->wdata) : static_cast<char *>(params->wdata)),
          uses(aligned_at(work.uses), weights->ne[2]), order(reinterpret_cast<uint32_t *>(aligned_at(work.order))),
          progress(reinterpret_cast<Progress *>(aligned_at(work.progress))) {
        GGML_ASSERT(params->wsize >= size_t(work.size));
    }

    void compute() {
        if (params->ith == 0) {
            begin();
        }
        prepare();
        ggml_barrier(params->threadpool);
        for (int32_t step = 0; step < *uses.active_n; step++) {
            const int32_t i = int32_t(order[step]);
            const void * matrix = pager->wait(pager->ud, run, i);
            const int32_t expert = uses.active[i];
            if (!matrix) {
                clear(expert);
            } else if (layout) {
                multiply_packed(i, expert, static_cast<const uint8_t *>(matrix));
            } else {
                multiply_plain(i, expert, static_cast<const char *>(matrix));
            }
            if (progress[i].left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
                pager->done(pager->ud, run, i);
            }
        }
    }

  private:
    static char * aligned(void * p) { return reinterpret_cast<char *>(GGML_PAD(reinterpret_cast<uintptr_t>(p), CACHE_LINE)); }
    char * aligned_at(int64_t offset) const { return aligned(params->wdata) + offset; }

    void begin() {
        uses.sort(node, weights->ne[2]);
        for (int32_t i = 0; i < *uses.active_n; i++) {
            auto * p = new (&progress[i]) Progress;
            p->next.store(params->nth, std::memory_order_relaxed);
            p->left.store(params->nth, std::memory_order_relaxed);
            order[i] = uint32_t(i);
        }
        const ggml_tensor * ids = node->src[2];
        const smol_expert_op op = {
            run,
            paged->place.layer,
            paged->place.tensor,
            *uses.active_n,
            uses.active,
            order,
            uses.first,
            static_cast<const int32_t *>(ids->data),
            ids->ne[0],
            ids->ne[1],
            ids->nb[1],
        };
        remember(pager, run);
        pager->begin(pager->ud, &op);
    }

    void prepare() {
        if (layout) {
            Activations(layout, inputs, base).prepare(params, 0, ggml_nrows(inputs));
        } else if (const ggml_type type = ggml_get_type_traits_cpu(weights->type)->vec_dot_type; type != inputs->type) {
            prepare_plain(params, inputs, type);
        }
    }

    // The pager has failed: what this expert would give is of no use any more, but must be numbers.
    void clear(int32_t expert) {
        for (int64_t u = uses.first[expert]; u < uses.first[expert + 1]; u++) {
            memset(expert_row(node, uses.all[u]), 0, size_t(node->ne[0]) * sizeof(float));
        }
    }

    template <typename F> void chunks(int32_t i, int64_t total, int64_t least, F && f) {
        Chunks all(total, params->nth, least);
        int64_t begin, end;
        for (int number = params->ith; all.find(number, begin, end);) {
            f(begin, end);
            number = progress[i].next.fetch_add(1, std::memory_order_relaxed);
        }
    }

    void multiply_packed(int32_t i, int32_t expert, const uint8_t * matrix) {
        const Activations acts(layout, inputs, base);
        chunks(i, groups_of(layout, weights), 1, [&](int64_t begin, int64_t end) {
            multiply_expert(layout, acts, node, uses, expert, matrix, begin, end);
        });
    }

    void multiply_plain(int32_t i, int32_t expert, const char * matrix) {
        const int64_t first = uses.first[expert], n = uses.first[expert + 1] - first;
        ggml_tensor one = *weights;
        one.data = const_cast<char *>(matrix);
        one.extra = nullptr;
        ggml_tensor copy = *node;
        copy.src[0] = &one;
        if (ggml_compute_forward_mul_mat_id_tiled(params, &copy, 0, n, &uses.all[first].slot, aligned_at(work.scratch))) {
            return;
        }
        const auto * traits = ggml_get_type_traits_cpu(weights->type);
        const bool prepared = traits->vec_dot_type != inputs->type;
        const size_t row_bytes = ggml_row_size(traits->vec_dot_type, inputs->ne[0]);
        chunks(i, weights->ne[1], PLAIN_ROWS, [&](int64_t begin, int64_t end) {
            for (int64_t u = first; u < first + n; u++) {
                const ExpertUse use = uses.all[u];
                const int64_t slot = use.slot % inputs->ne[1];
                const char * acts = prepared ? base + (slot + use.token * inputs->ne[1]) * row_bytes
                                             : static_cast<const char *>(inputs->data) + slot * inputs->nb[1] + use.token * inputs->nb[2];
                float * out = expert_row(node, use);
                for (int64_t row = begin; row < end; row++) {
                    traits->vec_dot(int(inputs->ne[0]), out + row, 0, matrix + row * weights->nb[1], 0, acts, 0, 1);
                }
            }
        });
    }

    ggml_compute_params * params;
    ggml_tensor * node;
    const ggml_tensor * weights;
    const ggml_tensor * inputs;
    const smol_paged * paged;
    const smol_layout * layout;
    const smol_pager * pager;
    uintptr_t run;
    Work work;
    char * base; // of the activations
    ExpertUses uses;
    uint32_t * order;
    Progress * progress;
};

const smol_paged * chosen_by(const ggml_tensor * node) {
    return static_cast<const smol_paged *>(node->extra);
}

bool is_product(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT_ID && smol_paged_of(node->src[0]);
}

} // namespace

size_t smol_paged_work_size(int n_threads, const ggml_tensor * node) {
    if (!is_product(node)) {
        return 0;
    }
    find_router(node);
    return size_t(Work(node, n_threads).size);
}

bool smol_paged_wants(const ggml_tensor * node) {
    return is_product(node) || (node->extra && (node->op == GGML_OP_ARGSORT || node->op == GGML_OP_MUL_MAT));
}

bool smol_paged_compute(ggml_compute_params * params, ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_MUL_MAT_ID:
            Product(params, node).compute();
            return true;
        case GGML_OP_ARGSORT:
            if (ggml_nrows(node) > FEW) {
                return false;
            }
            sort_experts(params, node, chosen_by(node));
            return true;
        default:
            if (params->ith == 0) {
                tell_hidden(node, chosen_by(node));
            }
            return false;
    }
}

bool smol_paged_end(void) {
    bool fine = true;
    for (int i = 0; i < graphs_n; i++) {
        fine &= graphs[i].pager->end(graphs[i].pager->ud, graphs[i].run);
    }
    graphs_n = 0;
    return fine;
}

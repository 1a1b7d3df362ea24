// Which weights are packed, the buffer type that they lie in, and what is told about them.
#include "packed.h"

#include "guard.h"
#include "pack_cache.h"
#include "paged.h"
#include "repacked.h"
#include "smol-hooks.h"
#include "streamed.h"
#include "thread_stack.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "repack.h"
#include "traits.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

ggml_backend_buffer_type_t packed_buft;

// ---- choice of a layout ----

enum class Use { normal, named, off };

// What the models that this thread loads may use; of each layout of smol_layouts(), all normal if empty.
struct Preferences {
    bool enabled = true;
    std::vector<Use> use;

    Use of(size_t i) const { return i < use.size() ? use[i] : Use::normal; }
};
thread_local Preferences preferences;
thread_local const smol_layout * forced; // smol_packing_force

// Whether layout number i computes on this machine what it should; tested once.
bool works(size_t i, const smol_layout * layout) {
    enum class Verdict { unknown, right, wrong };
    static std::mutex mutex;
    static std::vector<Verdict> verdicts;
    std::lock_guard<std::mutex> lock(mutex);
    if (verdicts.size() <= i) {
        verdicts.resize(i + 1, Verdict::unknown);
    }
    if (verdicts[i] == Verdict::unknown) {
        const char * fault = smol_self_test(layout);
        verdicts[i] = fault ? Verdict::wrong : Verdict::right;
        if (fault) {
            GGML_LOG_WARN("%s: packed layout %s is switched off: %s; please report this with what `smol doctor` prints\n",
                          __func__, layout->name, fault);
        }
    }
    return verdicts[i] == Verdict::right;
}

// The layouts for a type and row length in order of preference, the last one takes any weights. Those that lose
// accuracy or trade speed for memory are used only when they are named.
std::vector<const smol_layout *> candidates(ggml_type type, int64_t k) {
    if (forced) {
        return std::vector<const smol_layout *>(forced->type == type && k % forced->columns == 0 ? 1 : 0, forced);
    }
    std::vector<const smol_layout *> found;
    if (!preferences.enabled) {
        return found;
    }
    size_t n;
    const smol_layout * const * all = smol_layouts(&n);
    for (const bool named : {true, false}) {
        for (size_t i = 0; i < n; i++) {
            const smol_layout * layout = all[i];
            const Use use = preferences.of(i);
            if (layout->type != type || k % layout->columns != 0 || use == Use::off || (use == Use::named) != named ||
                (!named && layout->optional) || !works(i, layout)) {
                continue;
            }
            found.push_back(layout);
            if (!layout->accepts) {
                return found;
            }
        }
    }
    // Nothing takes what all of these refuse.
    return {};
}

// ---- what the loader asks ----

struct Load {
    bool has_head = true;
    std::vector<smol_weight> weights;
};
thread_local Load current;

// Whether the CPU backend's own packed layouts would take the weight.
bool upstream_packs(const ggml_tensor * op) {
    ggml_backend_buffer_type_t buft = ggml_backend_cpu_repack_buffer_type();
    ggml_backend_buffer buffer = {};
    buffer.buft = buft;
    ggml_tensor weight = *op->src[0];
    weight.buffer = &buffer;
    ggml_tensor node = *op;
    node.src[0] = &weight;
    return static_cast<ggml::cpu::extra_buffer_type *>(buft->context)->supports_op(buft->device, &node);
}

const char * refusal(const ggml_tensor * weight, ggml_op op) {
    if (!preferences.enabled) {
        return "packed layouts are off";
    }
    if (op == GGML_OP_GET_ROWS) {
        return "its rows are read one at a time";
    }
    if (!ggml_is_quantized(weight->type)) {
        return "not quantized";
    }
    if (ggml_n_dims(weight) != (op == GGML_OP_MUL_MAT_ID ? 3 : 2)) {
        return "not one matrix";
    }
    const char * reason = "no packed layout for this type on this CPU level";
    size_t n;
    const smol_layout * const * all = smol_layouts(&n);
    for (size_t i = 0; i < n; i++) {
        if (all[i]->type == weight->type && weight->ne[0] % all[i]->columns == 0) {
            return "its layouts are switched off, or slower on this CPU than llama.cpp's own code";
        }
        if (all[i]->type == weight->type) {
            reason = "no packed layout takes rows of this length";
        }
    }
    return reason;
}

// ---- the buffer type ----

const char * buft_name(ggml_backend_buffer_type_t) {
    return "SMOL";
}

size_t buft_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

size_t packed_bytes(const smol_layout * layout, const ggml_tensor * tensor) {
    return smol_packed_matrix_bytes(layout, tensor) * size_t(tensor->ne[2]);
}

// Room for any of the layouts that may be chosen when the weights are there; pages that stay unused cost nothing.
size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    size_t size = 0;
    for (const smol_layout * layout : candidates(tensor->type, tensor->ne[0])) {
        const size_t bytes = packed_bytes(layout, tensor);
        if (smol_pack_cache_find(tensor, layout, bytes)) {
            return SMOL_CACHED_BYTES;
        }
        size = std::max(size, bytes);
    }
    return size ? size : ggml_nbytes(tensor);
}

// The bytes of a weight are there in this layout.
void place(ggml_tensor * tensor, const smol_layout * layout) {
    tensor->extra = const_cast<smol_layout *>(layout);
    for (smol_weight & weight : current.weights) {
        if (weight.path && !strcmp(weight.name, tensor->name)) {
            weight.path = layout->name;
        }
    }
    smol_pack_cache_placed(tensor, layout, packed_bytes(layout, tensor));
}

ggml_status init_tensor(ggml_backend_buffer_t, ggml_tensor * tensor) {
    if (tensor->view_src) {
        return GGML_STATUS_SUCCESS;
    }
    const auto found = candidates(tensor->type, tensor->ne[0]);
    tensor->extra = found.empty() ? nullptr : const_cast<smol_layout *>(found.back());
    for (const smol_layout * layout : found) {
        const size_t bytes = packed_bytes(layout, tensor);
        if (const void * cached = smol_pack_cache_find(tensor, layout, bytes)) {
            tensor->data = const_cast<void *>(cached);
            place(tensor, layout);
            break;
        }
    }
    return found.empty() ? GGML_STATUS_FAILED : GGML_STATUS_SUCCESS;
}

// Calls f(0) ... f(n - 1) on several threads, or on this one where no thread can be had.
template <typename F> void in_parallel(int64_t n, F && f) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t i; (i = next++) < n;) {
            f(i);
        }
    };
    std::vector<std::thread> threads;
    const int64_t wanted = std::min<int64_t>(std::min(std::thread::hardware_concurrency(), 16u), n);
    try {
        smol_thread_stack();
        for (int64_t i = 1; i < wanted; i++) {
            threads.emplace_back(work);
        }
    } catch (const std::exception &) {
    }
    work();
    for (auto & thread : threads) {
        thread.join();
    }
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    if (offset != 0 || size != ggml_nbytes(tensor)) {
        throw std::runtime_error("packed weights are written as a whole");
    }
    if (smol_pack_cached(tensor)) {
        return;
    }
    const int64_t k = tensor->ne[0], rows = tensor->ne[1];
    const size_t stride = ggml_row_size(tensor->type, k);
    for (const smol_layout * layout : candidates(tensor->type, k)) {
        if (layout->accepts && !layout->accepts(k, data, stride, rows * tensor->ne[2])) {
            continue;
        }
        const size_t group_bytes = layout->group_bytes(k), matrix_bytes = smol_packed_matrix_bytes(layout, tensor);
        const int64_t groups = int64_t(matrix_bytes / group_bytes);
        in_parallel(groups * tensor->ne[2], [&](int64_t i) {
            const int64_t matrix = i / groups, group = i % groups, first = group * layout->rows;
            layout->pack(k, static_cast<const char *>(data) + matrix * tensor->nb[2] + first * stride, stride,
                         std::min<int64_t>(layout->rows, rows - first),
                         static_cast<char *>(tensor->data) + matrix * matrix_bytes + group * group_bytes);
        });
        place(tensor, layout);
        return;
    }
    throw std::runtime_error(std::string("no layout takes ") + tensor->name);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void *, size_t, size_t) {
    throw std::runtime_error(std::string(tensor->name) + " is packed and can't be read back; load the model with layouts off");
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        buffer->buft = buft;
        buffer->iface.init_tensor = init_tensor;
        buffer->iface.set_tensor = set_tensor;
        buffer->iface.get_tensor = get_tensor;
        buffer->iface.cpy_tensor = nullptr;
    }
    return buffer;
}

} // namespace

const smol_layout * smol_layout_for(const ggml_tensor * tensor, ggml_op op) {
    const int dims = op == GGML_OP_MUL_MAT_ID ? 3 : 2;
    if ((op != GGML_OP_MUL_MAT && op != GGML_OP_MUL_MAT_ID && op != GGML_OP_GET_ROWS) || ggml_n_dims(tensor) != dims) {
        return nullptr;
    }
    const auto found = candidates(tensor->type, tensor->ne[0]);
    return found.empty() ? nullptr : found.front();
}

const smol_layout * smol_layout_for_any(ggml_type type, int64_t k) {
    const auto found = candidates(type, k);
    return found.empty() ? nullptr : found.back();
}

void smol_packed_note(const ggml_tensor * op, const smol_layout * layout, const char * reason) {
    const ggml_tensor * weight = op->src[0];
    smol_weight w = {};
    snprintf(w.name, sizeof w.name, "%s", weight->name);
    w.type = weight->type;
    w.op = op->op;
    std::copy_n(weight->ne, 4, w.ne);
    w.bytes = ggml_nbytes(weight);
    if (layout) {
        w.path = layout->name;
    } else if (reason) {
        w.reason = reason;
    } else if (op->op != GGML_OP_GET_ROWS && upstream_packs(op)) {
        w.path = "repack";
    } else {
        w.reason = refusal(weight, op->op);
    }
    auto & all = current.weights;
    const auto same = [&](const smol_weight & other) { return other.op == w.op && !strcmp(other.name, w.name); };
    all.erase(std::remove_if(all.begin(), all.end(), same), all.end());
    all.push_back(w);
}

void smol_packing_force(const smol_layout * layout) {
    forced = layout;
}

void smol_packed_init(ggml_backend_buffer_type * buft) {
    smol_repacked_init();
    smol_pack_cache_init();
    packed_buft = buft;
    buft->iface.get_name = buft_name;
    buft->iface.alloc_buffer = alloc_buffer;
    buft->iface.get_alignment = buft_alignment;
    buft->iface.get_alloc_size = alloc_size;
}

const smol_layout * smol_packed_layout(const ggml_tensor * tensor) {
    return tensor->buffer && tensor->buffer->buft == packed_buft ? static_cast<const smol_layout *>(tensor->extra) : nullptr;
}

bool smol_packed_supports(const ggml_tensor * op) {
    const ggml_tensor * weight = op->src[0];
    if (!weight || !weight->buffer || weight->buffer->buft != packed_buft) {
        return false;
    }
    const bool plain_rows = op->op == GGML_OP_GET_ROWS ? op->src[1]->type == GGML_TYPE_I32
                                                       : op->src[1] && op->src[1]->type == GGML_TYPE_F32 &&
                                                             op->src[1]->nb[0] == sizeof(float);
    if (weight->extra) {
        const bool known = op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID || op->op == GGML_OP_GET_ROWS;
        return known && plain_rows;
    }
    if (weight->view_src || weight->buffer->size != 0) {
        // A part of packed weights: nothing can read it.
        return false;
    }
    // The loader asks, with an empty buffer (llama-model-loader.cpp:933).
    if (smol_paged_place place; smol_paged_takes(weight->name, &place)) {
        return false;
    }
    if (smol_stream_place place; smol_streamed_takes(weight->name, op->op, &place)) {
        return false;
    }
    if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID && op->op != GGML_OP_GET_ROWS) {
        return false;
    }
    const smol_layout * layout = plain_rows ? smol_layout_for(weight, op->op) : nullptr;
    if (op->op == GGML_OP_GET_ROWS && (current.has_head || strcmp(weight->name, "token_embd.weight") != 0)) {
        // Only a tied head is read both ways; other embeddings are best left where a page at a time can be read.
        layout = nullptr;
    }
    smol_packed_note(op, layout, nullptr);
    return layout != nullptr;
}

void smol_load_weight(bool first, bool has_head) {
    if (first) {
        current.weights.clear();
    }
    current.has_head = has_head;
}

smol_status smol_packing_set(const smol_packing * packing) {
    return smol_guard([&] {
        Preferences next;
        size_t n;
        const smol_layout * const * all = smol_layouts(&n);
        next.enabled = packing->enabled;
        next.use.resize(n, Use::normal);
        const auto mark = [&](const char * const * names, size_t count, Use as) {
            for (size_t j = 0; j < count; j++) {
                size_t i = 0;
                for (; i < n && strcmp(all[i]->name, names[j]); i++) {}
                if (i == n) {
                    std::string known;
                    for (i = 0; i < n; i++) {
                        known += std::string(i ? ", " : "") + all[i]->name;
                    }
                    throw std::runtime_error(std::string("this CPU level has no packed layout ") + names[j] + ", but " + known);
                }
                next.use[i] = as;
            }
        };
        mark(packing->named, packing->named_n, Use::named);
        mark(packing->off, packing->off_n, Use::off);
        preferences = std::move(next);
        current.weights.clear();
        return SMOL_OK;
    });
}

size_t smol_weight_count(void) {
    return current.weights.size();
}

bool smol_weight_get(size_t i, smol_weight * out) {
    if (i >= current.weights.size()) {
        return false;
    }
    *out = current.weights[i];
    return true;
}

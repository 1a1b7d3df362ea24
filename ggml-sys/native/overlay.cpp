// The overlay: an extra buffer type, first in the CPU backend's list, through which every graph node is offered to the
// attached engine on every compute thread (dispatch.cpp); a wrapper around graph computation; and the load hook.
//
// Why it reaches every node: ggml_compute_forward asks each extra buffer type before its own switch
// (ggml-cpu.c:1762, traits.cpp:11). The list is a mutable vector (ggml-cpu.cpp:42) that the CPU device copies once, at
// the first model load (ggml-cpu.cpp:76): hence smol_install() must come first, and checks that it did.
#include "dispatch.h"
#include "guard.h"
#include "pack_cache.h"
#include "paged.h"
#include "smol-hooks.h"
#include "streamed.h"
#include "weight_pages.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

static_assert(GGML_BACKEND_API_VERSION == 3, "the backend structs have changed: check every use below");
static_assert(GGML_OP_COUNT <= 128, "smol_engine.op_mask has 128 bits");

namespace {

// Engines are replaced as a whole and never freed: compute threads may still look at an old one for an instant.
// There are as many as smol_engine_set() calls.
std::atomic<const smol_engine *> engine{nullptr};
// Held shared while a graph or a load runs, exclusively while the engine changes.
std::shared_mutex engine_mutex;

decltype(ggml_backend_device_i::init_backend) cpu_init_backend;
std::atomic<decltype(ggml_backend_i::graph_compute)> cpu_graph_compute{nullptr};

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    std::shared_lock<std::shared_mutex> lock(engine_mutex);
    const smol_engine * e = engine.load(std::memory_order_acquire);
    if (e && e->graph_begin) {
        e->graph_begin(e->ud, graph->n_nodes, graph->uid);
    }
    ggml_status status = GGML_STATUS_FAILED;
    // A context has a backend of its own, whose graphs run one after the other.
    if (smol_streamed_begin(graph, reinterpret_cast<uintptr_t>(backend))) {
        status = cpu_graph_compute.load()(backend, graph);
    }
    const bool paged = smol_paged_end(), streamed = smol_streamed_end();
    if (!(paged && streamed) && status == GGML_STATUS_SUCCESS) {
        status = GGML_STATUS_FAILED;
    }
    if (e && e->graph_end) {
        e->graph_end(e->ud, status);
    }
    return status;
}

ggml_backend_t init_backend(ggml_backend_dev_t dev, const char * params) {
    ggml_backend_t backend = cpu_init_backend(dev, params);
    if (backend) {
        cpu_graph_compute = backend->iface.graph_compute;
        backend->iface.graph_compute = graph_compute;
    }
    return backend;
}

// Whether the CPU device offers our type to the loader: false when its copy of the list is older than ours.
bool device_lists(ggml_backend_dev_t dev, ggml_backend_buffer_type_t ours) {
    auto * get = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * buft = get ? get(dev) : nullptr; buft && *buft; buft++) {
        if (*buft == ours) {
            return true;
        }
    }
    return false;
}

smol_status install() {
    static ggml_backend_buffer_type buft = {}, paged = {}, streamed = {};
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!dev) {
        smol_set_error("llama.cpp has no CPU backend");
        return SMOL_ERR_STATE;
    }
    smol_dispatch_init(&buft, &paged, &streamed);
    buft.device = paged.device = streamed.device = dev;
    buft.context = smol_dispatch_type();
    paged.context = smol_paged_dispatch_type();
    streamed.context = smol_streamed_dispatch_type();
    // The last one that is added comes first: the engine sees every node.
    smol_dispatch_list(&streamed, true);
    smol_dispatch_list(&paged, true);
    smol_dispatch_list(&buft, true);
    if (!device_lists(dev, &buft)) {
        smol_dispatch_list(&buft, false);
        smol_dispatch_list(&paged, false);
        smol_dispatch_list(&streamed, false);
        smol_set_error("the overlay must be installed before the first model is loaded");
        return SMOL_ERR_STATE;
    }
    cpu_init_backend = dev->iface.init_backend;
    dev->iface.init_backend = init_backend;
    smol_weight_pages_init();
    return SMOL_OK;
}

} // namespace

bool smol_engine_wants(ggml_op op) {
    const smol_engine * e = engine.load(std::memory_order_acquire);
    return e && e->node && (e->op_mask[op / 64] >> (op % 64) & 1);
}

bool smol_engine_node(ggml_tensor * tensor, int ith, int nth) {
    const smol_engine * e = engine.load(std::memory_order_acquire);
    const smol_node node = {tensor, ith, nth};
    return e && e->node && e->node(e->ud, &node);
}

uint32_t smol_abi_version(void) {
    return SMOL_ABI_VERSION;
}

bool smol_has_load_hook(void) {
#ifdef SMOL_PATCH_LOAD_HOOK
    return true;
#else
    return false;
#endif
}

smol_status smol_install(uint32_t abi_version) {
    if (abi_version != SMOL_ABI_VERSION) {
        smol_set_error("the Rust and the C++ side were built for different ABI versions: rebuild both");
        return SMOL_ERR_ABI;
    }
    return smol_guard([] {
        static std::mutex mutex;
        static bool done = false;
        std::lock_guard<std::mutex> lock(mutex);
        const smol_status status = done ? SMOL_OK : install();
        done = done || status == SMOL_OK;
        return status;
    });
}

smol_status smol_engine_set(const smol_engine * next) {
    if (next && next->abi_version != SMOL_ABI_VERSION) {
        smol_set_error("the engine was built for another ABI version: rebuild it");
        return SMOL_ERR_ABI;
    }
    if (next && next->load_tensor && !smol_has_load_hook()) {
        smol_set_error("this build leaves out the load-hook patch (cargo feature load-hook of ggml-sys)");
        return SMOL_ERR_MISSING;
    }
    return smol_guard([&] {
        static std::vector<std::unique_ptr<const smol_engine>> all;
        std::unique_lock<std::shared_mutex> lock(engine_mutex);
        if (next) {
            all.push_back(std::make_unique<const smol_engine>(*next));
        }
        engine.store(next ? all.back().get() : nullptr, std::memory_order_release);
        return SMOL_OK;
    });
}

bool smol_load_tensor(ggml_tensor * tensor, uint16_t file, size_t offset, size_t size) {
    if (smol_paged_load(tensor, file, offset, size) || smol_streamed_load(tensor, file, offset, size) ||
        smol_pack_cache_load(tensor)) {
        return true;
    }
    std::shared_lock<std::shared_mutex> lock(engine_mutex);
    const smol_engine * e = engine.load(std::memory_order_acquire);
    if (!e || !e->load_tensor) {
        return false;
    }
    const int taken = e->load_tensor(e->ud, tensor, file, offset, size);
    if (taken < 0) {
        throw std::runtime_error(std::string("the engine could not supply ") + ggml_get_name(tensor));
    }
    return taken > 0;
}

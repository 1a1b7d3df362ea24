#include "pack_cache.h"

#include "guard.h"
#include "packed.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "repack.h"

#include <algorithm>
#include <atomic>

namespace {

// Of the models that this thread loads.
thread_local const smol_pack_cache * current;

// Which of its layouts upstream takes follows from type, shape and CPU.
constexpr const char * UPSTREAM = "repack";
// As the model's file has it.
constexpr const char * PLAIN = "plain";

smol_packed_weight describe(const ggml_tensor * tensor, const smol_layout * layout, const char * otherwise, size_t bytes) {
    smol_packed_weight w = {};
    w.name = tensor->name;
    w.layout = layout ? layout->name : otherwise;
    w.version = layout ? layout->version : 0;
    w.type = tensor->type;
    std::copy_n(tensor->ne, 4, w.ne);
    w.bytes = bytes;
    return w;
}

// ---- upstream's packed weights ----
// Their type is a static struct that is not const (repack.cpp:5243), which makes its buffers anew for each model.

std::atomic<decltype(ggml_backend_buffer_type_i::alloc_buffer)> repack_alloc_buffer{nullptr};
std::atomic<decltype(ggml_backend_buffer_i::init_tensor)> repack_init_tensor{nullptr};
std::atomic<decltype(ggml_backend_buffer_i::set_tensor)> repack_set_tensor{nullptr};

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    const ggml_status status = repack_init_tensor.load()(buffer, tensor);
    const size_t bytes = ggml_nbytes(tensor);
    if (status != GGML_STATUS_SUCCESS || tensor->view_src || !tensor->extra) {
        return status;
    }
    if (const void * cached = smol_pack_cache_find(tensor, nullptr, bytes)) {
        tensor->data = const_cast<void *>(cached);
        smol_pack_cache_placed(tensor, nullptr, bytes);
    }
    return status;
}

void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    if (smol_pack_cached(tensor)) {
        return;
    }
    repack_set_tensor.load()(buffer, tensor, data, offset, size);
    smol_pack_cache_placed(tensor, nullptr, size);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = repack_alloc_buffer.load()(buft, size);
    if (buffer && current) {
        repack_init_tensor = buffer->iface.init_tensor;
        repack_set_tensor = buffer->iface.set_tensor;
        buffer->iface.init_tensor = init_tensor;
        buffer->iface.set_tensor = set_tensor;
    }
    return buffer;
}

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    const size_t bytes = ggml_nbytes(tensor);
    return smol_pack_cache_find(tensor, nullptr, bytes) ? SMOL_CACHED_BYTES : bytes;
}

// ---- weights that nobody packs ----
// The CPU's own type, a static struct too (ggml-backend.cpp:2851), whose buffers are also the memory of the packed types.

decltype(ggml_backend_buffer_type_i::alloc_buffer) plain_alloc_buffer;

const void * find_plain(const ggml_tensor * tensor) {
    if (!current || tensor->view_src) {
        return nullptr;
    }
    const smol_packed_weight weight = describe(tensor, nullptr, PLAIN, ggml_nbytes(tensor));
    return current->find(current->ud, &weight);
}

ggml_status plain_init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    const bool plain = buffer->buft == ggml_backend_cpu_buffer_type();
    if (const void * mapped = plain ? find_plain(tensor) : nullptr) {
        tensor->data = const_cast<void *>(mapped);
    }
    return GGML_STATUS_SUCCESS;
}

ggml_backend_buffer_t plain_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = plain_alloc_buffer(buft, size);
    if (buffer && current && !buffer->iface.init_tensor) {
        buffer->iface.init_tensor = plain_init_tensor;
    }
    return buffer;
}

size_t plain_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    return find_plain(tensor) ? SMOL_CACHED_BYTES : ggml_nbytes(tensor);
}

} // namespace

void smol_pack_cache_init(void) {
    auto & plain = ggml_backend_cpu_buffer_type()->iface;
    if (!plain.get_alloc_size) {
        plain_alloc_buffer = plain.alloc_buffer;
        plain.alloc_buffer = plain_alloc;
        plain.get_alloc_size = plain_alloc_size;
    }
    auto & iface = ggml_backend_cpu_repack_buffer_type()->iface;
    if (iface.get_alloc_size) {
        // Not the type that this was written for: better no cache than a wrong one.
        return;
    }
    repack_alloc_buffer = iface.alloc_buffer;
    iface.alloc_buffer = alloc_buffer;
    iface.get_alloc_size = alloc_size;
}

const void * smol_pack_cache_find(const ggml_tensor * tensor, const smol_layout * layout, size_t bytes) {
    if (!current) {
        return nullptr;
    }
    const smol_packed_weight weight = describe(tensor, layout, UPSTREAM, bytes);
    return current->find(current->ud, &weight);
}

void smol_pack_cache_placed(const ggml_tensor * tensor, const smol_layout * layout, size_t bytes) {
    if (current) {
        const smol_packed_weight weight = describe(tensor, layout, UPSTREAM, bytes);
        current->placed(current->ud, &weight, tensor->data);
    }
}

bool smol_pack_cached(const ggml_tensor * tensor) {
    const char * base = static_cast<const char *>(ggml_backend_buffer_get_base(tensor->buffer));
    const char * data = static_cast<const char *>(tensor->data);
    return data < base || data >= base + ggml_backend_buffer_get_size(tensor->buffer);
}

bool smol_pack_cache_load(const ggml_tensor * tensor) {
    if (!current || !tensor->buffer) {
        return false;
    }
    const auto * buft = tensor->buffer->buft;
    const bool ours = smol_packed_layout(tensor) || buft == ggml_backend_cpu_repack_buffer_type() ||
                      buft == ggml_backend_cpu_buffer_type();
    return ours && smol_pack_cached(tensor);
}

smol_status smol_pack_cache_set(const smol_pack_cache * cache) {
    if (cache && cache->abi_version != SMOL_ABI_VERSION) {
        smol_set_error("the cache was built for another ABI version: rebuild it");
        return SMOL_ERR_ABI;
    }
    current = cache;
    return SMOL_OK;
}

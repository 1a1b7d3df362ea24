#include "weight_pages.h"

#include "ggml-backend-impl.h"

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

thread_local bool loading = false;

decltype(ggml_backend_buffer_type_i::alloc_buffer) cpu_alloc_buffer;

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = cpu_alloc_buffer(buft, size);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (buffer && loading) {
        constexpr uintptr_t page = 4096;
        const uintptr_t base = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer));
        const uintptr_t first = (base + page - 1) / page * page;
        // Advice: a kernel without huge pages refuses, one with larger pages than 4 KiB may, and nothing changes.
        if (first < base + size) {
            madvise(reinterpret_cast<void *>(first), base + size - first, MADV_HUGEPAGE);
        }
    }
#endif
    return buffer;
}

} // namespace

void smol_weight_pages_init() {
    // A static struct that is not const (ggml-backend.cpp:2851); packed and repacked weights are allocated through it too.
    auto & allocate = ggml_backend_cpu_buffer_type()->iface.alloc_buffer;
    cpu_alloc_buffer = allocate;
    allocate = alloc_buffer;
}

smol_weight_pages::smol_weight_pages() noexcept : before(loading) {
    loading = true;
}

smol_weight_pages::~smol_weight_pages() {
    loading = before;
}

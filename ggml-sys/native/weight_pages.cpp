#include "weight_pages.h"

#include "ggml-backend-impl.h"

#include <atomic>
#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

thread_local bool loading = false;

decltype(ggml_backend_buffer_type_i::alloc_buffer) cpu_alloc_buffer;

std::atomic<decltype(ggml_backend_buffer_i::clear)> cpu_clear{nullptr};

// Smaller ones would not get a huge page for sure.
constexpr size_t LARGE = 4 << 20;

void use_huge_pages(ggml_backend_buffer_t buffer) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = 4096;
    const uintptr_t base = reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer));
    const uintptr_t first = (base + page - 1) / page * page, end = base + ggml_backend_buffer_get_size(buffer);
    // Advice: a kernel without huge pages refuses, one with larger pages than 4 KiB may, and nothing changes.
    if (first < end) {
        madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE);
    }
#else
    (void) buffer;
#endif
}

// What is cleared as a whole, as the caches of contexts are, gets all its pages at once.
void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    if (ggml_backend_buffer_get_size(buffer) >= LARGE) {
        use_huge_pages(buffer);
    }
    cpu_clear.load()(buffer, value);
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = cpu_alloc_buffer(buft, size);
    if (buffer && buffer->iface.clear) {
        cpu_clear = buffer->iface.clear;
        buffer->iface.clear = clear;
    }
    if (buffer && loading) {
        use_huge_pages(buffer);
    }
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

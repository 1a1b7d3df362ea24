// Weights whose bytes lie in a cache that outlives the process, in place of memory of their own. Compiled once per
// CPU level.
#pragma once

#include "kernels/layout.h"
#include "smol.h"

#ifdef __cplusplus
extern "C" {
#endif

// Room for a tensor whose bytes are elsewhere: it needs an address of its own when it is allocated.
#define SMOL_CACHED_BYTES 64

// Puts upstream's packed weights into the cache too, and asks it for those that nobody packs.
void smol_pack_cache_init(void);

// The bytes of a weight of the model that this thread loads; NULL: they are not there. `layout` NULL: upstream's own.
const void * smol_pack_cache_find(const struct ggml_tensor * tensor, const struct smol_layout * layout, size_t bytes);

// Tells the cache where the bytes of a weight are now: at tensor->data.
void smol_pack_cache_placed(const struct ggml_tensor * tensor, const struct smol_layout * layout, size_t bytes);

// Whether the bytes of a weight lie outside of its buffer.
bool smol_pack_cached(const struct ggml_tensor * tensor);

// The loader is about to read a tensor. true: it lies in the cache.
bool smol_pack_cache_load(const struct ggml_tensor * tensor);

#ifdef __cplusplus
}
#endif

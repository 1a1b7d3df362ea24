// The part of the overlay that derives from the CPU backend's classes, hence compiled once per CPU level, and what it
// asks of the part that is compiled once.
#pragma once

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- compiled per level ----

// The ggml::cpu::extra_buffer_type of streamed weights, that of paged experts, and the one that offers nodes to the engine
// and computes with packed weights; they live as long as the process.
void * smol_streamed_dispatch_type(void);
void * smol_paged_dispatch_type(void);
void * smol_dispatch_type(void);

// Makes the buffer types those of packed weights (packed.h), of paged experts (paged.h) and of streamed weights (streamed.h).
void smol_dispatch_init(ggml_backend_buffer_type_t packed, ggml_backend_buffer_type_t paged,
                        ggml_backend_buffer_type_t streamed);

// Whether upstream's own packed layouts take no weight of the models that this thread loads.
void smol_dispatch_plain(bool on);

// Whether this thread loads a model with a streamer.
bool smol_streaming(void);

// The buffer type of paged experts, if this thread loads a model with a pager; else NULL.
ggml_backend_buffer_type_t smol_paging_type(void);

// Puts a buffer type first in the CPU backend's list, or takes the first one out again.
void smol_dispatch_list(ggml_backend_buffer_type_t buft, bool add);

// ---- compiled once ----

// Whether the attached engine wants to see nodes of this op.
bool smol_engine_wants(enum ggml_op op);

// Offers a node to the engine. true: it has computed the node.
bool smol_engine_node(struct ggml_tensor * tensor, int ith, int nth);

#ifdef __cplusplus
}
#endif

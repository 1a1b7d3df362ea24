// The part of the overlay that derives from the CPU backend's classes, hence compiled once per CPU level, and what it
// asks of the part that is compiled once.
#pragma once

#include "ggml-backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- compiled per level ----

// The ggml::cpu::extra_buffer_type that offers nodes to the engine and computes with packed weights; lives as long as the process.
void * smol_dispatch_type(void);

// Makes `buft` the type of packed weights (packed.h).
void smol_dispatch_init(ggml_backend_buffer_type_t buft);

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

// Packed weights: which weights are packed and how (layouts in kernels/), the buffer type that they lie in, and the
// matrix products with them. Compiled once per CPU level.
#pragma once

#include "kernels/layout.h"
#include "smol.h"

struct ggml_backend_buffer_type;
struct ggml_compute_params;

#ifdef __cplusplus
extern "C" {
#endif

// How the weight tensor `tensor` would be packed for `op`; NULL: not at all.
const struct smol_layout * smol_layout_for(const struct ggml_tensor * tensor, enum ggml_op op);

// The same for weights that need a layout before they are read: one that takes all weights of a type and row length.
const struct smol_layout * smol_layout_for_any(enum ggml_type type, int64_t k);

// While a layout is set, it is the one of all weights that this thread puts into packed buffers, whatever is chosen for
// models. NULL: as for models again.
void smol_packing_force(const struct smol_layout * layout);

// Makes `buft` the buffer type of packed weights.
void smol_packed_init(struct ggml_backend_buffer_type * buft);

// Whether a weight in the packed buffer type can be used by `op`; notes what the loader asks (smol_weight_next).
bool smol_packed_supports(const struct ggml_tensor * op);

// Notes what becomes of the weight of `op`. With no layout, `reason` says why not; NULL: that is found out here.
void smol_packed_note(const struct ggml_tensor * op, const struct smol_layout * layout, const char * reason);

// The layout of a weight that lies packed in memory; NULL: it does not.
const struct smol_layout * smol_packed_layout(const struct ggml_tensor * tensor);

// Where the packed rows of matrix number `matrix` of a tensor begin, and the bytes from one matrix to the next.
size_t smol_packed_matrix_bytes(const struct smol_layout * layout, const struct ggml_tensor * tensor);

// Size of the work buffer of a node whose src[0] is packed.
size_t smol_packed_work_size(const struct ggml_tensor * node);
// Computes this thread's share of such a node; every thread calls it.
void smol_packed_compute(struct ggml_compute_params * params, struct ggml_tensor * node);

// The same where the weights lie packed in this layout, whatever buffer they are in.
size_t smol_packed_work_size_as(const struct ggml_tensor * node, const struct smol_layout * layout);
void smol_packed_compute_as(struct ggml_compute_params * params, struct ggml_tensor * node, const struct smol_layout * layout);

#ifdef __cplusplus
}
#endif

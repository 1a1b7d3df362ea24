// Paged experts: weights of routed experts that a pager keeps in memory while they are used (smol.h, struct smol_pager).
// Compiled once per CPU level.
#pragma once

#include "smol.h"

#include <atomic>

struct ggml_backend_buffer_type;
struct ggml_compute_params;

extern "C" {

// Where the experts of one tensor come from. `extra` of that tensor, and in graphs of the sort and of the router's product
// that choose among its experts.
struct smol_paged {
    const smol_pager * pager;
    smol_paged_place place;
    // What the graph says about the layer's router.
    mutable std::atomic<int32_t> used{0}; // experts of a token
    mutable std::atomic<smol_gating> gating{SMOL_GATING_LOGITS};
};

// Makes `buft` the buffer type of paged experts, which `context`, an extra_buffer_type, decides about.
void smol_paged_init(struct ggml_backend_buffer_type * buft);

// Whether the models that this thread loads have a pager that pages the tensor of this name.
bool smol_paged_takes(const char * name, smol_paged_place * place);

// Whether a weight in that buffer type can be used by `op`.
bool smol_paged_supports(const struct ggml_tensor * op);

// NULL: not a tensor of paged experts.
const smol_paged * smol_paged_of(const struct ggml_tensor * tensor);

// Whether the load of a tensor's bytes is the pager's; throws where loader and pager disagree about their place.
bool smol_paged_load(struct ggml_tensor * tensor, uint16_t file, size_t offset, size_t size);

// Size of the work buffer of a product with paged experts. Also finds the router that chooses them.
size_t smol_paged_work_size(int n_threads, const struct ggml_tensor * node);

// Whether smol_paged_compute() has to do with a node.
bool smol_paged_wants(const struct ggml_tensor * node);
// Computes this thread's share of a product with paged experts, or of the sort that chooses them. false: go on as usual.
bool smol_paged_compute(struct ggml_compute_params * params, struct ggml_tensor * node);

// The graph that this thread computed is over. false: a pager failed in it.
bool smol_paged_end(void);

} // extern "C"

// A product of plain weights with one row of activations, as every product of a generation step is. Upstream gives out
// chunks of 64 rows, or each thread an equal part; here they are guided (chunks.h), so that a thread reads long stretches
// of memory and a slow one still ends with the others. Compiled once per CPU level.
#pragma once

#include "ggml.h"

struct ggml_compute_params;

// Whether the node is one of these.
bool smol_matrix_vector_wants(const struct ggml_tensor * node);

// Computes this thread's part with upstream's own kernel, row by row as upstream does: the same bits. false, on all
// threads alike: the node is none of these.
bool smol_matrix_vector(const struct ggml_compute_params * params, struct ggml_tensor * node);

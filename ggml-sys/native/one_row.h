// Element-wise nodes of one row, as every node of a generation step is: upstream divides rows among threads, so that one
// thread would do all of it while the others wait. Here the columns are divided. Compiled once per CPU level.
#pragma once

#include "ggml.h"

struct ggml_compute_params;

// Whether the node is one of these and long enough for it to pay.
bool smol_one_row_wants(const struct ggml_tensor * node);

// Computes the columns of the calling thread, with upstream's own kernel: the same bits as upstream's. false, on all
// threads alike: the node is none of these.
bool smol_one_row(const struct ggml_compute_params * params, struct ggml_tensor * node);

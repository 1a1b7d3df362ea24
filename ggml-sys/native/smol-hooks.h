// What patched llama.cpp files call; implemented in overlay.cpp and packed_weights.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

struct ggml_tensor;

// Asks the attached engine for a weight. true: the engine has dealt with it, nothing is to be read.
// `file`: index of the shard; `offset`, `size`: bytes of the weight in it. Throws when the engine reports an error.
bool smol_load_tensor(ggml_tensor * tensor, uint16_t file, size_t offset, size_t size);

// The loader is about to choose where a weight goes. `first`: of its model; `has_head`: the model has an output matrix of
// its own, so that its embeddings are only read row by row.
void smol_load_weight(bool first, bool has_head);

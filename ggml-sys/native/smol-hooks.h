// What patched llama.cpp files call; implemented in overlay.cpp, packed_weights.cpp and pruned_head.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct ggml_tensor;
struct llama_model;
struct llama_model_loader;
struct llm_graph_context;
struct smol_head;

// Asks the attached engine for a weight. true: the engine has dealt with it, nothing is to be read.
// `file`: index of the shard; `offset`, `size`: bytes of the weight in it. Throws when the engine reports an error.
bool smol_load_tensor(ggml_tensor * tensor, uint16_t file, size_t offset, size_t size);

// The loader is about to choose where a weight goes. `first`: of its model; `has_head`: the model has an output matrix of
// its own, so that its embeddings are only read row by row.
void smol_load_weight(bool first, bool has_head);

// Whether the loader is to take `output.weight` where an architecture asks for its embeddings as the head, because the
// model's head is pruned.
bool smol_head_replaces(const llama_model_loader & loader, const std::string & name);

// The shape that a weight is expected to have, given the one that the architecture expects.
std::vector<int64_t> smol_head_shape(const llama_model_loader & loader, const std::string & name,
                                     std::vector<int64_t> shape);

// Reads which tokens the rows of a pruned head belong to; NULL: the head is whole. Called when the loader has all weights.
// Throws when the file or the architecture does not fit.
std::shared_ptr<const smol_head> smol_head_load(llama_model_loader & loader, const llama_model & model);

// Checks that a model's graph can end with `head`, which may be that of the model it drafts for; returns it.
const smol_head * smol_head_of(const llama_model & model, const smol_head * head);

// Makes one logit for each of the `n_vocab` tokens of a graph's logits for the head's rows. `drafts`: the graph is that of
// the block that drafts tokens.
void smol_head_logits(llm_graph_context & graph, const smol_head * head, bool drafts, int64_t n_vocab);

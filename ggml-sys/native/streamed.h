// Streamed weights: matrices that a streamer brings into memory in the order in which a graph uses them, and tables of
// which it reads single rows (smol.h, struct smol_streamer). Compiled once per CPU level.
#pragma once

#include "smol.h"

#include <atomic>

struct ggml_backend_buffer_type;
struct ggml_cgraph;
struct ggml_compute_params;

namespace ggml::cpu {
class tensor_traits;
}

extern "C" {

// Where one streamed tensor comes from: `extra` of that tensor.
struct smol_streamed {
    const smol_streamer * streamer;
    smol_stream_place place;
    ggml::cpu::tensor_traits * repacked; // computes with it where it lies in upstream's own packed form
    // Of the graph that runs, of which there is one at a time.
    uintptr_t run;
    int32_t index; // among its uses
    void * address;
    // What all threads do about its product, which the first of them decides: 0 not yet, 1 compute it, -1 leave it out.
    std::atomic<int32_t> verdict{0};

    smol_streamed();
    ~smol_streamed();
};

// Makes `buft` the buffer type of streamed weights, which `context`, an extra_buffer_type, decides about.
void smol_streamed_init(struct ggml_backend_buffer_type * buft);

// Whether the models that this thread loads have a streamer that brings the tensor of this name for `op`.
bool smol_streamed_takes(const char * name, enum ggml_op op, smol_stream_place * place);

// Whether the models that this thread loads have a streamer.
bool smol_streaming(void);

// Whether a weight in that buffer type can be used by `op`.
bool smol_streamed_supports(const struct ggml_tensor * op);

// NULL: not a streamed tensor.
smol_streamed * smol_streamed_of(const struct ggml_tensor * tensor);

// Whether any model has streamed weights.
bool smol_streamed_any(void);

// Whether the load of a tensor's bytes is the streamer's; throws where loader and streamer disagree about their place.
bool smol_streamed_load(struct ggml_tensor * tensor, uint16_t file, size_t offset, size_t size);

// Tells the streamer what a graph uses, and in which order; may wait for another graph to end. false: it can't be computed.
bool smol_streamed_begin(const struct ggml_cgraph * graph, uintptr_t run);
// The graph that this thread began is over. false: the streamer failed in it.
bool smol_streamed_end(void);

// Whether smol_streamed_compute() has to do with a node.
bool smol_streamed_wants(const struct ggml_tensor * node);
size_t smol_streamed_work_size(int n_threads, const struct ggml_tensor * node);
// Computes this thread's share of a node with streamed weights.
void smol_streamed_compute(struct ggml_compute_params * params, struct ggml_tensor * node);

} // extern "C"

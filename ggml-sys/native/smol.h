// C ABI between Rust and the overlay: installation, engine callbacks, and guarded calls into llama.cpp.
//
// Every function that can meet a C++ exception returns a smol_status; the message is kept per thread
// (smol_last_error). No function reads an environment variable.
#ifndef SMOL_H
#define SMOL_H

#include "ggml.h"
#include "kernels/layout.h"
#include "llama.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Raised with every change of a struct or signature below; both sides check it (smol_install).
#define SMOL_ABI_VERSION 6

enum smol_status {
    SMOL_OK            = 0,
    SMOL_ERR_EXCEPTION = 1, // a C++ exception was caught; smol_last_error() has its text
    SMOL_ERR_MEMORY    = 2, // std::bad_alloc or std::length_error
    SMOL_ERR_ABI       = 3, // the two sides were built for different ABI versions
    SMOL_ERR_STATE     = 4, // called too late or too early
    SMOL_ERR_NULL      = 5, // llama.cpp returned no object; its log has the reason
    SMOL_ERR_MISSING   = 6, // needs a patch that this build leaves out
};

// Text of the last error on this thread; never NULL, valid until the next smol_ call on this thread.
const char * smol_last_error(void);

// ---- overlay -------------------------------------------------------------------------------------------------------

// CPU levels that are compiled in, lowest first: one without the cargo feature multi-level.
uint32_t         smol_level_count(void);
// The level whose code runs: the lowest one until another is selected.
uint32_t         smol_level_selected(void);
// Call before anything else of this library, once the CPU is known to have what the level needs.
enum smol_status smol_level_select(uint32_t level);

// Puts the overlay's buffer type first in the CPU backend's list and wraps graph computation.
// Call before the first model load; later calls do nothing. abi_version: SMOL_ABI_VERSION of the caller.
enum smol_status smol_install(uint32_t abi_version);

// Name of the llama.cpp commit, and which compiled-in patches call into the overlay.
uint32_t smol_abi_version(void);
bool     smol_has_load_hook(void);

// A graph node as one compute thread is about to run it.
struct smol_node {
    struct ggml_tensor * tensor; // valid for the duration of the callback
    int32_t ith;                 // this thread, 0..nth
    int32_t nth;
};

// Callbacks of one engine. They run on llama.cpp's threads, several at once, and must not unwind.
struct smol_engine {
    uint32_t abi_version;
    uint32_t reserved;
    void *   ud;
    // bit per enum ggml_op: the ops for which `node` is called
    uint64_t op_mask[2];
    // A weight is about to be read at load. 1: the engine supplies the bytes; 0: read it as usual; negative: fail the load.
    int  (*load_tensor)(void * ud, struct ggml_tensor * tensor, uint16_t file, uint64_t offset, uint64_t size);
    // First and last call around one graph computation, on the thread that runs it.
    void (*graph_begin)(void * ud, int32_t n_nodes, uint64_t uid);
    void (*graph_end)(void * ud, int32_t status);
    // Every thread, before each node of op_mask. true: computed by the engine, false: go on as usual.
    bool (*node)(void * ud, const struct smol_node * node);
};

// Attaches an engine (copied) or, with NULL, detaches it. Waits for running graphs and loads to end; must not be
// called from a callback. Any callback may be NULL.
enum smol_status smol_engine_set(const struct smol_engine * engine);

// ---- packed weights --------------------------------------------------------------------------------------------------

// Which layouts of smol_layouts() are used for the models that the calling thread loads from now on.
struct smol_packing {
    bool enabled;              // false: no weight is packed by the overlay
    const char * const * named; // layouts to prefer for their type, among them those that are used only when named
    size_t named_n;
    const char * const * off;   // layouts not to use
    size_t off_n;
};

// Error: there is no layout of such a name on this CPU level.
enum smol_status smol_packing_set(const struct smol_packing * packing);

// NULL: the layout computes on this CPU what its reference does. Else what is wrong.
const char * smol_self_test(const struct smol_layout * layout);

// A matrix of the model that this thread loaded last, once for each way in which the model uses it.
struct smol_weight {
    char name[64];
    enum ggml_type type;
    enum ggml_op op;     // MUL_MAT, MUL_MAT_ID or GET_ROWS
    int64_t ne[4];
    uint64_t bytes;      // in the file
    const char * path;   // name of the layout; "repack": one of llama.cpp's own; NULL: the plain type's kernel
    const char * reason; // why there is no layout, with path NULL
};

size_t smol_weight_count(void);
bool   smol_weight_get(size_t i, struct smol_weight * out); // false: there is no number i

// ---- paged experts ----------------------------------------------------------------------------------------------------
// Weights of routed experts that are in memory only while they are used. Their tensors have no bytes of their own: a pager
// hands out addresses expert by expert.

struct smol_paged_place {
    int32_t layer;                     // number of the layer among those that are paged
    int32_t tensor;                    // number of the tensor in the layer
    const struct smol_layout * layout; // how an expert lies in memory; NULL: as in the file
};

// A product with experts that is about to begin.
struct smol_expert_op {
    uintptr_t run; // the graph computation; no two that run at once have the same
    int32_t layer, tensor;
    int32_t n;                 // experts in use
    const int32_t * experts;   // they, in ascending order
    uint32_t * order;          // their numbers 0 to n - 1, which may be put in the order in which they are best waited for
    const int32_t * first_use; // expert e has uses number first_use[e] up to first_use[e + 1]
    // The experts of each token, `used` of them, `stride` bytes from one token to the next.
    const int32_t * ids;
    int64_t used, tokens;
    size_t stride;
};

// What a router's scores are made of, by the graph.
enum smol_gating {
    SMOL_GATING_LOGITS        = 0, // the router's product as it is
    SMOL_GATING_SOFTMAX       = 1,
    SMOL_GATING_SIGMOID       = 2,
    SMOL_GATING_SQRT_SOFTPLUS = 3,
};

// Callbacks of a pager. They run on llama.cpp's threads and must not unwind; those of one run do not overlap, but for `wait`.
struct smol_pager {
    uint32_t abi_version;
    uint32_t reserved;
    void *   ud;
    // Loading: whether a tensor is paged, and where; and whether the loader finds it where the pager does.
    bool (*place)(void * ud, const char * name, struct smol_paged_place * out);
    bool (*check)(void * ud, const struct smol_paged_place * place, uint16_t file, uint64_t offset, uint64_t size);
    // What the router of a layer is about to read: n numbers, one row of hidden state a token. May be NULL.
    void (*hidden)(void * ud, int32_t layer, const float * x, int64_t n);
    // Puts all n experts of a layer in order for one token, best first. false: they are sorted by score. May be NULL.
    bool (*order)(void * ud, int32_t layer, enum smol_gating gating, const float * scores, int64_t n, int32_t * order);
    // A token will need these experts of a layer.
    void (*want)(void * ud, uintptr_t run, int32_t layer, const int32_t * experts, int32_t n);
    // A product begins; `wait` returns where its expert number i begins, once it is there (NULL: it will not be), and `done`
    // says that no thread uses it any more.
    void (*begin)(void * ud, const struct smol_expert_op * op);
    const void * (*wait)(void * ud, uintptr_t run, int32_t i);
    void (*done)(void * ud, uintptr_t run, int32_t i);
    // The graph is over. false: the pager failed in it.
    bool (*end)(void * ud, uintptr_t run);
};

// The pager of the models that the calling thread loads from now on; it must outlive them. NULL: none.
enum smol_status smol_paging_set(const struct smol_pager * pager);

// ---- streamed weights --------------------------------------------------------------------------------------------------
// Matrices that are in memory only while they are used, in an order that each graph tells when it begins, and tables of which
// single rows are read. Their tensors have no bytes of their own.

struct smol_stream_place {
    int32_t tensor;                    // number of the tensor
    const struct smol_layout * layout; // how it lies in memory; NULL: as in the file
    bool rows_only;                    // only single rows are read, as they are in the file
    bool repacked;                     // with layout NULL: it lies in memory in upstream's own packed form
};

// Callbacks of a streamer. They run on llama.cpp's threads and must not unwind.
struct smol_streamer {
    uint32_t abi_version;
    uint32_t reserved;
    void *   ud;
    // Loading: whether a tensor is streamed, and how; and whether the loader finds it where the streamer does.
    bool (*place)(void * ud, const char * name, struct smol_stream_place * out);
    bool (*check)(void * ud, const struct smol_stream_place * place, uint16_t file, uint64_t offset, uint64_t size);
    // A graph begins that will use these n tensors in this order, each of them once: where they will be. Waits until no
    // other run is between `begin` and `end`. false: it failed or was stopped.
    bool (*begin)(void * ud, uintptr_t run, const int32_t * tensors, int32_t n, void ** addresses);
    // Waits for tensor number i of the order; those before it are not used any more. false: it will not come.
    bool (*wait)(void * ud, uintptr_t run, int32_t i);
    // Rows of a tensor, one after the other, as they are in the file; between `begin` and `end`. false: they did not come.
    bool (*rows)(void * ud, int32_t tensor, const int32_t * ids, int64_t n, void * rows);
    // The graph is over; called after each `begin`. false: the streamer failed in it.
    bool (*end)(void * ud, uintptr_t run);
};

// The streamer of the models that the calling thread loads from now on; it must outlive them. NULL: none.
enum smol_status smol_streaming_set(const struct smol_streamer * streamer);

// How a matrix of rows of k columns lies in memory when it is paged or streamed, given what smol_packing_set() has chosen.
// NULL: as in the file.
const struct smol_layout * smol_paged_layout(enum ggml_type type, int64_t k);

// How many rows upstream's own packed form of a matrix takes together, one such group after the other; 0: there is none for
// it on this CPU. Packed rows take as many bytes as plain ones. Ask after smol_install().
int64_t smol_repacked_rows(enum ggml_type type, int64_t columns, int64_t rows);
// Packs n rows of such a matrix, whole groups.
void smol_repack(enum ggml_type type, int64_t columns, int64_t rows, const void * plain, int64_t n, void * packed);

// ---- packed-weight cache -----------------------------------------------------------------------------------------------
// Packed bytes that are kept from one load to the next, by the overlay's layouts and by upstream's.

struct smol_packed_weight {
    const char * name;   // of the tensor
    const char * layout; // "repack": one of upstream's; "plain": none, the bytes are those of the model's file
    uint32_t version;    // of the layout
    enum ggml_type type;
    int64_t ne[4];
    size_t bytes;        // packed
};

// Callbacks of a cache, on the loading thread; they must not unwind.
struct smol_pack_cache {
    uint32_t abi_version;
    uint32_t reserved;
    void *   ud;
    // Where the bytes of a weight are, which must stay as long as the model; NULL: they are not there. The same answer for
    // the same weight.
    const void * (*find)(void * ud, const struct smol_packed_weight * weight);
    // A packed weight's bytes are there now, from `find` or in memory that the model owns.
    void (*placed)(void * ud, const struct smol_packed_weight * weight, const void * data);
};

// The cache of the models that the calling thread loads from now on; it must outlive the loads. NULL: none.
enum smol_status smol_pack_cache_set(const struct smol_pack_cache * cache);

// ---- single matrix products --------------------------------------------------------------------------------------------
// What a model does with one weight, without a model: to test and to measure kernels as models use them.

struct smol_matrix;  // weights in one kind of memory
struct smol_product; // one graph node with a matrix

struct smol_matrix_params {
    enum ggml_type type;
    int64_t columns, rows;
    int64_t matrices;                  // experts; 0: one plain matrix
    const struct smol_layout * layout; // packed this way, whatever smol_packing_set() has chosen
    const char * buffer_type;          // where there is no layout: "CPU" or one of the CPU backend's other types
};

// `data`: the plain rows, of ggml_row_size(type, columns) bytes each. SMOL_ERR_MISSING: such weights can't be kept that way.
enum smol_status smol_matrix_new(const struct smol_matrix_params * params, const void * data, struct smol_matrix ** out);
void             smol_matrix_free(struct smol_matrix * matrix);
size_t           smol_matrix_bytes(const struct smol_matrix * matrix); // of memory

struct smol_product_params {
    enum ggml_op op;        // MUL_MAT, MUL_MAT_ID or GET_ROWS
    int64_t ne[3];          // rows of activations in each dimension; MUL_MAT_ID: of a token, tokens, 1; GET_ROWS: ignored
    int64_t stride;         // floats from one row of activations to the next
    int64_t ids[2];         // MUL_MAT_ID: ids of a token, tokens; GET_ROWS: rows to get, 1
};

// The matrix and the pool must outlive the product.
enum smol_status smol_product_new(const struct smol_matrix * matrix, const struct smol_product_params * params,
                                  struct ggml_threadpool * pool, int32_t threads, struct smol_product ** out);
void             smol_product_free(struct smol_product * product);
// Copies the inputs, as many as the parameters say; ids must be those of matrices or rows, or -1 in MUL_MAT_ID.
enum smol_status smol_product_input(struct smol_product * product, const float * activations, size_t activations_n,
                                    const int32_t * ids, size_t ids_n);
enum smol_status smol_product_compute(struct smol_product * product, uint32_t times);
const float *    smol_product_output(const struct smol_product * product, size_t * n);

// ---- guarded calls -------------------------------------------------------------------------------------------------
// Same meaning as the llama.h function in the comment; results come back through the last pointer.

enum smol_status smol_backend_init(void);                                            // llama_backend_init

enum smol_status smol_model_load(const char ** paths, size_t n_paths, const struct llama_model_params * params,
                                 struct llama_model ** out);                         // llama_model_load_from_splits
void             smol_model_free(struct llama_model * model);                        // llama_model_free
enum smol_status smol_model_save(const struct llama_model * model, const char * path); // llama_model_save_to_file
enum smol_status smol_model_quantize(const char * in, const char * out, const struct llama_model_quantize_params * params,
                                     uint32_t * result);                             // llama_model_quantize

enum smol_status smol_context_new(struct llama_model * model, const struct llama_context_params * params,
                                  struct llama_context ** out);                      // llama_init_from_model
void             smol_context_free(struct llama_context * ctx);                      // llama_free

enum smol_status smol_decode(struct llama_context * ctx, const struct llama_batch * batch, int32_t * result); // llama_decode
enum smol_status smol_encode(struct llama_context * ctx, const struct llama_batch * batch, int32_t * result); // llama_encode
enum smol_status smol_synchronize(struct llama_context * ctx);                       // llama_synchronize
enum smol_status smol_logits_ith(struct llama_context * ctx, int32_t i, float ** out);     // llama_get_logits_ith
enum smol_status smol_embeddings_ith(struct llama_context * ctx, int32_t i, float ** out); // llama_get_embeddings_ith
enum smol_status smol_embeddings_seq(struct llama_context * ctx, llama_seq_id seq, float ** out); // llama_get_embeddings_seq

enum smol_status smol_tokenize(const struct llama_vocab * vocab, const char * text, int32_t len, llama_token * tokens,
                               int32_t cap, bool add_special, bool parse_special, int32_t * n);  // llama_tokenize
enum smol_status smol_token_to_piece(const struct llama_vocab * vocab, llama_token token, char * buf, int32_t cap,
                                     bool special, int32_t * n);                     // llama_token_to_piece

enum smol_status smol_memory_clear(struct llama_context * ctx, bool data);           // llama_memory_clear
enum smol_status smol_memory_seq_rm(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, bool * out);
enum smol_status smol_memory_seq_cp(struct llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1);
enum smol_status smol_memory_seq_keep(struct llama_context * ctx, llama_seq_id seq);
enum smol_status smol_memory_seq_add(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta);
enum smol_status smol_memory_seq_div(struct llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, int32_t d);

enum smol_status smol_state_seq_size(struct llama_context * ctx, llama_seq_id seq, size_t * out); // llama_state_seq_get_size
enum smol_status smol_state_seq_get(struct llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq, size_t * out);
enum smol_status smol_state_seq_set(struct llama_context * ctx, const uint8_t * src, size_t size, llama_seq_id seq, size_t * out);

enum smol_status smol_grammar_new(const struct llama_vocab * vocab, const char * gbnf, const char * root,
                                  struct llama_sampler ** out);                      // llama_sampler_init_grammar
enum smol_status smol_sampler_apply(struct llama_sampler * s, llama_token_data_array * cur);
enum smol_status smol_sampler_accept(struct llama_sampler * s, llama_token token);
enum smol_status smol_sampler_reset(struct llama_sampler * s);
enum smol_status smol_sampler_clone(const struct llama_sampler * s, struct llama_sampler ** out);
void             smol_sampler_free(struct llama_sampler * s);

enum smol_status smol_lora_load(struct llama_model * model, const char * path, struct llama_adapter_lora ** out);
enum smol_status smol_lora_set(struct llama_context * ctx, struct llama_adapter_lora ** adapters, size_t n, float * scales,
                               int32_t * result);                                    // llama_set_adapters_lora

// Rows of `n_per_row` floats to and from a ggml type; false: the type cannot be converted that way.
enum smol_status smol_quantize(enum ggml_type type, const float * src, void * dst, int64_t n_rows, int64_t n_per_row,
                               const float * imatrix /* NULL, or of a row */, size_t * bytes); // ggml_quantize_chunk
enum smol_status smol_dequantize(enum ggml_type type, const void * src, float * dst, int64_t n, bool * supported);

#ifdef __cplusplus
}
#endif

#endif // SMOL_H

// Guarded calls of llama.h and ggml.h (see smol.h).
#include "guard.h"

#include "dispatch.h"
#include "weight_pages.h"

#include <cstring>

namespace {
// Plain memory: setting it must not throw and must not need a destructor on foreign threads.
thread_local char last_error[1024];
} // namespace

void smol_set_error(const char * text) noexcept {
    std::strncpy(last_error, text ? text : "", sizeof(last_error) - 1);
    last_error[sizeof(last_error) - 1] = '\0';
}

const char * smol_last_error(void) {
    return last_error;
}

namespace {
// Wraps a call without a result.
template <typename F> smol_status run(F && f) noexcept {
    return smol_guard([&] {
        f();
        return SMOL_OK;
    });
}

// Wraps a call whose result goes to *out.
template <typename T, typename F> smol_status get(T * out, F && f) noexcept {
    return run([&] { *out = f(); });
}
} // namespace

smol_status smol_backend_init(void) {
    return run([] { llama_backend_init(); });
}

smol_status smol_model_load(const char ** paths, size_t n_paths, const llama_model_params * params, llama_model ** out) {
    llama_model_params p = *params;
    // Where extra buffer types are not asked, paged experts get theirs by name.
    const llama_model_tensor_buft_override paged[] = {
        {"\\.ffn_(gate|up|down|gate_up)_exps\\.weight$", smol_paging_type()},
        {nullptr, nullptr},
    };
    if (paged[0].buft && !p.use_extra_bufts) {
        p.tensor_buft_overrides = paged;
    }
    // Streamed weights have no names in common: they are found by asking, and upstream's layouts are told to refuse.
    const bool plain = smol_streaming() && !p.use_extra_bufts;
    p.use_extra_bufts = p.use_extra_bufts || plain;
    const smol_weight_pages huge;
    smol_dispatch_plain(plain);
    const smol_status status = smol_guard_object(out, [&] {
        return n_paths == 1 ? llama_model_load_from_file(paths[0], p) : llama_model_load_from_splits(paths, n_paths, p);
    });
    smol_dispatch_plain(false);
    return status;
}

void smol_model_free(llama_model * model) {
    run([&] { llama_model_free(model); });
}

smol_status smol_model_save(const llama_model * model, const char * path) {
    return run([&] { llama_model_save_to_file(model, path); });
}

smol_status smol_model_quantize(const char * in, const char * out, const llama_model_quantize_params * params,
                                uint32_t * result) {
    return get(result, [&] { return llama_model_quantize(in, out, params); });
}

smol_status smol_context_new(llama_model * model, const llama_context_params * params, llama_context ** out) {
    return smol_guard_object(out, [&] { return llama_init_from_model(model, *params); });
}

void smol_context_free(llama_context * ctx) {
    run([&] { llama_free(ctx); });
}

smol_status smol_decode(llama_context * ctx, const llama_batch * batch, int32_t * result) {
    return get(result, [&] { return llama_decode(ctx, *batch); });
}

smol_status smol_encode(llama_context * ctx, const llama_batch * batch, int32_t * result) {
    return get(result, [&] { return llama_encode(ctx, *batch); });
}

smol_status smol_synchronize(llama_context * ctx) {
    return run([&] { llama_synchronize(ctx); });
}

smol_status smol_logits_ith(llama_context * ctx, int32_t i, float ** out) {
    return smol_guard_object(out, [&] { return llama_get_logits_ith(ctx, i); });
}

smol_status smol_embeddings_ith(llama_context * ctx, int32_t i, float ** out) {
    return smol_guard_object(out, [&] { return llama_get_embeddings_ith(ctx, i); });
}

smol_status smol_embeddings_seq(llama_context * ctx, llama_seq_id seq, float ** out) {
    return smol_guard_object(out, [&] { return llama_get_embeddings_seq(ctx, seq); });
}

smol_status smol_tokenize(const llama_vocab * vocab, const char * text, int32_t len, llama_token * tokens, int32_t cap,
                          bool add_special, bool parse_special, int32_t * n) {
    return get(n, [&] { return llama_tokenize(vocab, text, len, tokens, cap, add_special, parse_special); });
}

smol_status smol_token_to_piece(const llama_vocab * vocab, llama_token token, char * buf, int32_t cap, bool special,
                                int32_t * n) {
    return get(n, [&] { return llama_token_to_piece(vocab, token, buf, cap, 0, special); });
}

smol_status smol_memory_clear(llama_context * ctx, bool data) {
    return run([&] { llama_memory_clear(llama_get_memory(ctx), data); });
}

smol_status smol_memory_seq_rm(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, bool * out) {
    return get(out, [&] { return llama_memory_seq_rm(llama_get_memory(ctx), seq, p0, p1); });
}

smol_status smol_memory_seq_cp(llama_context * ctx, llama_seq_id src, llama_seq_id dst, llama_pos p0, llama_pos p1) {
    return run([&] { llama_memory_seq_cp(llama_get_memory(ctx), src, dst, p0, p1); });
}

smol_status smol_memory_seq_keep(llama_context * ctx, llama_seq_id seq) {
    return run([&] { llama_memory_seq_keep(llama_get_memory(ctx), seq); });
}

smol_status smol_memory_seq_add(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta) {
    return run([&] { llama_memory_seq_add(llama_get_memory(ctx), seq, p0, p1, delta); });
}

smol_status smol_memory_seq_div(llama_context * ctx, llama_seq_id seq, llama_pos p0, llama_pos p1, int32_t d) {
    return run([&] { llama_memory_seq_div(llama_get_memory(ctx), seq, p0, p1, d); });
}

smol_status smol_state_seq_size(llama_context * ctx, llama_seq_id seq, size_t * out) {
    return get(out, [&] { return llama_state_seq_get_size(ctx, seq); });
}

smol_status smol_state_seq_get(llama_context * ctx, uint8_t * dst, size_t size, llama_seq_id seq, size_t * out) {
    return get(out, [&] { return llama_state_seq_get_data(ctx, dst, size, seq); });
}

smol_status smol_state_seq_set(llama_context * ctx, const uint8_t * src, size_t size, llama_seq_id seq, size_t * out) {
    return get(out, [&] { return llama_state_seq_set_data(ctx, src, size, seq); });
}

smol_status smol_grammar_new(const llama_vocab * vocab, const char * gbnf, const char * root, llama_sampler ** out) {
    return smol_guard_object(out, [&] { return llama_sampler_init_grammar(vocab, gbnf, root); });
}

smol_status smol_sampler_apply(llama_sampler * s, llama_token_data_array * cur) {
    return run([&] { llama_sampler_apply(s, cur); });
}

smol_status smol_sampler_accept(llama_sampler * s, llama_token token) {
    return run([&] { llama_sampler_accept(s, token); });
}

smol_status smol_sampler_reset(llama_sampler * s) {
    return run([&] { llama_sampler_reset(s); });
}

smol_status smol_sampler_clone(const llama_sampler * s, llama_sampler ** out) {
    return smol_guard_object(out, [&] { return llama_sampler_clone(s); });
}

void smol_sampler_free(llama_sampler * s) {
    run([&] { llama_sampler_free(s); });
}

smol_status smol_lora_load(llama_model * model, const char * path, llama_adapter_lora ** out) {
    return smol_guard_object(out, [&] { return llama_adapter_lora_init(model, path); });
}

smol_status smol_lora_set(llama_context * ctx, llama_adapter_lora ** adapters, size_t n, float * scales,
                          int32_t * result) {
    return get(result, [&] { return llama_set_adapters_lora(ctx, adapters, n, scales); });
}

smol_status smol_quantize(ggml_type type, const float * src, void * dst, int64_t n_rows, int64_t n_per_row,
                          const float * imatrix, size_t * bytes) {
    return get(bytes, [&] { return ggml_quantize_chunk(type, src, dst, 0, n_rows, n_per_row, imatrix); });
}

smol_status smol_dequantize(ggml_type type, const void * src, float * dst, int64_t n, bool * supported) {
    return run([&] {
        const ggml_type_traits * traits = ggml_get_type_traits(type);
        *supported = traits->to_float != nullptr;
        if (type == GGML_TYPE_F32) {
            std::memcpy(dst, src, (size_t) n * sizeof(float));
            *supported = true;
        } else if (traits->to_float) {
            traits->to_float(src, dst, n);
        }
    });
}

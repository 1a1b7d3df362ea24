// Greedy tokens and a hash of all logits from stock llama.cpp, through its public C API only.
// Usage: stock-tokens MODEL N THREADS PROMPT  ->  "token token ... hash"; the Rust side is examples/greedy_tokens.rs.
#include "llama.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

int main(int argc, char ** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: stock-tokens MODEL N THREADS PROMPT\n");
        return 2;
    }
    const int n = std::atoi(argv[2]);
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
    }, nullptr);
    llama_backend_init();
    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    const llama_vocab * vocab = llama_model_get_vocab(model);
    std::vector<llama_token> tokens(std::strlen(argv[4]) + 8);
    tokens.resize(llama_tokenize(vocab, argv[4], std::strlen(argv[4]), tokens.data(), tokens.size(), true, true));

    llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = 512;
    params.n_threads = params.n_threads_batch = std::atoi(argv[3]);
    llama_context * ctx = llama_init_from_model(model, params);
    if (!ctx) return 1;

    const int n_vocab = llama_vocab_n_tokens(vocab);
    uint64_t hash = 0xcbf29ce484222325;
    llama_batch batch = llama_batch_get_one(tokens.data(), tokens.size());
    llama_token token;
    for (int i = 0; i < n; i++) {
        if (llama_decode(ctx, batch)) return 1;
        const float * logits = llama_get_logits_ith(ctx, -1);
        token = 0;
        for (int t = 0; t < n_vocab; t++) {
            if (logits[t] > logits[token]) token = t;
            uint32_t bits;
            std::memcpy(&bits, &logits[t], 4);
            hash = (hash ^ bits) * 0x100000001b3;
        }
        std::printf("%d ", token);
        batch = llama_batch_get_one(&token, 1);
    }
    std::printf("%016llx\n", (unsigned long long) hash);
    llama_free(ctx);
    llama_model_free(model);
}

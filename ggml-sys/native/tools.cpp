// Entry points to upstream's command-line tools (see tools.h).
#include "tools.h"

#include "guard.h"

#include <csignal>
#include <cstdlib>

// No header declares them (llama-bench.cpp:2251, perplexity.cpp:1986, quantize.cpp:393, completion.cpp:84).
int llama_bench(int argc, char ** argv);
int llama_perplexity(int argc, char ** argv);
int llama_quantize(int argc, char ** argv);
int llama_completion(int argc, char ** argv);

namespace {
smol_status run(int (*tool)(int, char **), int argc, char ** argv, int * code) noexcept {
    return smol_guard([&] {
#ifdef SIGPIPE
        // Rust's runtime ignores it; a tool whose reader has gone ends, as it does in a C++ program.
        std::signal(SIGPIPE, SIG_DFL);
#endif
        *code = tool(argc, argv);
        return SMOL_OK;
    });
}
} // namespace

smol_status smol_tool_bench(int argc, char ** argv, int * code) {
    return run(llama_bench, argc, argv, code);
}

smol_status smol_tool_perplexity(int argc, char ** argv, int * code) {
    return run(llama_perplexity, argc, argv, code);
}

smol_status smol_tool_quantize(int argc, char ** argv, int * code) {
    return run(llama_quantize, argc, argv, code);
}

smol_status smol_tool_completion(int argc, char ** argv, int * code) {
    return run(llama_completion, argc, argv, code);
}

bool smol_tool_at_exit(void (*function)(void)) {
    return std::atexit(function) == 0;
}

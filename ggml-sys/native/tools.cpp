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
using tool_main = int (*)(int, char **);

tool_main main_of(smol_tool tool) {
    switch (tool) {
        case SMOL_TOOL_BENCH:
            return llama_bench;
        case SMOL_TOOL_PERPLEXITY:
            return llama_perplexity;
        case SMOL_TOOL_QUANTIZE:
            return llama_quantize;
        case SMOL_TOOL_COMPLETION:
            return llama_completion;
    }
    return nullptr;
}
} // namespace

smol_status smol_tool_run(smol_tool tool, int argc, char ** argv, int * code) {
    return smol_guard([&] {
        const tool_main run = main_of(tool);
        if (!run) {
            smol_set_error("there is no such tool");
            return SMOL_ERR_MISSING;
        }
#ifdef SIGPIPE
        // Rust's runtime ignores it; a tool whose reader has gone ends, as it does in a C++ program.
        std::signal(SIGPIPE, SIG_DFL);
#endif
        *code = run(argc, argv);
        return SMOL_OK;
    });
}

bool smol_tool_at_exit(void (*function)(void)) {
    return std::atexit(function) == 0;
}

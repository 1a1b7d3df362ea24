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

// log.h:62, log.h:100
struct common_log;
common_log * common_log_main();
void         common_log_flush(common_log * log);

namespace {
using tool_main = int (*)(int, char **);

smol_status run(tool_main tool, int argc, char ** argv, int * code) noexcept {
    return smol_guard([&] {
#ifdef SIGPIPE
        // Rust's runtime ignores it; a tool whose reader has gone ends, as it does in a C++ program.
        std::signal(SIGPIPE, SIG_DFL);
#endif
        *code = tool(argc, argv);
        return SMOL_OK;
    });
}

// For tools that print through upstream's logger, which has a thread of its own: what it has not printed when the process
// ends is lost (log.cpp:465), and that can be the answer.
smol_status run_and_flush(tool_main tool, int argc, char ** argv, int * code) noexcept {
    const smol_status status = run(tool, argc, argv, code);
    smol_guard([] {
        common_log_flush(common_log_main());
        return SMOL_OK;
    });
    return status;
}
} // namespace

smol_status smol_tool_bench(int argc, char ** argv, int * code) {
    return run(llama_bench, argc, argv, code);
}

smol_status smol_tool_perplexity(int argc, char ** argv, int * code) {
    return run_and_flush(llama_perplexity, argc, argv, code);
}

smol_status smol_tool_quantize(int argc, char ** argv, int * code) {
    return run(llama_quantize, argc, argv, code);
}

smol_status smol_tool_completion(int argc, char ** argv, int * code) {
    return run_and_flush(llama_completion, argc, argv, code);
}

bool smol_tool_at_exit(void (*function)(void)) {
    return std::atexit(function) == 0;
}

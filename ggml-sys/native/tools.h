// C entry points to upstream's command-line tools (cargo feature `tools`).
#ifndef SMOL_TOOLS_H
#define SMOL_TOOLS_H

#include "smol.h"

#ifdef __cplusplus
extern "C" {
#endif

enum smol_tool {
    SMOL_TOOL_BENCH      = 0, // llama-bench
    SMOL_TOOL_PERPLEXITY = 1, // llama-perplexity
    SMOL_TOOL_QUANTIZE   = 2, // llama-quantize
    SMOL_TOOL_COMPLETION = 3, // llama-completion
};

// Runs a tool with the arguments of a program, the first being its name; argv[argc] is NULL. The exit code comes back
// through the last pointer. The tool may call exit() instead of returning.
enum smol_status smol_tool_run(enum smol_tool tool, int argc, char ** argv, int * code);

// Has a function called at exit(), also when a tool calls it. false: the C library takes no more.
bool smol_tool_at_exit(void (*function)(void));

#ifdef __cplusplus
}
#endif

#endif // SMOL_TOOLS_H

// C entry points to upstream's command-line tools (cargo feature `tools`).
#ifndef SMOL_TOOLS_H
#define SMOL_TOOLS_H

#include "smol.h"

#ifdef __cplusplus
extern "C" {
#endif

// Each runs a tool with the arguments of a program, the first being its name; argv[argc] is NULL. The exit code comes back
// through the last pointer. The tool may call exit() instead of returning.
enum smol_status smol_tool_bench(int argc, char ** argv, int * code);      // llama-bench
enum smol_status smol_tool_perplexity(int argc, char ** argv, int * code); // llama-perplexity
enum smol_status smol_tool_quantize(int argc, char ** argv, int * code);   // llama-quantize
enum smol_status smol_tool_completion(int argc, char ** argv, int * code); // llama-completion

// Has a function called at exit(), also when a tool calls it. false: the C library takes no more.
bool smol_tool_at_exit(void (*function)(void));

#ifdef __cplusplus
}
#endif

#endif // SMOL_TOOLS_H

// C API of smolmaxxing: small language models on small devices.
// Generated from the crate smol-capi, see its README.

#ifndef SMOLMAXXING_H
#define SMOLMAXXING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Read the weights into memory if they fit with room to spare, otherwise map the file.
#define SMX_LOAD_AUTO 0

// Read the weights into memory of the process.
#define SMX_LOAD_READ 1

// Map the file: the system reads pages when they are used and drops them when memory is short. The file must not change
// while the model lives.
#define SMX_LOAD_MAP 2

// The seed that stands for a random one.
#define SMX_SEED_RANDOM UINT64_MAX

// How a call ended. The reason in words is in smx_last_error().
typedef enum smx_status {
  // It did what was asked.
  SMX_OK = 0,
  // An argument is NULL where that is not allowed, not UTF-8, or out of range.
  SMX_ERROR_ARGUMENT = 1,
  // A file could not be read.
  SMX_ERROR_IO = 2,
  // The file is no model that can be run.
  SMX_ERROR_MODEL = 3,
  // The memory does not suffice.
  SMX_ERROR_MEMORY = 4,
  // The prompt does not fit into the session's context.
  SMX_ERROR_CONTEXT = 5,
  // The model's chat template refuses these messages.
  SMX_ERROR_TEMPLATE = 6,
  // This model or device cannot do what was asked.
  SMX_ERROR_UNSUPPORTED = 7,
  // Loading was stopped by its callback.
  SMX_ERROR_CANCELLED = 8,
  // The session is in use by another call.
  SMX_ERROR_BUSY = 9,
  // A fault of this library. The session that it happened in can only be freed.
  SMX_ERROR_INTERNAL = 10,
} smx_status;

// Why an answer ended.
typedef enum smx_finish {
  // The model ended it.
  SMX_FINISH_END = 0,
  // It has as many tokens as were asked for, or the context is full.
  SMX_FINISH_LENGTH = 1,
  // A stop text was found.
  SMX_FINISH_STOP = 2,
  // smx_session_cancel() was called, or the callback returned false.
  SMX_FINISH_CANCELLED = 3,
} smx_finish;

// A loaded model. Sessions keep what they need of it: it may be freed before them.
typedef struct smx_model smx_model;

// A conversation or text with a model. One call at a time uses it; a second one fails with SMX_ERROR_BUSY.
typedef struct smx_session smx_session;

// Is called with the fraction of the model that is loaded, 0 to 1, on the thread that loads it. Loading stops when it
// returns false. It must not throw an exception.
typedef bool (*smx_progress_fn)(float fraction, void *user_data);

// How a model is loaded; begin with smx_model_options_default().
typedef struct smx_model_options {
  // SMX_LOAD_AUTO, SMX_LOAD_READ or SMX_LOAD_MAP.
  int32_t load_mode;
  // Context, in tokens, for which `ram` leaves room: the n_ctx of the session; 0: what the model was trained on, at most
  // 4096.
  uint32_t n_ctx;
  // Bytes of RAM that the process may fill; 0: no limit. Weights for which there is no room are read from the file when
  // they are needed, which needs SMX_LOAD_AUTO or SMX_LOAD_READ.
  uint64_t ram;
  // Folder that keeps packed weights, which takes about the size of the model, so that the next load maps them instead of
  // packing them again; NULL: none.
  const char *pack_cache;
  // May be NULL.
  smx_progress_fn progress;
  // Passed to `progress` as it is.
  void *user_data;
} smx_model_options;

// How a session is made; begin with smx_session_options_default().
typedef struct smx_session_options {
  // Tokens that prompt and answer may have together; 0: what the model was trained on, at most 4096.
  uint32_t n_ctx;
  // Threads that compute; 0: the device's fast cores.
  uint32_t n_threads;
  // Type of the cached keys and values, for example "f16" or "q8_0"; NULL: "f16". Smaller types need less memory.
  const char *kv_type;
  // Divides the logits; 0 always takes the most probable token. 0 to 100.
  float temperature;
  // Keeps this many of the most probable tokens; 0 keeps all.
  uint32_t top_k;
  // Keeps the fewest tokens whose probabilities add up to this; 0 to 1, 1 keeps all.
  float top_p;
  // Keeps tokens at least this times as probable as the best one; 0 to 1, 0 keeps all.
  float min_p;
  // Divides positive logits of the last 64 tokens and multiplies negative ones; 0.1 to 10, 1 turns it off.
  float repeat_penalty;
  // The same seed gives the same answers; SMX_SEED_RANDOM: another one for each session.
  uint64_t seed;
} smx_session_options;

// How an answer ends; begin with smx_generate_options_default().
typedef struct smx_generate_options {
  // Most tokens of the answer; 0: until the context is full.
  size_t max_tokens;
  // Texts that end the answer and are not part of it, `n_stop` of them. May be NULL if there are none.
  const char *const *stop;
  // Number of texts in `stop`.
  size_t n_stop;
  // Goes on after tokens that end a text; for measurements.
  bool ignore_eog;
} smx_generate_options;

// A message of a conversation.
typedef struct smx_message {
  // "system", "user", "assistant", or another role that the model's template knows.
  const char *role;
  // Its text.
  const char *content;
} smx_message;

// Is called with each piece of an answer as soon as it is there, on the thread that asked for it: whole characters in
// UTF-8, `len` bytes and a NUL behind them, valid during the call. The answer ends when it returns false. It must not
// throw an exception.
typedef bool (*smx_text_fn)(const char *text, size_t len, void *user_data);

// What is known about an answer when it has ended.
typedef struct smx_answer {
  // Why it ended.
  enum smx_finish finish;
  // Tokens of the prompt.
  size_t prompt_tokens;
  // Of these, tokens that were known from the text before and cost nothing.
  size_t reused_tokens;
  // Tokens of the answer.
  size_t generated_tokens;
  // Seconds that the prompt took.
  double prompt_seconds;
  // Seconds that the answer took, without the callback's.
  double generation_seconds;
} smx_answer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the reason of the last failure on this thread, empty if there was none. Never NULL; valid until the next call
// that fails on this thread, and no longer than the thread.
const char *smx_last_error(void);

// Returns the version of this library, for example "0.1.0".
const char *smx_version(void);

// Returns the options that NULL stands for: mode AUTO, no limit of RAM, no folder, no callback.
struct smx_model_options smx_model_options_default(void);

// Loads a GGUF file; of a model in several files, the first. `options` may be NULL. The model is freed with
// smx_model_free().
//
// # Safety
// `path` is a NUL-terminated string; `options` points to options with NUL-terminated texts, or is NULL; `out` points to a
// pointer, which becomes NULL when loading fails.
enum smx_status smx_model_load(const char *path,
                               const struct smx_model_options *options,
                               struct smx_model **out);

// Frees a model. NULL does nothing.
//
// # Safety
// `model` is NULL or comes from smx_model_load(), is freed once, and no other call uses it.
void smx_model_free(struct smx_model *model);

// Returns the options that NULL stands for.
struct smx_session_options smx_session_options_default(void);

// Returns the options that NULL stands for: until the model ends its answer or the context is full.
struct smx_generate_options smx_generate_options_default(void);

// Makes a session. `options` may be NULL. The session is freed with smx_session_free().
//
// # Safety
// `model` comes from smx_model_load(); `options` points to options whose texts are NUL-terminated, or is NULL; `out`
// points to a pointer, which becomes NULL when the call fails.
enum smx_status smx_session_new(const struct smx_model *model,
                                const struct smx_session_options *options,
                                struct smx_session **out);

// Frees a session. NULL does nothing.
//
// # Safety
// `session` is NULL or comes from smx_session_new(), is freed once, and no other call uses it.
void smx_session_free(struct smx_session *session);

// Answers a conversation, formatted with the model's chat template, and returns when the answer has ended. What it has
// in common with the conversation before is not computed again. `options` and `answer` may be NULL.
//
// # Safety
// `session` comes from smx_session_new(); `messages` points to `n_messages` messages with NUL-terminated texts;
// `options` points to options with `n_stop` NUL-terminated texts, or is NULL; `on_text` may be called with `user_data`;
// `answer` may be written, or is NULL.
enum smx_status smx_session_chat(const struct smx_session *session,
                                 const struct smx_message *messages,
                                 size_t n_messages,
                                 const struct smx_generate_options *options,
                                 smx_text_fn on_text,
                                 void *user_data,
                                 struct smx_answer *answer);

// Continues a text, without any template, and returns when the continuation has ended. What the text has in common with
// the text before is not computed again. `options` and `answer` may be NULL.
//
// # Safety
// `session` comes from smx_session_new(); `prompt` is a NUL-terminated string; `options` points to options with
// `n_stop` NUL-terminated texts, or is NULL; `on_text` may be called with `user_data`; `answer` may be written, or is
// NULL.
enum smx_status smx_session_complete(const struct smx_session *session,
                                     const char *prompt,
                                     const struct smx_generate_options *options,
                                     smx_text_fn on_text,
                                     void *user_data,
                                     struct smx_answer *answer);

// Stops the answer that the session is giving, within milliseconds; from any thread, also from the callback. Without an
// answer under way it does nothing.
//
// # Safety
// `session` is NULL or comes from smx_session_new() and is not freed during the call.
void smx_session_cancel(const struct smx_session *session);

// Forgets the text so far.
//
// # Safety
// `session` comes from smx_session_new().
enum smx_status smx_session_clear(const struct smx_session *session);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SMOLMAXXING_H */

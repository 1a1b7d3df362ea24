// Continues a text, always with the most probable token: complete MODEL.gguf PROMPT MAX_TOKENS
#include <smolmaxxing.h>
#include <stdio.h>
#include <stdlib.h>

static bool print(const char *text, size_t len, void *user_data) {
    FILE *file = (FILE *)user_data;
    return fwrite(text, 1, len, file) == len && fflush(file) == 0;
}

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, smx_last_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL.gguf PROMPT MAX_TOKENS\n", argv[0]);
        return EXIT_FAILURE;
    }
    smx_model *model;
    if (smx_model_load(argv[1], NULL, &model) != SMX_OK) {
        return fail("loading");
    }
    smx_session_options options = smx_session_options_default();
    options.temperature = 0;
    options.n_ctx = 256;
    smx_session *session;
    if (smx_session_new(model, &options, &session) != SMX_OK) {
        smx_model_free(model);
        return fail("making a session");
    }
    smx_generate_options generate = smx_generate_options_default();
    generate.max_tokens = strtoul(argv[3], NULL, 10);
    smx_answer answer;
    const smx_status status = smx_session_complete(session, argv[2], &generate, print, stdout, &answer);
    if (status == SMX_OK) {
        fprintf(stderr, "%zu tokens in %.2f s\n", answer.generated_tokens, answer.generation_seconds);
    }
    const int code = status == SMX_OK ? EXIT_SUCCESS : fail("generating");
    smx_session_free(session);
    smx_model_free(model);
    return code;
}

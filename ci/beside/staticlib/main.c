/* Calls into two static libraries that were made from Rust. */
#include <smolmaxxing.h>
#include <stdio.h>

int second_run(void);

int main(void) {
    smx_model *model;
    if (smx_model_load("no-such.gguf", NULL, &model) == SMX_OK || smx_last_error()[0] == 0) {
        return 2;
    }
    fprintf(stderr, "%s\n", smx_last_error());
    return second_run();
}

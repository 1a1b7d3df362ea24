// A packed layout: how the rows of a weight matrix lie in memory, and the kernels that read them.
//
// Rows are packed in groups of `rows`; the last group is padded with zero scales, so that any number of rows takes the
// fast path. Compiled once per CPU level, like everything in this folder.
#pragma once

#include "ggml.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How a row of activations is prepared for the kernels of a layout. 256 activations are prepared as if they were alone, so
// that parts of a row can be: those from number i on, a multiple of 256, lie bytes(i) bytes after the first.
struct smol_activation {
    const char * name;
    size_t (*bytes)(int64_t k);                            // of one prepared row
    void   (*prepare)(int64_t k, const float * x, void * out); // k: a multiple of the layout's `columns`
};

struct smol_layout {
    const char *   name;     // unique; with `version` a key for packed bytes that are kept
    uint32_t       version;  // raised whenever the packed bytes change
    enum ggml_type type;     // of the weights that it packs
    uint32_t       rows;     // of a group
    uint32_t       columns;  // a row's length must be a multiple
    bool           exact;    // the integer arithmetic is that of the plain type's own kernel
    const struct smol_activation * activation;

    size_t (*group_bytes)(int64_t k); // of one packed group
    // Packs n <= rows rows of k weights that lie `stride` bytes apart.
    void (*pack)(int64_t k, const void * rows, size_t stride, int64_t n, void * group);
    // Row number `row` of a group as floats: the plain type's, or where the layout is not exact those that it keeps.
    void (*unpack_row)(int64_t k, const void * group, int64_t row, float * out);

    // Products of `groups` consecutive groups with one prepared row: groups * rows floats.
    void (*gemv)(int64_t k, const void * group, int64_t groups, const void * activation, float * out);
    // The same with n >= 1 prepared rows; out[i] gets what gemv gives for activations[i], bit for bit.
    void (*gemm)(int64_t k, const void * group, int64_t groups, int64_t n, const void * const * activations,
                 float * const * out);
    // gemv in plain C++, one row after the other. Gives the same bits, or for a lossy activation the same within the
    // bound that the layout's file states.
    void (*reference)(int64_t k, const void * group, int64_t groups, const void * activation, float * out);

    // Whether n rows of k weights that lie `stride` bytes apart can be packed; NULL: all can.
    bool (*accepts)(int64_t k, const void * rows, size_t stride, int64_t n);
    bool optional; // used only when it is asked for by name: it loses accuracy, or trades memory for speed
};

// All layouts of this build for the CPU level that runs; for one type the preferred one comes first.
const struct smol_layout * const * smol_layouts(size_t * n);

#ifdef __cplusplus
}
#endif

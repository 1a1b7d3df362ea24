// Rows of activations as the kernels want them: rounded to 8 bits as llama.cpp rounds them, with the sums that correct
// for weights that are stored with an offset.
#pragma once

#include "layout.h"

namespace smol {

// 32 activations: x = d * q. The same numbers as in a block of Q8_0 (ggml-common.h), whose d has 16 bits.
struct Act32 {
    float   d;
    int32_t minus_sum; // -(q[0] + ... + q[31]): where to start for weights that are stored as w + 1
    int8_t  q[32];
};

// 128 activations: x = d * q, for layouts that merge scales.
struct Act128 {
    float   d;
    int32_t minus_sum;
    int8_t  q[128];
};

// 256 activations: x = d * q. The same numbers as in a block of Q8_K.
struct Act256 {
    float   d;
    int32_t minus_sum;
    // The sums of 16 each are 128 * high + low, in bytes so that they are multiplied like activations.
    int8_t  sums_low[16], sums_high[16];
    int8_t  q[256];
};

extern const smol_activation act32;  // "q8_0"
extern const smol_activation act128; // "q8_128"
extern const smol_activation act256; // "q8_k"

} // namespace smol

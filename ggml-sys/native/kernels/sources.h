// Blocks of ternary and 2-bit types as they lie in a file, for layouts that share a type.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace smol {

struct SourceTq1 { // ggml-common.h: block_tq1_0
    uint8_t  qs[48];
    uint8_t  qh[4];
    uint16_t d;

    int weight(int k) const { // -1..1 (ggml-quants.c: dequantize_row_tq1_0)
        int byte, digit;
        if (k < 160) {
            byte = qs[k % 32];
            digit = k / 32;
        } else if (k < 240) {
            byte = qs[32 + k % 16];
            digit = (k - 160) / 16;
        } else {
            byte = qh[k % 4];
            digit = (k - 240) / 4;
        }
        for (; digit > 0; digit--) {
            byte = 3 * byte & 255;
        }
        return (3 * byte >> 8) - 1;
    }
};
static_assert(sizeof(SourceTq1) == 54, "a block of TQ1_0");

struct SourceQ2 { // ggml-common.h: block_q2_0
    uint16_t d;
    uint8_t  qs[16];

    int weight(int k) const { // -1..2 (ggml-quants.c: dequantize_row_q2_0)
        return (qs[k / 4] >> k % 4 * 2 & 3) - 1;
    }
};
static_assert(sizeof(SourceQ2) == 18, "a block of Q2_0");

// Row number `row` of rows that lie `stride` bytes apart.
template <class Source> const Source * source_row(const void * rows, size_t stride, int64_t row) {
    return reinterpret_cast<const Source *>(static_cast<const uint8_t *>(rows) + stride * size_t(row));
}

} // namespace smol

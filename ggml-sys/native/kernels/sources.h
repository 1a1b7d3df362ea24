// Blocks of 1-bit, ternary and 2-bit types as they lie in a file, and what packs them: many weights at a time in a word, so
// that a model is packed as fast as it is read.
//
// A quad is 4 weights that follow each other, a byte each, lowest first. Fields are 16 weights: bits 2j..2j+2 of byte i
// are weight 4 j + i, as if quad j were shifted left by 2 j.
#pragma once

#include "simd.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace smol {

inline uint32_t load_32(const void * p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}

inline uint64_t load_64(const void * p) {
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

// The bits under the mask and those `distance` above them change places. In a matrix of bits, or of fields, which are
// numbered by row and column, that swaps a bit of the row's number with one of the column's.
inline uint64_t swap_bits(uint64_t x, int distance, uint64_t mask) {
    const uint64_t t = (x ^ x >> distance) & mask;
    return x ^ t ^ t << distance;
}

// Bytes y of five digits in base 3, first digit on top (base3.h, with y + 128 for y): digit j of byte i goes to
// out[BYTES * j + i], 0..2.
template <int BYTES> void unpack_digits(const uint8_t * __restrict bytes, uint8_t * __restrict out) {
    for (int i = 0; i < BYTES; i++) {
        uint8_t y = bytes[i];
        for (int j = 0; j < 5; j++) {
            out[BYTES * j + i] = uint8_t((y > 85) + (y > 170)); // 3 y >> 8
            y = uint8_t(y + y + y);
        }
    }
}

struct SourceQ1 { // ggml-common.h: block_q1_0
    uint16_t d;
    uint8_t  qs[16]; // weight k is bit k % 8 of byte k / 8
};
static_assert(sizeof(SourceQ1) == 18, "a block of Q1_0");

struct SourceTq1 { // ggml-common.h: block_tq1_0
    uint8_t  qs[48];
    uint8_t  qh[4];
    uint16_t d;

    // All weights, plus one (ggml-quants.c: dequantize_row_tq1_0).
    void unpack(uint8_t * out) const {
        unpack_digits<32>(qs, out);
        unpack_digits<16>(qs + 32, out + 160);
        // Compilers go through so few bytes one by one.
        uint32_t even = load_32(qh) & 0x00ff00ff, odd = load_32(qh) >> 8 & 0x00ff00ff;
        for (int j = 240; j < 256; j += 4) {
            even *= 3;
            odd *= 3;
            const uint32_t quad = (even >> 8 & 0x00ff00ff) | (odd & 0xff00ff00);
            memcpy(out + j, &quad, 4);
            even &= 0x00ff00ff;
            odd &= 0x00ff00ff;
        }
    }
};
static_assert(sizeof(SourceTq1) == 54, "a block of TQ1_0");

struct SourceTq2 { // ggml-common.h: block_tq2_0
    uint8_t  qs[64];
    uint16_t d;
};
static_assert(sizeof(SourceTq2) == 66, "a block of TQ2_0");

struct SourceQ2 { // ggml-common.h: block_q2_0
    uint16_t d;
    uint8_t  qs[16]; // weight k, plus one, is field k % 4 of byte k / 4
};
static_assert(sizeof(SourceQ2) == 18, "a block of Q2_0");

struct SourceQ2K { // ggml-common.h: block_q2_K
    uint8_t  scales[16];
    uint8_t  qs[64];
    uint16_t d, dmin;
};
static_assert(sizeof(SourceQ2K) == 84, "a block of Q2_K");

// Bit j of byte i and bit i of byte j change places.
inline uint64_t transpose_bits(uint64_t x) {
    return swap_bits(swap_bits(swap_bits(x, 7, 0x00aa00aa00aa00aa), 14, 0x0000cccc0000cccc), 28, 0xf0f0f0f0);
}

// 32 weights of Q2_0 as fields: in each half, 2 bits j of byte i and 2 bits i of byte j change places.
inline void to_fields(uint64_t qs, uint32_t * fields) {
    const uint64_t two = swap_bits(swap_bits(qs, 6, 0x00cc00cc00cc00cc), 12, 0x0000f0f00000f0f0);
    fields[0] = uint32_t(two);
    fields[1] = uint32_t(two >> 32);
}

// The 64 weights of a block of Q2_0 as fields.
inline void to_fields(const uint8_t (&qs)[16], uint32_t (&fields)[4]) {
    to_fields(load_64(qs), fields);
    to_fields(load_64(qs + 8), fields + 2);
}

// The 256 weights of TQ2_0 and Q2_K as fields; number k is in byte k / 128 * 32 + k % 32 (ggml-quants.c:
// dequantize_row_tq2_0).
inline void to_fields(const uint8_t (&qs)[64], uint32_t (&fields)[16]) {
    for (int i = 0; i < 4; i++) { // 16 bytes, of which field j has weights 128 (i / 2) + 32 j + 16 (i % 2) and up
        uint64_t x[2] = {load_64(qs + 16 * i), load_64(qs + 16 * i + 8)};
        const uint64_t t = (x[0] >> 4 ^ x[1]) & 0x0f0f0f0f0f0f0f0f;
        x[0] ^= t << 4;
        x[1] ^= t;
        for (int j = 0; j < 2; j++) {
            const uint64_t two = swap_bits(x[j], 30, 0xcccccccc);
            fields[i / 2 * 8 + i % 2 + 4 * j] = uint32_t(two);
            fields[i / 2 * 8 + i % 2 + 4 * j + 2] = uint32_t(two >> 32);
        }
    }
}

// 4 N quads as fields.
template <int N> void quads_to_fields(const uint8_t * quads, uint32_t (&fields)[N]) {
    for (int s = 0; s < N; s++, quads += 16) {
        fields[s] = load_32(quads) | load_32(quads + 4) << 2 | load_32(quads + 8) << 4 | load_32(quads + 12) << 6;
    }
}

// The quads of N fields.
template <int N> void fields_to_quads(const uint32_t (&fields)[N], uint8_t * quads) {
    for (int i = 0; i < 4 * N; i++, quads += 4) {
        const uint32_t quad = fields[i / 4] >> i % 4 * 2 & 0x03030303;
        memcpy(quads, &quad, 4);
    }
}

// Words of one row to where it has 4 bytes among those of all ROWS rows.
template <int N> void store_words(const uint32_t (&words)[N], int64_t row, uint8_t * out) {
    for (int i = 0; i < N; i++) {
        memcpy(out + 4 * ROWS * i + 4 * row, &words[i], 4);
    }
}

// Row number `row` of rows that lie `stride` bytes apart.
template <class Source> const Source * source_row(const void * rows, size_t stride, int64_t row) {
    return reinterpret_cast<const Source *>(static_cast<const uint8_t *>(rows) + stride * size_t(row));
}

// Packs n rows into a group of blocks of `bytes`: put(source, row, block) writes what one row has in one block.
template <class Source, class Put>
void pack_blocks(int64_t blocks, const void * rows, size_t stride, int64_t n, void * group, size_t bytes, const Put & put) {
    memset(group, 0, size_t(blocks) * bytes);
    for (int64_t row = 0; row < n; row++) {
        const auto * source = source_row<Source>(rows, stride, row);
        auto * block = static_cast<uint8_t *>(group);
        for (int64_t b = 0; b < blocks; b++, block += bytes) {
            put(source[b], row, block);
        }
    }
}

} // namespace smol

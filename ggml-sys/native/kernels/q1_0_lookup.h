// Q1_0 by table lookup: 4 weights of a row are the index of one of 16 sums of 4 activations (the Method of Four
// Russians; for neural networks: T-MAC, arXiv:2407.00088). Exact: a sum has 10 bits, so it lies in two tables of bytes,
// each of whose sums over 8 lookups still fits in a byte.
//
// A group starts with what Scales keeps once for each row. Then it has k / 128 blocks, each: Scales' bytes of all rows;
// then for every 8 weights of all rows ROWS_LOOKUP bytes, whose low nibble has the first 4 of them and whose high nibble
// the others. Rows lie so that unpacking within the 16 byte lanes of a vector leads to their natural order.
//
// Operations per 128 weights of 16 byte vectors: 2 ands, a shift, 4 lookups, 4 additions, and for every 32 weights of
// 16 rows 16 more to make floats of the sums.
#pragma once

#include "activations.h"
#include "layouts.h"
#include "simd.h"
#include "sources.h"

namespace smol {

// 32 activations: x = d * q, with the tables of every 4 of them. Entry m is the sum of +q[i] where bit i of m is set
// and -q[i] where not, plus BIAS: its low 5 bits, and the others.
struct Tables32 {
    uint8_t low_high[8][2][16];
    float   d;
    float   unused[3];
};

// What a sum of 4 gets added, so that its high part is not negative, where the kernel needs that.
#if SMOL_NEON
constexpr int BIAS = 0;
#else
constexpr int BIAS = 512;
#endif

extern const smol_activation tables32;

namespace lookups {

// The same address, of which the compiler does not know that it is near another: two loads of 16 bytes that it makes one
// of take longer than alone on in-order cores (Cortex-A55: 6 cycles, not 2).
inline const uint8_t * apart(const uint8_t * p) {
#if SMOL_NEON
    __asm__("" : "+r"(p));
#endif
    return p;
}

// A vector of nibbles, and the sums of lookups of 32 activations for its rows.
#if SMOL_AVX512

using Nibbles = __m512i;
constexpr int WIDTH = 64;
inline Nibbles load_nibbles(const uint8_t * p) { return _mm512_loadu_si512(p); }
inline Nibbles load_table(const uint8_t * p) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) p)); }
inline Nibbles low_nibbles(Nibbles a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline Nibbles high_nibbles(Nibbles a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
inline Nibbles lookup(Nibbles table, Nibbles i) { return _mm512_shuffle_epi8(table, i); }
inline Nibbles add(Nibbles a, Nibbles b) { return _mm512_add_epi8(a, b); }

inline void to_floats(Nibbles low, Nibbles high, Floats * out) {
    const __m512i weights = _mm512_set1_epi16(1 + 32 * 256), exponent = _mm512_set1_epi16(0x4b00);
    const Floats bias = set_floats(0x1p23f + 8 * BIAS);
    const __m512i a = _mm512_maddubs_epi16(_mm512_unpacklo_epi8(low, high), weights);
    const __m512i b = _mm512_maddubs_epi16(_mm512_unpackhi_epi8(low, high), weights);
    out[0] = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_unpacklo_epi16(a, exponent)), bias);
    out[1] = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_unpackhi_epi16(a, exponent)), bias);
    out[2] = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_unpacklo_epi16(b, exponent)), bias);
    out[3] = _mm512_sub_ps(_mm512_castsi512_ps(_mm512_unpackhi_epi16(b, exponent)), bias);
}

#elif SMOL_AVX2

using Nibbles = __m256i;
constexpr int WIDTH = 32;
inline Nibbles load_nibbles(const uint8_t * p) { return _mm256_loadu_si256((const __m256i *) p); }
inline Nibbles load_table(const uint8_t * p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) p)); }
inline Nibbles low_nibbles(Nibbles a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
inline Nibbles high_nibbles(Nibbles a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
inline Nibbles lookup(Nibbles table, Nibbles i) { return _mm256_shuffle_epi8(table, i); }
inline Nibbles add(Nibbles a, Nibbles b) { return _mm256_add_epi8(a, b); }

inline void to_floats(Nibbles low, Nibbles high, Floats * out) {
    const __m256i weights = _mm256_set1_epi16(1 + 32 * 256), exponent = _mm256_set1_epi16(0x4b00);
    const Floats bias = set_floats(0x1p23f + 8 * BIAS);
    const __m256i a = _mm256_maddubs_epi16(_mm256_unpacklo_epi8(low, high), weights);
    const __m256i b = _mm256_maddubs_epi16(_mm256_unpackhi_epi8(low, high), weights);
    out[0] = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(a, exponent)), bias);
    out[1] = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(a, exponent)), bias);
    out[2] = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(b, exponent)), bias);
    out[3] = _mm256_sub_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(b, exponent)), bias);
}

#elif SMOL_SSE

using Nibbles = __m128i;
constexpr int WIDTH = 16;
inline Nibbles load_nibbles(const uint8_t * p) { return _mm_loadu_si128((const __m128i *) p); }
inline Nibbles load_table(const uint8_t * p) { return _mm_loadu_si128((const __m128i *) p); }
inline Nibbles low_nibbles(Nibbles a) { return _mm_and_si128(a, _mm_set1_epi8(15)); }
inline Nibbles high_nibbles(Nibbles a) { return _mm_and_si128(_mm_srli_epi16(a, 4), _mm_set1_epi8(15)); }
inline Nibbles lookup(Nibbles table, Nibbles i) { return _mm_shuffle_epi8(table, i); }
inline Nibbles add(Nibbles a, Nibbles b) { return _mm_add_epi8(a, b); }

inline void to_floats(Nibbles low, Nibbles high, Floats * out) {
    const __m128i weights = _mm_set1_epi16(1 + 32 * 256), exponent = _mm_set1_epi16(0x4b00);
    const Floats bias = set_floats(0x1p23f + 8 * BIAS);
    const __m128i a = _mm_maddubs_epi16(_mm_unpacklo_epi8(low, high), weights);
    const __m128i b = _mm_maddubs_epi16(_mm_unpackhi_epi8(low, high), weights);
    out[0] = _mm_sub_ps(_mm_castsi128_ps(_mm_unpacklo_epi16(a, exponent)), bias);
    out[1] = _mm_sub_ps(_mm_castsi128_ps(_mm_unpackhi_epi16(a, exponent)), bias);
    out[2] = _mm_sub_ps(_mm_castsi128_ps(_mm_unpacklo_epi16(b, exponent)), bias);
    out[3] = _mm_sub_ps(_mm_castsi128_ps(_mm_unpackhi_epi16(b, exponent)), bias);
}

#elif SMOL_NEON

using Nibbles = uint8x16_t;
constexpr int WIDTH = 16;
inline Nibbles load_nibbles(const uint8_t * p) { return vld1q_u8(p); }
inline Nibbles load_table(const uint8_t * p) { return vld1q_u8(p); }
inline Nibbles low_nibbles(Nibbles a) { return vandq_u8(a, vdupq_n_u8(15)); }
inline Nibbles high_nibbles(Nibbles a) { return vshrq_n_u8(a, 4); }
inline Nibbles lookup(Nibbles table, Nibbles i) { return vqtbl1q_u8(table, i); }
inline Nibbles add(Nibbles a, Nibbles b) { return vaddq_u8(a, b); }

inline void to_floats(Nibbles low, Nibbles high, Floats * out) {
    const int16x8_t high0 = vshll_n_s8(vreinterpret_s8_u8(vget_low_u8(high)), 5);
    const int16x8_t high1 = vshll_high_n_s8(vreinterpretq_s8_u8(high), 5);
    const int16x8_t a = vreinterpretq_s16_u16(vaddw_u8(vreinterpretq_u16_s16(high0), vget_low_u8(low)));
    const int16x8_t b = vreinterpretq_s16_u16(vaddw_high_u8(vreinterpretq_u16_s16(high1), low));
    out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(a)));
    out[1] = vcvtq_f32_s32(vmovl_high_s16(a));
    out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(b)));
    out[3] = vcvtq_f32_s32(vmovl_high_s16(b));
}

#else // plain C++: 4 rows a vector

struct Nibbles {
    uint8_t at[16];
};
constexpr int WIDTH = 4;
template <class F> inline Nibbles each(int n, F f) {
    Nibbles out = {};
    for (int i = 0; i < n; i++) {
        out.at[i] = uint8_t(f(i));
    }
    return out;
}
inline Nibbles load_nibbles(const uint8_t * p) { return each(WIDTH, [&](int i) { return p[i]; }); }
inline Nibbles load_table(const uint8_t * p) { return each(16, [&](int i) { return p[i]; }); }
inline Nibbles low_nibbles(Nibbles a) { return each(WIDTH, [&](int i) { return a.at[i] & 15; }); }
inline Nibbles high_nibbles(Nibbles a) { return each(WIDTH, [&](int i) { return a.at[i] >> 4; }); }
inline Nibbles lookup(Nibbles table, Nibbles i) { return each(WIDTH, [&](int j) { return table.at[i.at[j]]; }); }
inline Nibbles add(Nibbles a, Nibbles b) { return each(WIDTH, [&](int i) { return a.at[i] + b.at[i]; }); }
inline void to_floats(Nibbles low, Nibbles high, Floats * out) {
    for (int i = 0; i < WIDTH; i++) {
        out[i] = float(low.at[i] + 32 * high.at[i] - 8 * BIAS);
    }
}

#endif

#if SMOL_NEON || SMOL_SSE
constexpr int HALVES = 2; // vectors of rows in a group: a table that is loaded serves all of them
#else
constexpr int HALVES = 1;
#endif

// The bytes of a group follow from the width of a vector, not only from the number of rows.
#if SMOL_AVX512
#    define SMOL_LOOKUP_NAME(type) type "-64"
#elif SMOL_AVX2
#    define SMOL_LOOKUP_NAME(type) type "-32"
#elif SMOL_NEON || SMOL_SSE
#    define SMOL_LOOKUP_NAME(type) type "-2x16"
#else
#    define SMOL_LOOKUP_NAME(type) type "-4"
#endif

constexpr int ROWS_LOOKUP = WIDTH * HALVES;
constexpr int BLOCK = 128;

// Scales:
//   ROW_BYTES, BLOCK_BYTES: of one row, at the start of a group and of a block
//   pack(blocks, source, head, row, at, stride): one row; block b's bytes are at + b * stride
//   read(head, at, row): the scale
//   Scales(head), load(at, i): the scales of rows LANES * i and up
template <class Scales> struct Lookup {
    static constexpr int64_t HEAD = ROWS_LOOKUP * Scales::ROW_BYTES;
    static constexpr int64_t BYTES = ROWS_LOOKUP * (Scales::BLOCK_BYTES + BLOCK / 8);

    static size_t group_bytes(int64_t k) { return size_t(HEAD + k / BLOCK * BYTES); }

    // Where the 8 weights i..i+8 of a row lie in a block.
    static size_t byte_of(int64_t row, int i) {
        // A quarter of a vector's rows becomes one vector of floats.
        const int64_t quarter = row % WIDTH / (WIDTH / 4), in = row % (WIDTH / 4);
        const int64_t place = WIDTH < 16 ? row : in / 4 * 16 + 4 * quarter + in % 4;
        return Scales::BLOCK_BYTES * ROWS_LOOKUP + i / 8 * ROWS_LOOKUP + row / WIDTH * WIDTH + place;
    }

    static void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
        auto * head = static_cast<uint8_t *>(group);
        memset(head, 0, group_bytes(k));
        for (int64_t row = 0; row < n; row++) {
            const auto * source = source_row<SourceQ1>(rows, stride, row);
            uint8_t * block = head + HEAD;
            Scales::pack(k / BLOCK, source, head, row, block, BYTES);
            for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
                for (int i = 0; i < BLOCK; i += 8) {
                    block[byte_of(row, i)] = source[b].qs[i / 8];
                }
            }
        }
    }

    static void unpack_row(int64_t k, const void * group, int64_t row, float * out) {
        const auto * head = static_cast<const uint8_t *>(group);
        const uint8_t * block = head + HEAD;
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            const float d = Scales::read(head, block, row);
            for (int i = 0; i < BLOCK; i++) {
                *out++ = block[byte_of(row, i)] >> i % 8 & 1 ? d : -d;
            }
        }
    }

    static void reference(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
        for (int64_t row = 0; row < groups * ROWS_LOOKUP; row++) {
            const uint8_t * head = static_cast<const uint8_t *>(group) + row / ROWS_LOOKUP * group_bytes(k);
            const uint8_t * block = head + HEAD;
            const auto * act = static_cast<const Tables32 *>(activation);
            float sum = 0;
            for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
                float t = 0;
                for (int part = 0; part < 4; part++, act++) {
                    int32_t dot = 0;
                    for (int quad = 0; quad < 8; quad++) {
                        const int index = block[byte_of(row % ROWS_LOOKUP, 32 * part + 4 * quad)] >> quad % 2 * 4 & 15;
                        dot += act->low_high[quad][0][index] + 32 * int8_t(act->low_high[quad][1][index]) - BIAS;
                    }
                    t = part == 0 ? act->d * float(dot) : fused(act->d, float(dot), t);
                }
                sum = fused(Scales::read(head, block, row % ROWS_LOOKUP), t, sum);
            }
            out[row] = sum;
        }
    }

    template <int N>
    static void tile(int64_t k, const uint8_t * group, const void * const * activations, float * const * out) {
        const Scales scales(group);
        const uint8_t * block = group + HEAD;
        const uint8_t * low_table[N], * high_table[N];
        Floats sum[N][HALVES][4];
        for (int n = 0; n < N; n++) {
            low_table[n] = static_cast<const uint8_t *>(activations[n]);
            high_table[n] = apart(low_table[n] + 16);
            for (int h = 0; h < HALVES; h++) {
                for (int i = 0; i < 4; i++) {
                    sum[n][h][i] = set_floats(0);
                }
            }
        }
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            const uint8_t * nibbles[HALVES];
            for (int h = 0; h < HALVES; h++) {
                nibbles[h] = apart(block + Scales::BLOCK_BYTES * ROWS_LOOKUP + WIDTH * h);
            }
            Floats t[N][HALVES][4];
            for (int n = 0; n < N; n++) {
                for (int h = 0; h < HALVES; h++) {
                    for (int i = 0; i < 4; i++) {
                        t[n][h][i] = set_floats(0);
                    }
                }
            }
            for (int part = 0; part < 4; part++) {
                Nibbles low[N][HALVES], high[N][HALVES];
                for (int pair = 0; pair < 4; pair++) {
                    for (int h = 0; h < HALVES; h++) {
                        const Nibbles both = load_nibbles(nibbles[h]);
                        nibbles[h] += ROWS_LOOKUP;
                        const Nibbles i0 = low_nibbles(both), i1 = high_nibbles(both);
                        for (int n = 0; n < N; n++) {
                            const Nibbles l0 = lookup(load_table(low_table[n] + 64 * pair), i0);
                            const Nibbles h0 = lookup(load_table(high_table[n] + 64 * pair), i0);
                            const Nibbles l1 = lookup(load_table(low_table[n] + 64 * pair + 32), i1);
                            const Nibbles h1 = lookup(load_table(high_table[n] + 64 * pair + 32), i1);
                            low[n][h] = add(pair == 0 ? l0 : add(low[n][h], l0), l1);
                            high[n][h] = add(pair == 0 ? h0 : add(high[n][h], h0), h1);
                        }
                    }
                }
                for (int n = 0; n < N; n++) {
                    const Floats d = set_floats(reinterpret_cast<const Tables32 *>(low_table[n])->d);
                    for (int h = 0; h < HALVES; h++) {
                        Floats dot[4];
                        to_floats(low[n][h], high[n][h], dot);
                        for (int i = 0; i < 4; i++) {
                            t[n][h][i] = fused(d, dot[i], t[n][h][i]);
                        }
                    }
                    low_table[n] += sizeof(Tables32);
                    high_table[n] += sizeof(Tables32);
                }
            }
            for (int h = 0; h < HALVES; h++) {
                for (int i = 0; i < 4; i++) {
                    const Floats d = scales.load(block, 4 * h + i);
                    for (int n = 0; n < N; n++) {
                        sum[n][h][i] = fused(d, t[n][h][i], sum[n][h][i]);
                    }
                }
            }
        }
        for (int n = 0; n < N; n++) {
            for (int h = 0; h < HALVES; h++) {
                for (int i = 0; i < 4; i++) {
                    store(out[n] + WIDTH * h + WIDTH / 4 * i, sum[n][h][i]);
                }
            }
        }
    }

    static void gemv(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
        const auto * bytes = static_cast<const uint8_t *>(group);
        for (int64_t g = 0; g < groups; g++, bytes += group_bytes(k), out += ROWS_LOOKUP) {
            tile<1>(k, bytes, &activation, &out);
        }
    }

    static void gemm(int64_t k, const void * group, int64_t groups, int64_t n, const void * const * activations,
                     float * const * out) {
        const auto * bytes = static_cast<const uint8_t *>(group);
#if SMOL_NEON // as many sums as there are registers
        constexpr int COLUMNS = 2;
        constexpr auto * few = tiles<tile<2>, tile<1>>;
#else
        constexpr int COLUMNS = 4;
        constexpr auto * few = tiles<tile<4>, tile<2>, tile<1>>;
#endif
        // All groups with a few columns, whose tables stay in the second cache: they are larger than a group's weights.
        for (int64_t i = 0; i < n; i += COLUMNS) {
            few(k, bytes, group_bytes(k), groups, ROWS_LOOKUP, n - i < COLUMNS ? n - i : COLUMNS, activations + i, out + i);
        }
    }
};

} // namespace lookups
} // namespace smol

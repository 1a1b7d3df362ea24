// Q2_K (2 bits, a 4-bit scale and minimum for 16, their scales for 256): fields of 2 bits, 4 of them in a byte, in the
// order in which the kernel meets them; scale and minimum share a byte. No byte more than plain Q2_K.
//
// A group has k / 256 blocks, each: ROWS half scales; ROWS half scales of the minima; then for q = 0..4 and each row
// 4 bytes, where byte j has the scale (low bits) and the minimum of weights 64 q + 16 j and the 15 that follow; then
// for s = 0..16 and each row 4 bytes, where bits 2j..2j+2 of byte i are weight 16 s + 4 j + i.
#include "activations.h"
#include "layouts.h"
#include "simd.h"
#include "sources.h"

namespace smol {
namespace {

constexpr int BLOCK = 256;
constexpr size_t SCALES = ROWS * 4; // where they start
constexpr size_t FIELDS = SCALES + ROWS * 16;
constexpr size_t BYTES = FIELDS + ROWS * BLOCK / 4;

static_assert(BYTES == ROWS * sizeof(SourceQ2K), "no byte more");

size_t group_bytes(int64_t k) {
    return size_t(k / BLOCK) * BYTES;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    const auto put = [](const SourceQ2K & source, int64_t row, uint8_t * block) {
        uint32_t scales[4], fields[16];
        memcpy(scales, source.scales, sizeof scales);
        to_fields(source.qs, fields);
        memcpy(block + 2 * row, &source.d, 2);
        memcpy(block + 2 * ROWS + 2 * row, &source.dmin, 2);
        store_words(scales, row, block + SCALES);
        store_words(fields, row, block + FIELDS);
    };
    pack_blocks<SourceQ2K>(k / BLOCK, rows, stride, n, group, BYTES, put);
}

int weight(const uint8_t * block, int64_t row, int i) { // 0..3
    return block[FIELDS + i / 16 * 4 * ROWS + 4 * row + i % 4] >> i % 16 / 4 * 2 & 3;
}

int scale_and_min(const uint8_t * block, int64_t row, int s) {
    return block[SCALES + s / 4 * 4 * ROWS + 4 * row + s % 4];
}

void unpack_row(int64_t k, const void * group, int64_t row, float * out) {
    const auto * block = static_cast<const uint8_t *>(group);
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        const float d = half_to_float(load_half(block + 2 * row));
        const float dmin = half_to_float(load_half(block + 2 * ROWS + 2 * row));
        for (int i = 0; i < BLOCK; i++) {
            const int both = scale_and_min(block, row, i / 16);
            const float product = d * float(both & 15) * float(weight(block, row, i));
            *out++ = product - dmin * float(both >> 4);
        }
    }
}

void reference(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
    const auto * act = static_cast<const Act256 *>(activation);
    for (int64_t row = 0; row < groups * ROWS; row++) {
        const uint8_t * block = static_cast<const uint8_t *>(group) + row / ROWS * group_bytes(k);
        float sum = 0;
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            int32_t dot = 0, mins = 0;
            for (int i = 0; i < BLOCK; i++) {
                const int both = scale_and_min(block, row % ROWS, i / 16);
                dot += (both & 15) * weight(block, row % ROWS, i) * act[b].q[i];
                mins += (both >> 4) * act[b].q[i];
            }
            const float d = half_to_float(load_half(block + 2 * (row % ROWS)));
            const float dmin = half_to_float(load_half(block + 2 * ROWS + 2 * (row % ROWS)));
            sum = fused(d * act[b].d, float(dot), sum);
            sum = fused(dmin * -act[b].d, float(mins), sum);
        }
        out[row] = sum;
    }
}

// Vectors that are worked on at once: where sums of products are added up across vectors, all of a group.
#if SMOL_NEON
constexpr int TOGETHER = VECTORS;
#else
constexpr int TOGETHER = 1;
#endif

// A pattern that takes byte (n & 255) of each row's 4 to the low byte, and so on; the top bit gives zero.
#if SMOL_AVX512
inline Bytes spread(uint32_t n) {
    return _mm512_add_epi8(_mm512_set1_epi32(int32_t(n)), _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
}
#elif SMOL_AVX2
inline Bytes spread(uint32_t n) {
    const __m128i rows = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    return _mm256_add_epi8(_mm256_set1_epi32(int32_t(n)), _mm256_broadcastsi128_si256(rows));
}
#elif SMOL_SSE
inline Bytes spread(uint32_t n) {
    return _mm_add_epi8(_mm_set1_epi32(int32_t(n)), _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c));
}
#elif SMOL_DOTPROD
inline Bytes spread(uint32_t n) {
    static const uint32_t rows[4] = {0, 0x04040404, 0x08080808, 0x0c0c0c0c};
    return vorrq_u8(vreinterpretq_u8_u32(vdupq_n_u32(n)), vreinterpretq_u8_u32(vld1q_u32(rows)));
}
#endif

// sum += dot * scale, where dot is of 16 weights and the scale is byte j of each row's 4.
inline void add_scaled(Ints (&sum)[TOGETHER], const Dot (&dot)[TOGETHER], const Bytes (&scales)[TOGETHER], int j) {
#if SMOL_AVX512
    // The upper 16 bits of dot meet zero.
    sum[0] = _mm512_dpwssd_epi32(sum[0], dot[0].acc, _mm512_shuffle_epi8(scales[0], spread(0x80808000 | j)));
#elif SMOL_AVX2
    const __m256i scale = _mm256_shuffle_epi8(scales[0], spread(0x80008000 | j | j << 16));
    sum[0] = _mm256_add_epi32(sum[0], _mm256_madd_epi16(dot[0].acc, scale));
#elif SMOL_SSE
    const __m128i scale = _mm_shuffle_epi8(scales[0], spread(0x80008000 | j | j << 16));
    sum[0] = _mm_add_epi32(sum[0], _mm_madd_epi16(dot[0].acc, scale));
#elif SMOL_DOTPROD
    for (int v = 0; v < TOGETHER; v++) {
        const uint8x16_t scale = vqtbl1q_u8(scales[v], spread(0xffffff00 | j));
        sum[v] = vmlaq_s32(sum[v], dot[v].acc, vreinterpretq_s32_u8(scale));
    }
#elif SMOL_NEON
    // 16 bits hold the products of 16 weights: 8 rows in one vector.
    const int16x8_t rows = vpaddq_s16(vpaddq_s16(dot[0].low, dot[0].high), vpaddq_s16(dot[1].low, dot[1].high));
    const uint16x8_t a = vreinterpretq_u16_u8(scales[0]), b = vreinterpretq_u16_u8(scales[1]);
    const uint16x8_t two = j < 2 ? vuzp1q_u16(a, b) : vuzp2q_u16(a, b);
    const int16x8_t scale = vreinterpretq_s16_u16(j % 2 ? vshrq_n_u16(two, 8) : vandq_u16(two, vdupq_n_u16(255)));
    sum[0] = vmlal_s16(sum[0], vget_low_s16(rows), vget_low_s16(scale));
    sum[1] = vmlal_high_s16(sum[1], rows, scale);
#else
    sum[0] += dot[0].acc * int32_t(scales[0] >> 8 * j & 255);
#endif
}

// One group with N activation rows. 16 weights of LANES rows: 4 products, 4 ands, 3 shifts, a load, and for the scale
// a shuffle and a multiply-add; for 64 of them 2 products of minima.
template <int N> void tile(int64_t k, const uint8_t * block, const void * const * activations, float * const * out) {
    const Act256 * act[N];
    Floats sum[N][VECTORS];
    for (int n = 0; n < N; n++) {
        act[n] = static_cast<const Act256 *>(activations[n]);
        for (int v = 0; v < VECTORS; v++) {
            sum[n][v] = set_floats(0);
        }
    }
    const Bytes mask = set_bytes(15);
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        for (int v = 0; v < VECTORS; v += TOGETHER) {
            const uint8_t * both = block + SCALES + 4 * LANES * v;
            const uint8_t * fields = block + FIELDS + 4 * LANES * v;
            Ints dots[N][TOGETHER];
            for (int n = 0; n < N; n++) {
                for (int t = 0; t < TOGETHER; t++) {
                    dots[n][t] = set_ints(0);
                }
            }
            for (int q = 0; q < 4; q++) {
                Bytes scales[TOGETHER];
                for (int t = 0; t < TOGETHER; t++) {
                    scales[t] = and_bytes(load_bytes(both + 4 * ROWS * q + 4 * LANES * t), mask);
                }
                each_of_four([&](auto sub_block) {
                    constexpr int j = decltype(sub_block)::value;
                    const int s = 4 * q + j;
#if SMOL_AVX512
                    if constexpr (N >= 4) { // 1.1 times as fast: scales the weights once for all activation rows
                        Fields w(load_bytes(fields + 4 * ROWS * s));
                        const Bytes scale = _mm512_shuffle_epi8(scales[0], spread(0x80008000 | j | j << 16));
                        for (int f = 0; f < 4; f++) {
                            w.field[f] = _mm512_mullo_epi16(w.field[f], scale); // at most 3 * 15 in each byte
                        }
                        for (int n = 0; n < N; n++) {
                            Dot dot;
                            dot.acc = dots[n][0];
                            add_fields(dot, w, load_acts(act[n][b].q + 16 * s));
                            dots[n][0] = dot.acc;
                        }
                        return;
                    }
#endif
#if SMOL_DOTPROD
                    if constexpr (N == 1) { // two sub-blocks at a time: 1.15 times as fast on a Cortex-A55
                        if constexpr (j % 2 == 0) {
                            Fields w[2][TOGETHER];
                            Acts a[2];
                            Dot dot[2][TOGETHER];
                            for (int i = 0; i < 2; i++) {
                                for (int t = 0; t < TOGETHER; t++) {
                                    w[i][t] = Fields(load_bytes(fields + 4 * ROWS * (s + i) + 4 * LANES * t));
                                }
                                a[i] = load_acts(act[0][b].q + 16 * (s + i));
                            }
                            each_of_four([&](auto field) {
                                constexpr int f = decltype(field)::value;
                                for (int i = 0; i < 2; i++) {
                                    for (int t = 0; t < TOGETHER; t++) {
                                        dot[i][t].template add<f>(w[i][t].field[f], a[i]);
                                    }
                                }
                            });
                            add_scaled(dots[0], dot[0], scales, j);
                            add_scaled(dots[0], dot[1], scales, j + 1);
                        }
                        return;
                    }
#endif
                    Fields w[TOGETHER];
                    for (int t = 0; t < TOGETHER; t++) {
                        w[t] = Fields(load_bytes(fields + 4 * ROWS * s + 4 * LANES * t));
                    }
                    for (int n = 0; n < N; n++) {
                        Dot dot[TOGETHER];
                        for (int t = 0; t < TOGETHER; t++) {
                            add_fields(dot[t], w[t], load_acts(act[n][b].q + 16 * s));
                        }
                        add_scaled(dots[n], dot, scales, j);
                    }
                });
            }
            for (int t = 0; t < TOGETHER; t++) {
                Fields mins;
                const Floats d = load_halves(block + 2 * LANES * (v + t));
                const Floats dmin = load_halves(block + 2 * ROWS + 2 * LANES * (v + t));
                for (int q = 0; q < 4; q++) {
                    mins.field[q] = and_bytes(shift_right<4>(load_bytes(both + 4 * ROWS * q + 4 * LANES * t)), mask);
                }
                for (int n = 0; n < N; n++) {
                    Dot low, high;
                    add_fields(low, mins, load_acts(act[n][b].sums_low));
                    add_fields(high, mins, load_acts(act[n][b].sums_high));
                    Floats & to = sum[n][v + t];
                    to = fused(multiply(d, set_floats(act[n][b].d)), to_floats(dots[n][t]), to);
                    to = fused(multiply(dmin, set_floats(-act[n][b].d)),
                               to_floats(add_ints(low.sum(), shift_left(high.sum(), 7))), to);
                }
            }
        }
    }
    for (int n = 0; n < N; n++) {
        for (int v = 0; v < VECTORS; v++) {
            store(out[n] + LANES * v, sum[n][v]);
        }
    }
}

void gemv(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
    tiles<tile<1>>(k, static_cast<const uint8_t *>(group), group_bytes(k), groups, ROWS, 1, &activation, &out);
}

void gemm(int64_t k, const void * group, int64_t groups, int64_t n, const void * const * activations, float * const * out) {
    const auto * bytes = static_cast<const uint8_t *>(group);
#if SMOL_AVX512
    tiles<tile<16>, tile<8>, tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
#else
    tiles<tile<8>, tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
#endif
}

} // namespace

const smol_layout q2_k = {ROWS == 16 ? "q2_k-16" : ROWS == 8 ? "q2_k-8" : "q2_k-4", 1, GGML_TYPE_Q2_K, ROWS, BLOCK, true,
                          &act256, group_bytes, pack, unpack_row, gemv, gemm, reference, nullptr, false};

} // namespace smol

// Q1_0 by table lookup, with the half scales of the file: no byte more than plain Q1_0. See q1_0_lookup.h.
#include "q1_0_lookup.h"

namespace smol {
namespace {

size_t tables_bytes(int64_t k) {
    return size_t(k / 32) * sizeof(Tables32);
}

// The tables of 32 activations.
#if SMOL_NEON
template <int quad> void make_tables(int16x8_t a, const int16x8_t * sign, uint8_t (*out)[16]) {
    int16x8_t three = vmulq_laneq_s16(sign[0], a, 4 * quad);
    three = vmlaq_laneq_s16(three, sign[1], a, 4 * quad + 1);
    three = vmlaq_laneq_s16(three, sign[2], a, 4 * quad + 2);
    const int16x8_t last = vdupq_laneq_s16(a, 4 * quad + 3);
    const int16x8_t e0 = vsubq_s16(three, last), e1 = vaddq_s16(three, last);
    const uint8x16_t bytes = vuzp1q_u8(vreinterpretq_u8_s16(e0), vreinterpretq_u8_s16(e1));
    vst1q_u8(out[0], vandq_u8(bytes, vdupq_n_u8(31)));
    vst1q_u8(out[1], vreinterpretq_u8_s8(vshrn_high_n_s16(vshrn_n_s16(e0, 5), e1, 5)));
}

void make_tables(const int8_t * q, uint8_t (*out)[2][16]) {
    static const int16_t signs[3][8] = {
        {-1, 1, -1, 1, -1, 1, -1, 1}, {-1, -1, 1, 1, -1, -1, 1, 1}, {-1, -1, -1, -1, 1, 1, 1, 1}};
    const int16x8_t sign[3] = {vld1q_s16(signs[0]), vld1q_s16(signs[1]), vld1q_s16(signs[2])};
    for (int i = 0; i < 32; i += 8) {
        const int16x8_t a = vmovl_s8(vld1_s8(q + i));
        make_tables<0>(a, sign, out[i / 4]);
        make_tables<1>(a, sign, out[i / 4 + 1]);
    }
}
#elif SMOL_AVX512 || SMOL_AVX2 || SMOL_SSE
inline void make_quad(const int8_t * q, uint8_t (*out)[16]) {
    // The instruction that adds products of pairs wants one unsigned factor: q + 128, which adds 128 times the signs.
    constexpr int16_t PP = 0x0101, NP = int16_t(0xff01), PN = 0x01ff, NN = int16_t(0xffff); // lower byte last
    const auto sum = [](int ones) { return int16_t(BIAS - 128 * (2 * ones - 4)); };
    int32_t four;
    memcpy(&four, q, 4);
    const __m128i a = _mm_cvtsi32_si128(four ^ int32_t(0x80808080));
    const __m128i a01 = _mm_shuffle_epi32(_mm_shufflelo_epi16(a, 0x00), 0);
    const __m128i a23 = _mm_shuffle_epi32(_mm_shufflelo_epi16(a, 0x55), 0);
    const __m128i e01 = _mm_maddubs_epi16(a01, _mm_setr_epi16(NN, NP, PN, PP, NN, NP, PN, PP));
    const __m128i e23 = _mm_maddubs_epi16(a23, _mm_setr_epi16(NN, NN, NN, NN, NP, NP, NP, NP));
    const __m128i f23 = _mm_maddubs_epi16(a23, _mm_setr_epi16(PN, PN, PN, PN, PP, PP, PP, PP));
    const __m128i add0 = _mm_setr_epi16(sum(0), sum(1), sum(1), sum(2), sum(1), sum(2), sum(2), sum(3));
    const __m128i add1 = _mm_setr_epi16(sum(1), sum(2), sum(2), sum(3), sum(2), sum(3), sum(3), sum(4));
    const __m128i e0 = _mm_add_epi16(_mm_add_epi16(e01, add0), e23), e1 = _mm_add_epi16(_mm_add_epi16(e01, add1), f23);
    const __m128i mask = _mm_set1_epi16(31);
    const auto put = [](void * p, __m128i x) { _mm_storeu_si128(static_cast<__m128i *>(p), x); };
    put(out[0], _mm_packus_epi16(_mm_and_si128(e0, mask), _mm_and_si128(e1, mask)));
    put(out[1], _mm_packus_epi16(_mm_srli_epi16(e0, 5), _mm_srli_epi16(e1, 5)));
}

void make_tables(const int8_t * q, uint8_t (*out)[2][16]) {
    for (int quad = 0; quad < 8; quad++) {
        make_quad(q + 4 * quad, out[quad]);
    }
}
#else
void make_tables(const int8_t * q, uint8_t (*out)[2][16]) {
    for (int quad = 0; quad < 8; quad++, q += 4) {
        for (int m = 0; m < 16; m++) {
            int entry = BIAS;
            for (int i = 0; i < 4; i++) {
                entry += m >> i & 1 ? q[i] : -q[i];
            }
            out[quad][0][m] = uint8_t(entry & 31);
            out[quad][1][m] = uint8_t(entry >> 5);
        }
    }
}
#endif

void prepare_tables(int64_t k, const float * x, void * out) {
    auto * tables = static_cast<Tables32 *>(out);
    for (int64_t b = 0; b < k / 128; b++, x += 128) {
        Act32 acts[4];
        act32.prepare(128, x, acts);
        for (const Act32 & act : acts) {
            make_tables(act.q, tables->low_high);
            tables->d = act.d;
            memset(tables->unused, 0, sizeof tables->unused);
            tables++;
        }
    }
}

struct HalfScales {
    static constexpr int ROW_BYTES = 0, BLOCK_BYTES = 2;

    static void pack(int64_t blocks, const SourceQ1 * source, uint8_t *, int64_t row, uint8_t * at, int64_t stride) {
        for (int64_t b = 0; b < blocks; b++) {
            memcpy(at + 2 * row + b * stride, &source[b].d, 2);
        }
    }
    static float read(const uint8_t *, const uint8_t * at, int64_t row) { return half_to_float(load_half(at + 2 * row)); }

    explicit HalfScales(const uint8_t *) {}
    Floats load(const uint8_t * at, int i) const { return load_halves(at + 2 * LANES * i); }
};

using Half = lookups::Lookup<HalfScales>;

} // namespace

const smol_activation tables32 = {"q8_0 tables", tables_bytes, prepare_tables};

const smol_layout q1_0_lookup = {SMOL_LOOKUP_NAME("q1_0-lookup"), 1, GGML_TYPE_Q1_0, lookups::ROWS_LOOKUP, lookups::BLOCK,
                                 true, &tables32, Half::group_bytes, Half::pack, Half::unpack_row, Half::gemv, Half::gemm,
                                 Half::reference, nullptr, false};

} // namespace smol

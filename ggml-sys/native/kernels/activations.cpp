#include "activations.h"

#include "simd.h"

#include <math.h>

namespace smol {
namespace {

// IEEE float to half and back, to nearest, ties to even; for finite 0 <= x < 65520, and what is above becomes infinite.
float through_half(float x) {
#if SMOL_AVX512 || SMOL_AVX2
    return _cvtsh_ss(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif SMOL_NEON
    return float(__fp16(x));
#else
    if (!(x < 65520.0f)) {
        return x != x ? x : INFINITY;
    }
    // Adding and subtracting a power of two rounds to its last place: 2^-24 below the normal halves, else 11 bits.
    int exponent;
    (void) frexpf(x, &exponent);
    const int place = exponent < -13 ? -24 : exponent - 11;
    const float big = ldexpf(1.5f, place + 23);
    return (x + big) - big;
#endif
}

// The extremes of x and zero; NaNs are passed over.
struct Range {
    float low, high;
    float largest() const { return -low > high ? -low : high; }
};

template <int n> Range range(const float * x) {
#if SMOL_AVX512
    __m512 low = _mm512_setzero_ps(), high = low;
    for (int i = 0; i < n; i += 16) {
        const __m512 v = _mm512_loadu_ps(x + i);
        low = _mm512_min_ps(v, low);
        high = _mm512_max_ps(v, high);
    }
    return {_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high)};
#elif SMOL_AVX2 || SMOL_SSE
    __m128 low = _mm_setzero_ps(), high = low, low2 = low, high2 = low;
    for (int i = 0; i < n; i += 8) {
        const __m128 a = _mm_loadu_ps(x + i), b = _mm_loadu_ps(x + i + 4);
        low = _mm_min_ps(a, low);
        high = _mm_max_ps(a, high);
        low2 = _mm_min_ps(b, low2);
        high2 = _mm_max_ps(b, high2);
    }
    low = _mm_min_ps(low, low2);
    high = _mm_max_ps(high, high2);
    low = _mm_min_ps(low, _mm_movehl_ps(low, low));
    high = _mm_max_ps(high, _mm_movehl_ps(high, high));
    return {_mm_cvtss_f32(_mm_min_ss(low, _mm_shuffle_ps(low, low, 1))),
            _mm_cvtss_f32(_mm_max_ss(high, _mm_shuffle_ps(high, high, 1)))};
#elif SMOL_NEON
    float32x4_t low = vdupq_n_f32(0), high = low;
    for (int i = 0; i < n; i += 4) {
        const float32x4_t v = vld1q_f32(x + i);
        low = vminnmq_f32(low, v);
        high = vmaxnmq_f32(high, v);
    }
    return {vminnmvq_f32(low), vmaxnmvq_f32(high)};
#else
    Range r = {0, 0};
    for (int i = 0; i < n; i++) {
        r.low = x[i] < r.low ? x[i] : r.low;
        r.high = x[i] > r.high ? x[i] : r.high;
    }
    return r;
#endif
}

// How llama.cpp rounds to Q8_0: its AVX code, its NEON code and its plain code differ.
#if SMOL_AVX512 || SMOL_AVX2 || SMOL_NEON
constexpr bool TIES_AWAY = false; // from zero, not to even
#else
constexpr bool TIES_AWAY = true;
#endif
inline float inverse_scale(float largest) {
#if SMOL_AVX512 || SMOL_AVX2
    return largest != 0 ? 127.0f / largest : 0;
#else
    const float d = largest / 127.0f;
    return d != 0 ? 1.0f / d : 0;
#endif
}

#if SMOL_AVX2 || SMOL_SSE
template <bool away> inline __m128i round4(const float * x, __m128 scale) {
    const __m128 v = _mm_mul_ps(_mm_loadu_ps(x), scale);
    const __m128i q = _mm_cvtps_epi32(v);
    if (!away) {
        return q;
    }
    // What is half a step farther from zero than its rounded value was a tie.
    const __m128 sign = _mm_and_ps(v, _mm_set1_ps(-0.0f));
    const __m128 tie = _mm_cmpeq_ps(_mm_sub_ps(v, _mm_cvtepi32_ps(q)), _mm_or_ps(sign, _mm_set1_ps(0.5f)));
    const __m128i step = _mm_or_si128(_mm_srai_epi32(_mm_castps_si128(v), 31), _mm_set1_epi32(1));
    return _mm_add_epi32(q, _mm_and_si128(_mm_castps_si128(tie), step));
}
#elif SMOL_NEON
template <bool> inline int16x4_t round4(const float * x, float scale) {
    return vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x), scale)));
}
#endif

// 16 times q = x * scale, to nearest, ties to even or away from zero, at most 127; gives the sum of the q.
template <bool away> inline int32_t round16(const float * x, float scale, int8_t * q) {
#if SMOL_AVX512 || SMOL_AVX2 || SMOL_SSE
#    if SMOL_AVX512
    const __m128i bytes = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(scale))));
#    else
    const __m128 s = _mm_set1_ps(scale);
    const __m128i bytes = _mm_packs_epi16(_mm_packs_epi32(round4<away>(x, s), round4<away>(x + 4, s)),
                                          _mm_packs_epi32(round4<away>(x + 8, s), round4<away>(x + 12, s)));
#    endif
    _mm_storeu_si128((__m128i *) q, bytes);
    // Sums of 8 bytes without a sign.
    const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#elif SMOL_NEON
    const int8x8_t a = vqmovn_s16(vcombine_s16(round4<away>(x, scale), round4<away>(x + 4, scale)));
    const int8x8_t b = vqmovn_s16(vcombine_s16(round4<away>(x + 8, scale), round4<away>(x + 12, scale)));
    const int8x16_t bytes = vcombine_s8(a, b);
    vst1q_s8(q, bytes);
    return vaddlvq_s8(bytes);
#else
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        const float rounded = away ? roundf(x[i] * scale) : nearbyintf(x[i] * scale);
        q[i] = rounded < 127 ? rounded > -128 ? int8_t(rounded) : int8_t(-128) : int8_t(127);
        sum += q[i];
    }
    return sum;
#endif
}

size_t bytes32(int64_t k) {
    return size_t(k / 32) * sizeof(Act32);
}

#if SMOL_NEON
// 4 blocks at a time, so that an in-order core does not wait for one division after the other: twice as fast on a
// Cortex-A55.
inline void prepare4(const float * __restrict x, Act32 * __restrict block) {
    float32x4_t largest[4];
    for (int b = 0; b < 4; b++) {
        float32x4_t even = vdupq_n_f32(0), odd = even;
        for (int i = 0; i < 32; i += 8) {
            even = vmaxnmq_f32(even, vabsq_f32(vld1q_f32(x + 32 * b + i)));
            odd = vmaxnmq_f32(odd, vabsq_f32(vld1q_f32(x + 32 * b + i + 4)));
        }
        largest[b] = vmaxnmq_f32(even, odd);
    }
    const float32x4_t all = vpmaxnmq_f32(vpmaxnmq_f32(largest[0], largest[1]), vpmaxnmq_f32(largest[2], largest[3]));
    const float32x4_t scale = vdivq_f32(all, vdupq_n_f32(127));
    const float32x4_t d = vcvt_f32_f16(vcvt_f16_f32(scale));
    const uint32x4_t some = vcgtq_f32(scale, vdupq_n_f32(0));
    float inverse[4];
    vst1q_f32(inverse, vreinterpretq_f32_u32(vandq_u32(some, vreinterpretq_u32_f32(vdivq_f32(vdupq_n_f32(1), scale)))));
    int16x8_t sums[4];
    for (int b = 0; b < 4; b++) {
        int32x4_t q[8];
        for (int i = 0; i < 8; i++) {
            q[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 32 * b + 4 * i), inverse[b]));
        }
        int16x8_t narrow[4];
        for (int i = 0; i < 4; i++) {
            narrow[i] = vqmovn_high_s32(vqmovn_s32(q[2 * i]), q[2 * i + 1]);
        }
        const int8x16_t low = vqmovn_high_s16(vqmovn_s16(narrow[0]), narrow[1]);
        const int8x16_t high = vqmovn_high_s16(vqmovn_s16(narrow[2]), narrow[3]);
        vst1q_s8(block[b].q, low);
        vst1q_s8(block[b].q + 16, high);
        sums[b] = vpadalq_s8(vpaddlq_s8(low), high);
    }
    const int16x8_t pairs = vpaddq_s16(vpaddq_s16(sums[0], sums[1]), vpaddq_s16(sums[2], sums[3]));
    const int32x4_t minus_sum = vnegq_s32(vpaddlq_s16(pairs));
    const int32x4x2_t both = vzipq_s32(vreinterpretq_s32_f32(d), minus_sum);
    vst1_s32(reinterpret_cast<int32_t *>(&block[0]), vget_low_s32(both.val[0]));
    vst1_s32(reinterpret_cast<int32_t *>(&block[1]), vget_high_s32(both.val[0]));
    vst1_s32(reinterpret_cast<int32_t *>(&block[2]), vget_low_s32(both.val[1]));
    vst1_s32(reinterpret_cast<int32_t *>(&block[3]), vget_high_s32(both.val[1]));
}
#endif

void prepare32(int64_t k, const float * __restrict x, void * __restrict out) {
    auto * block = static_cast<Act32 *>(out);
#if SMOL_NEON
    for (; k >= 128; k -= 128, block += 4, x += 128) {
        prepare4(x, block);
    }
#endif
    for (int64_t b = 0; b < k / 32; b++, block++, x += 32) {
        const float largest = range<32>(x).largest();
        block->d = through_half(largest / 127.0f);
        const float inverse = inverse_scale(largest);
        block->minus_sum =
            -(round16<TIES_AWAY>(x, inverse, block->q) + round16<TIES_AWAY>(x + 16, inverse, block->q + 16));
    }
}

size_t bytes128(int64_t k) {
    return size_t(k / 128) * sizeof(Act128);
}

void prepare128(int64_t k, const float * __restrict x, void * __restrict out) {
    auto * block = static_cast<Act128 *>(out);
    for (int64_t b = 0; b < k / 128; b++, block++, x += 128) {
        const float largest = range<128>(x).largest(), inverse = 127.0f / largest;
        if (!(inverse < INFINITY)) { // zero, or so small that only zero is left
            memset(block, 0, sizeof *block);
            continue;
        }
        int32_t sum = 0;
        for (int i = 0; i < 128; i += 16) {
            sum += round16<false>(x + i, inverse, block->q + i);
        }
        block->minus_sum = -sum;
        block->d = largest / 127.0f;
    }
}

size_t bytes256(int64_t k) {
    return size_t(k / 256) * sizeof(Act256);
}

void prepare256(int64_t k, const float * __restrict x, void * __restrict out) {
    auto * block = static_cast<Act256 *>(out);
    for (int64_t b = 0; b < k / 256; b++, block++, x += 256) {
        const Range r = range<256>(x);
        const float largest = r.largest();
        if (largest == 0) {
            memset(block, 0, sizeof *block);
            continue;
        }
        // The first of the largest is scaled to -127 (ggml-quants.c, quantize_row_q8_K_ref): its sign matters.
        float sign = r.high == largest ? 1.0f : -1.0f;
        if (r.high == -r.low) {
            int first = 0;
            while (fabsf(x[first]) != largest) {
                first++;
            }
            sign = x[first] < 0 ? -1.0f : 1.0f;
        }
        const float scale = -127.0f / (sign * largest);
        int32_t total = 0;
        for (int i = 0; i < 16; i++) {
            const int32_t sum = round16<false>(x + 16 * i, scale, block->q + 16 * i);
            block->sums_low[i] = int8_t(sum & 127);
            block->sums_high[i] = int8_t(sum >> 7);
            total += sum;
        }
        block->minus_sum = -total;
        block->d = 1 / scale;
    }
}

} // namespace

const smol_activation act32 = {"q8_0", bytes32, prepare32};
const smol_activation act128 = {"q8_128", bytes128, prepare128};
const smol_activation act256 = {"q8_k", bytes256, prepare256};

} // namespace smol

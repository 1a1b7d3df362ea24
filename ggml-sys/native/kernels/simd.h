// One vector of packed weights (4 bytes a row, as many rows as fit) against 4 broadcast activations: what all kernels
// here are made of, on AVX-512 VNNI, AVX2, SSE4.1, NEON with dotprod, plain NEON, and plain C++.
//
// Floats are combined with fused multiply-add wherever the level has it, in the same order everywhere, so that all of
// these give the same bits (x86-64-v2 has none: it multiplies and adds, and so does its reference).
#pragma once

#include <stdint.h>
#include <string.h>

#include <type_traits>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#    define SMOL_AVX512 1
#    include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#    define SMOL_AVX2 1
#    include <immintrin.h>
#elif defined(__SSE4_1__)
#    define SMOL_SSE 1
#    include <smmintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#    define SMOL_NEON 1
#    include <arm_neon.h>
#    ifdef __ARM_FEATURE_DOTPROD
#        define SMOL_DOTPROD 1
#    endif
#endif

namespace smol {

inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// IEEE half to float, exact.
inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16;
    const uint32_t bits = half & 0x7fff;
    uint32_t out;
    if (bits >= 0x7c00) { // infinity, NaN
        out = sign | 0x7f800000 | (bits & 0x3ff) << 13;
    } else if (bits >= 0x400) {
        out = sign | ((bits << 13) + (112u << 23));
    } else { // zero, denormal: a multiple of 2^-24
        const float value = float(bits) * 0x1p-24f;
        memcpy(&out, &value, 4);
        out |= sign;
    }
    float result;
    memcpy(&result, &out, 4);
    return result;
}

inline uint16_t load_half(const void * p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return half;
}

// Types: Bytes (4 * LANES bytes), Ints and Floats (LANES each), Acts (16 activations).
#if SMOL_AVX512

constexpr int LANES = 16;
using Bytes = __m512i;
using Ints = __m512i;
using Floats = __m512;
using Acts = const int8_t *;

inline Bytes load_bytes(const void * p) {
    Bytes bytes = _mm512_loadu_si512(p);
    // Else GCC loads again for each shift, and loads are what a gemv is short of: 1.4 times as fast.
    asm("" : "+v"(bytes));
    return bytes;
}
inline Bytes set_bytes(uint8_t x) { return _mm512_set1_epi8(char(x)); }
inline Bytes and_bytes(Bytes a, Bytes b) { return _mm512_and_si512(a, b); }
// Logical shift of each byte; bits of its neighbour may come in from above: mask afterwards.
template <int n> Bytes shift_right(Bytes a) { return n ? _mm512_srli_epi16(a, n) : a; }
inline Acts load_acts(const int8_t * p) { return p; }

inline Ints set_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline Ints add_ints(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints load_u8(const uint8_t * p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p)); }
inline Ints shift_left(Ints a, int n) { return _mm512_slli_epi32(a, n); }

inline Floats set_floats(float x) { return _mm512_set1_ps(x); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
// The form with a mask, as GCC 12 warns of an uninitialised value in the other.
inline Floats load_halves(const void * p) { return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *) p)); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline void store(float * p, Floats a) { _mm512_storeu_ps(p, a); }

// Sum of products of up to 128 weights 0..3 a row with activations -128..127, from *start on.
struct Dot {
    Ints acc;
    Dot() : acc(_mm512_setzero_si512()) {}
    explicit Dot(const int32_t * start) : acc(_mm512_set1_epi32(*start)) {}
    template <int quad> void add(Bytes weights, Acts acts) {
        int32_t four;
        memcpy(&four, acts + 4 * quad, 4);
        acc = _mm512_dpbusd_epi32(acc, weights, _mm512_set1_epi32(four));
    }
    Ints sum() const { return acc; }
};

#elif SMOL_AVX2

constexpr int LANES = 8;
using Bytes = __m256i;
using Ints = __m256i;
using Floats = __m256;
using Acts = const int8_t *;

inline Bytes load_bytes(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
inline Bytes set_bytes(uint8_t x) { return _mm256_set1_epi8(char(x)); }
inline Bytes and_bytes(Bytes a, Bytes b) { return _mm256_and_si256(a, b); }
template <int n> Bytes shift_right(Bytes a) { return n ? _mm256_srli_epi16(a, n) : a; }
inline Acts load_acts(const int8_t * p) { return p; }

inline Ints set_ints(int32_t x) { return _mm256_set1_epi32(x); }
inline Ints add_ints(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints load_u8(const uint8_t * p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p)); }
inline Ints shift_left(Ints a, int n) { return _mm256_slli_epi32(a, n); }

inline Floats set_floats(float x) { return _mm256_set1_ps(x); }
inline Floats to_floats(Ints a) { return _mm256_cvtepi32_ps(a); }
inline Floats load_halves(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline void store(float * p, Floats a) { _mm256_storeu_ps(p, a); }

// In 16 bits: 32 additions of 2 * 3 * 128 stay below 2^15.
struct Dot {
    __m256i acc = _mm256_setzero_si256();
    const int32_t * start = nullptr;
    Dot() = default;
    explicit Dot(const int32_t * from) : start(from) {}
    template <int quad> void add(Bytes weights, Acts acts) {
        int32_t four;
        memcpy(&four, acts + 4 * quad, 4);
        acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(weights, _mm256_set1_epi32(four)));
    }
    Ints sum() const {
        const Ints wide = _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
        return start ? add_ints(wide, set_ints(*start)) : wide;
    }
};

#elif SMOL_SSE

constexpr int LANES = 4;
using Bytes = __m128i;
using Ints = __m128i;
using Floats = __m128;
using Acts = const int8_t *;

inline Bytes load_bytes(const void * p) { return _mm_loadu_si128((const __m128i *) p); }
inline Bytes set_bytes(uint8_t x) { return _mm_set1_epi8(char(x)); }
inline Bytes and_bytes(Bytes a, Bytes b) { return _mm_and_si128(a, b); }
template <int n> Bytes shift_right(Bytes a) { return n ? _mm_srli_epi16(a, n) : a; }
inline Acts load_acts(const int8_t * p) { return p; }

inline Ints set_ints(int32_t x) { return _mm_set1_epi32(x); }
inline Ints add_ints(Ints a, Ints b) { return _mm_add_epi32(a, b); }
inline Ints load_u8(const uint8_t * p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
}
inline Ints shift_left(Ints a, int n) { return _mm_slli_epi32(a, n); }

inline Floats set_floats(float x) { return _mm_set1_ps(x); }
inline Floats to_floats(Ints a) { return _mm_cvtepi32_ps(a); }
inline Floats load_halves(const void * p) {
    const __m128i half = _mm_cvtepu16_epi32(_mm_loadl_epi64(static_cast<const __m128i *>(p)));
    const __m128i bits = _mm_and_si128(half, _mm_set1_epi32(0x7fff)), sign = _mm_slli_epi32(_mm_xor_si128(half, bits), 16);
    const __m128i normal = _mm_add_epi32(_mm_slli_epi32(bits, 13), _mm_set1_epi32(112 << 23));
    const __m128i infinite = _mm_and_si128(_mm_cmpgt_epi32(bits, _mm_set1_epi32(0x7bff)), _mm_set1_epi32(0x7f800000));
    const __m128 small = _mm_mul_ps(_mm_cvtepi32_ps(bits), _mm_set1_ps(0x1p-24f));
    const __m128 is_small = _mm_castsi128_ps(_mm_cmplt_epi32(bits, _mm_set1_epi32(0x400)));
    const __m128 value = _mm_blendv_ps(_mm_castsi128_ps(_mm_or_si128(normal, infinite)), small, is_small);
    return _mm_or_ps(value, _mm_castsi128_ps(sign));
}
inline Floats multiply(Floats a, Floats b) { return _mm_mul_ps(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
inline void store(float * p, Floats a) { _mm_storeu_ps(p, a); }

struct Dot {
    __m128i acc = _mm_setzero_si128();
    const int32_t * start = nullptr;
    Dot() = default;
    explicit Dot(const int32_t * from) : start(from) {}
    template <int quad> void add(Bytes weights, Acts acts) {
        int32_t four;
        memcpy(&four, acts + 4 * quad, 4);
        acc = _mm_add_epi16(acc, _mm_maddubs_epi16(weights, _mm_set1_epi32(four)));
    }
    Ints sum() const {
        const Ints wide = _mm_madd_epi16(acc, _mm_set1_epi16(1));
        return start ? add_ints(wide, set_ints(*start)) : wide;
    }
};

#elif SMOL_NEON

constexpr int LANES = 4;
using Bytes = uint8x16_t;
using Ints = int32x4_t;
using Floats = float32x4_t;
using Acts = int8x16_t;

inline Bytes load_bytes(const void * p) { return vld1q_u8(static_cast<const uint8_t *>(p)); }
inline Bytes set_bytes(uint8_t x) { return vdupq_n_u8(x); }
inline Bytes and_bytes(Bytes a, Bytes b) { return vandq_u8(a, b); }
template <int n> Bytes shift_right(Bytes a) {
    if constexpr (n == 0) {
        return a;
    } else {
        return vshrq_n_u8(a, n);
    }
}
inline Acts load_acts(const int8_t * p) { return vld1q_s8(p); }

inline Ints set_ints(int32_t x) { return vdupq_n_s32(x); }
inline Ints add_ints(Ints a, Ints b) { return vaddq_s32(a, b); }
inline Ints load_u8(const uint8_t * p) {
    uint32_t four;
    memcpy(&four, p, 4);
    const uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
}
inline Ints shift_left(Ints a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }

inline Floats set_floats(float x) { return vdupq_n_f32(x); }
inline Floats to_floats(Ints a) { return vcvtq_f32_s32(a); }
inline Floats load_halves(const void * p) {
    uint16_t halves[4];
    memcpy(halves, p, sizeof halves);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
}
inline Floats multiply(Floats a, Floats b) { return vmulq_f32(a, b); }
inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline void store(float * p, Floats a) { vst1q_f32(p, a); }

#    if SMOL_DOTPROD
struct Dot {
    Ints acc = vdupq_n_s32(0);
    Dot() = default;
    explicit Dot(const int32_t * start) : acc(vdupq_n_s32(*start)) {}
    template <int quad> void add(Bytes weights, Acts acts) {
        acc = vdotq_laneq_s32(acc, vreinterpretq_s8_u8(weights), acts, quad);
    }
    Ints sum() const { return acc; }
};
#    else
// In 16 bits: 64 additions of 3 * 128 stay below 2^15.
struct Dot {
    int16x8_t low = vdupq_n_s16(0), high = vdupq_n_s16(0);
    const int32_t * start = nullptr;
    Dot() = default;
    explicit Dot(const int32_t * from) : start(from) {}
    template <int quad> void add(Bytes weights, Acts acts) {
        const int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(acts), quad));
        const int8x16_t w = vreinterpretq_s8_u8(weights);
        low = vmlal_s8(low, vget_low_s8(w), vget_low_s8(four));
        high = vmlal_high_s8(high, w, four);
    }
    Ints sum() const {
        const Ints wide = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
        return start ? add_ints(wide, set_ints(*start)) : wide;
    }
};
#    endif

#else // plain C++: one row a vector

constexpr int LANES = 1;
using Bytes = uint32_t;
using Ints = int32_t;
using Floats = float;
using Acts = const int8_t *;

inline Bytes load_bytes(const void * p) {
    uint32_t four;
    memcpy(&four, p, 4);
    return four;
}
inline Bytes set_bytes(uint8_t x) { return 0x01010101u * x; }
inline Bytes and_bytes(Bytes a, Bytes b) { return a & b; }
template <int n> Bytes shift_right(Bytes a) { return a >> n; }
inline Acts load_acts(const int8_t * p) { return p; }
inline Ints set_ints(int32_t x) { return x; }
inline Ints add_ints(Ints a, Ints b) { return a + b; }
inline Ints load_u8(const uint8_t * p) { return *p; }
inline Ints shift_left(Ints a, int n) { return Ints(uint32_t(a) << n); }
inline Floats set_floats(float x) { return x; }
inline Floats to_floats(Ints a) { return float(a); }
inline Floats load_halves(const void * p) { return half_to_float(load_half(p)); }
inline Floats multiply(Floats a, Floats b) { return a * b; }
inline void store(float * p, Floats a) { *p = a; }

struct Dot {
    int32_t acc = 0;
    Dot() = default;
    explicit Dot(const int32_t * start) : acc(*start) {}
    template <int quad> void add(Bytes weights, Acts acts) {
        for (int i = 0; i < 4; i++) {
            acc += int32_t(weights >> 8 * i & 255) * acts[4 * quad + i];
        }
    }
    Ints sum() const { return acc; }
};

#endif

// Rows of a group: 16 in one vector on AVX-512 and in two on AVX2, 8 in two vectors of 4 on SSE and NEON, 4 one by one
// in plain C++.
constexpr int ROWS = LANES == 1 ? 4 : LANES == 4 ? 8 : 16;
constexpr int VECTORS = ROWS / LANES;

// 16 weights of each row, a byte each: weight 4 j + i of a row is byte i of its 4 bytes in field[j].
struct Fields {
    Bytes field[4];
    Fields() = default;
    // From 2 bits each, lowest first.
    explicit Fields(Bytes w) {
        const Bytes mask = set_bytes(3);
        field[0] = and_bytes(w, mask);
        field[1] = and_bytes(shift_right<2>(w), mask);
        field[2] = and_bytes(shift_right<4>(w), mask);
#if SMOL_NEON // shifts bytes
        field[3] = shift_right<6>(w);
#else
        field[3] = and_bytes(shift_right<6>(w), mask);
#endif
    }
};

// f(0), f(1), f(2), f(3) with constants.
template <class F> inline void each_of_four(F f) {
    f(std::integral_constant<int, 0>());
    f(std::integral_constant<int, 1>());
    f(std::integral_constant<int, 2>());
    f(std::integral_constant<int, 3>());
}

inline void add_fields(Dot & dot, const Fields & w, Acts a) {
    dot.add<0>(w.field[0], a);
    dot.add<1>(w.field[1], a);
    dot.add<2>(w.field[2], a);
    dot.add<3>(w.field[3], a);
}

#if SMOL_DOTPROD
// Products of 2-bit weights with one activation row, as an in-order core likes them: 3 sums that do not wait for each
// other, and two of the four fields are not shifted down, but their sums are, once.
struct TwoBitSums {
    Ints ones, fours = vdupq_n_s32(0), sixteens = vdupq_n_s32(0);
    explicit TwoBitSums(int32_t start) : ones(vdupq_n_s32(start)) {}
    Ints sum() const { return vsraq_n_s32(vsraq_n_s32(ones, fours, 2), sixteens, 4); }
};

// 16 weights of all rows of a group.
inline void add_two_bits(TwoBitSums (&to)[VECTORS], const uint8_t * fields, Acts a) {
    int8x16_t w[VECTORS], field[4][VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        w[v] = vld1q_s8(reinterpret_cast<const int8_t *>(fields) + 16 * v);
    }
    for (int v = 0; v < VECTORS; v++) {
        field[0][v] = vandq_s8(w[v], vdupq_n_s8(3));
        field[1][v] = vandq_s8(w[v], vdupq_n_s8(12));
        field[2][v] = vandq_s8(w[v], vdupq_n_s8(48));
        field[3][v] = vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(w[v]), 6));
    }
    for (int v = 0; v < VECTORS; v++) {
        to[v].ones = vdotq_laneq_s32(to[v].ones, field[0][v], a, 0);
        to[v].fours = vdotq_laneq_s32(to[v].fours, field[1][v], a, 1);
        to[v].sixteens = vdotq_laneq_s32(to[v].sixteens, field[2][v], a, 2);
    }
    for (int v = 0; v < VECTORS; v++) {
        to[v].ones = vdotq_laneq_s32(to[v].ones, field[3][v], a, 3);
    }
}
#endif

} // namespace smol

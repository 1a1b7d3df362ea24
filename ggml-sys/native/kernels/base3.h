// Five ternary weights in a byte, as a fraction in base 3, and how they get out again.
//
// A byte y, signed, stands for y / 256 in (-1/2, 1/2). Its first digit is 3 y / 256 rounded to -1, 0 or 1; what is left
// is 3 y in 8 bits, wrapped around, and holds the next one. So digit = (3 y - wrapped(3 y)) / 256 without a rest, and a
// sum of products needs no digit at all: sum(digit * a) = (3 sum(y * a) - sum(wrapped(3 y) * a)) / 256. That takes two
// products for a digit, and wins where a product of 8 bits is one instruction and there are few columns. Elsewhere the
// digit is two comparisons.
#pragma once

#include "simd.h"
#include "sources.h"

#include <type_traits>

namespace smol {
namespace base3 {

constexpr int DIGITS = 5;

// The bytes of all numbers of 5 digits: 3^5 = 243.
struct Encoded {
    uint8_t bytes[256] = {};
    constexpr Encoded() {
        for (int i = 0; i < 243; i++) {
            bytes[i] = uint8_t((i * 256 + 242) / 243 - 128);
        }
    }
};

// Four bytes, in a word. Digit j of byte i is digits[4 * j + i], 0..2; digit 0 comes out first.
inline uint32_t encode(const uint8_t * digits) {
    static constexpr Encoded encoded;
    uint32_t numbers = 0, word = 0;
    for (int j = 0; j < DIGITS; j++) {
        numbers = 3 * numbers + load_32(digits + 4 * j);
    }
    for (int i = 0; i < 32; i += 8) {
        word |= uint32_t(encoded.bytes[numbers >> i & 255]) << i;
    }
    return word;
}

inline int decode(uint8_t byte, int j) {
    int x = int8_t(byte) + 128;
    for (; j > 0; j--) {
        x = 3 * x & 255;
    }
    return (3 * x >> 8) - 1;
}

// Bytes as `start` makes them of packed ones go through `next` from digit to digit; `digit` gives a weight, 0..2 where
// OFFSET is 1, -1..1 where it is 0; `place` puts a digit 0..2 into field j of 2 bits.
#if SMOL_AVX512

constexpr int OFFSET = 1;
inline Bytes start(Bytes packed) { return _mm512_xor_si512(packed, _mm512_set1_epi8(-128)); } // as y + 128
inline Bytes next(Bytes y) { return _mm512_add_epi8(_mm512_add_epi8(y, y), y); }
inline Bytes digit(Bytes y) {
    const __mmask64 middle = _mm512_cmpgt_epu8_mask(y, _mm512_set1_epi8(85));
    const __mmask64 above = _mm512_cmpgt_epu8_mask(y, _mm512_set1_epi8(char(170)));
    return _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(middle, _mm512_set1_epi8(1)), above, _mm512_set1_epi8(2));
}
template <int j> Bytes place(Bytes fields, Bytes digit) {
    return _mm512_or_si512(fields, _mm512_slli_epi16(digit, 2 * j));
}

#elif SMOL_AVX2

constexpr int OFFSET = 1;
inline Bytes start(Bytes packed) { return packed; }
inline Bytes next(Bytes y) { return _mm256_add_epi8(_mm256_add_epi8(y, y), y); }
inline Bytes digit(Bytes y) {
    const Bytes above = _mm256_cmpgt_epi8(y, _mm256_set1_epi8(42)), middle = _mm256_cmpgt_epi8(y, _mm256_set1_epi8(-43));
    return _mm256_abs_epi8(_mm256_add_epi8(above, middle));
}
template <int j> Bytes place(Bytes fields, Bytes digit) {
    return _mm256_or_si256(fields, _mm256_slli_epi16(digit, 2 * j));
}

#elif SMOL_SSE

constexpr int OFFSET = 1;
inline Bytes start(Bytes packed) { return packed; }
inline Bytes next(Bytes y) { return _mm_add_epi8(_mm_add_epi8(y, y), y); }
inline Bytes digit(Bytes y) {
    const Bytes above = _mm_cmpgt_epi8(y, _mm_set1_epi8(42)), middle = _mm_cmpgt_epi8(y, _mm_set1_epi8(-43));
    return _mm_abs_epi8(_mm_add_epi8(above, middle));
}
template <int j> Bytes place(Bytes fields, Bytes digit) {
    return _mm_or_si128(fields, _mm_slli_epi16(digit, 2 * j));
}

#elif SMOL_NEON

constexpr int OFFSET = 0;
inline Bytes start(Bytes packed) { return packed; }
inline Bytes next(Bytes y) { return vmulq_u8(y, vdupq_n_u8(3)); }
inline Bytes digit(Bytes y) {
    const int8x16_t s = vreinterpretq_s8_u8(y);
    return vsubq_u8(vcltq_s8(s, vdupq_n_s8(-42)), vcgtq_s8(s, vdupq_n_s8(42)));
}
template <int j> Bytes place(Bytes fields, Bytes digit) {
    return vorrq_u8(fields, vshlq_n_u8(digit, 2 * j));
}

#else

constexpr int OFFSET = 1;
inline Bytes start(Bytes packed) { return packed ^ 0x80808080u; }
inline Bytes next(Bytes y) {
    const uint32_t even = (y & 0x00ff00ffu) * 3 & 0x00ff00ffu, odd = (y >> 8 & 0x00ff00ffu) * 3 & 0x00ff00ffu;
    return even | odd << 8;
}
inline Bytes digit(Bytes y) {
    const uint32_t even = (y & 0x00ff00ffu) * 3 >> 8 & 0x00ff00ffu, odd = (y >> 8 & 0x00ff00ffu) * 3 >> 8 & 0x00ff00ffu;
    return even | odd << 8;
}
template <int j> Bytes place(Bytes fields, Bytes digit) {
    return fields | digit << 2 * j;
}

#endif

// Quads quad..quad + left of 4 weights into fields of 2 bits, weight plus one.
template <int quad, int left> void to_fields(Bytes y, Bytes * fields) {
    Bytes d = digit(y);
#if SMOL_NEON
    d = vaddq_u8(d, vdupq_n_u8(1));
#endif
    fields[quad / 4] = quad % 4 == 0 ? d : place<quad % 4>(fields[quad / 4], d);
    if constexpr (left > 1) {
        to_fields<quad + 1, left - 1>(next(y), fields);
    }
}

// The products of one column with the bytes that are decoded.
struct Digits {
    Dot dot;
    template <int quad> void add(Bytes y, Bytes, Acts acts) { dot.add<quad>(digit(y), acts); }
    Ints sum() const { return dot.sum(); }
};

#if SMOL_AVX512 || SMOL_DOTPROD
struct Remainders {
    Dot whole, rest;
    template <int quad> void add(Bytes y, Bytes next, Acts acts) {
        whole.add<quad>(y, acts);
        rest.add<quad>(next, acts);
    }
    Ints sum() const {
#    if SMOL_AVX512
        const Ints three = _mm512_add_epi32(_mm512_add_epi32(whole.acc, whole.acc), whole.acc);
        return _mm512_srai_epi32(_mm512_sub_epi32(three, rest.acc), 8);
#    else
        return vshrq_n_s32(vmlaq_n_s32(vnegq_s32(rest.acc), whole.acc, 3), 8);
#    endif
    }
};
using Few = Remainders; // for 1 or 2 columns
#else
using Few = Digits;
#endif

// Columns of the largest tile, so that its sums fit the registers.
#if SMOL_AVX512 || SMOL_DOTPROD
constexpr bool EIGHT_COLUMNS = true;
#else
constexpr bool EIGHT_COLUMNS = false;
#endif

// The products of LANES * VECTORS rows with N columns, going through the digits of their bytes. Sum number i is over
// the quads (4 weights of a row) i * SPAN..(i + 1) * SPAN, where quads are counted modulo SUMS * SPAN.
template <int N, int SUMS, int SPAN> struct Products {
    using Part = std::conditional_t<(N < 4), Few, Digits>;
    Part part[VECTORS][N][SUMS];
    Acts acts[N];

    // Quads quad..quad + left; load(n, quad) gives the 4 quads of activations that start with a multiple of 4.
    template <int quad, int left, class Load> void digits(Bytes (&y)[VECTORS], const Load & load) {
        if constexpr (quad % 4 == 0) {
            for (int n = 0; n < N; n++) {
                acts[n] = load(n, quad);
            }
        }
        for (int v = 0; v < VECTORS; v++) {
            const Bytes following = next(y[v]);
            for (int n = 0; n < N; n++) {
                part[v][n][quad / SPAN % SUMS].template add<quad % 4>(y[v], following, acts[n]);
            }
            y[v] = following;
        }
        if constexpr (left > 1) {
            digits<quad + 1, left - 1>(y, load);
        }
    }

    // The same for the first `count` digits of packed bytes.
    template <int quad, int count, class Load> void step(const uint8_t * bytes, const Load & load) {
        Bytes y[VECTORS];
        start_all(y, bytes);
        digits<quad, count>(y, load);
    }

    static void start_all(Bytes (&y)[VECTORS], const uint8_t * bytes) {
        for (int v = 0; v < VECTORS; v++) {
            y[v] = start(load_bytes(bytes + 4 * LANES * v));
        }
    }

    // With minus_sum for the sum of its activations, negated.
    Ints sum(int v, int n, int i, int32_t minus_sum) const {
        const Ints all = part[v][n][i].sum();
        return OFFSET ? add_ints(all, set_ints(minus_sum)) : all;
    }
};

} // namespace base3
} // namespace smol

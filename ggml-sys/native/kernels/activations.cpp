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

// To nearest, ties to even: the rounding that every level's instruction has.
inline int32_t round_even(float x) {
#if SMOL_AVX512 || SMOL_AVX2 || SMOL_SSE
    return _mm_cvtss_si32(_mm_set_ss(x));
#elif SMOL_NEON
    return vcvtns_s32_f32(x);
#else
    return int32_t(nearbyintf(x));
#endif
}

size_t bytes32(int64_t k) {
    return size_t(k / 32) * sizeof(Act32);
}

void prepare32(int64_t k, const float * x, void * out) {
    auto * block = static_cast<Act32 *>(out);
    for (int64_t b = 0; b < k / 32; b++, block++, x += 32) {
        float largest = 0;
        for (int i = 0; i < 32; i++) {
            const float a = fabsf(x[i]);
            largest = a > largest ? a : largest;
        }
        block->d = through_half(largest / 127.0f);
        const float inverse = largest != 0 ? 127.0f / largest : 0;
        int32_t sum = 0;
        for (int i = 0; i < 32; i++) {
            const int32_t q = round_even(x[i] * inverse);
            block->q[i] = int8_t(q);
            sum += q;
        }
        block->minus_sum = -sum;
    }
}

size_t bytes256(int64_t k) {
    return size_t(k / 256) * sizeof(Act256);
}

void prepare256(int64_t k, const float * x, void * out) {
    auto * block = static_cast<Act256 *>(out);
    for (int64_t b = 0; b < k / 256; b++, block++, x += 256) {
        float largest = 0;
        for (int i = 0; i < 256; i++) {
            const float a = fabsf(x[i]);
            largest = a > largest ? a : largest;
        }
        if (largest == 0) {
            memset(block, 0, sizeof *block);
            continue;
        }
        // The first of the largest is scaled to -127 (ggml-quants.c, quantize_row_q8_K_ref).
        int first = 0;
        while (fabsf(x[first]) != largest) {
            first++;
        }
        const float scale = -127.0f / x[first];
        int32_t total = 0;
        for (int i = 0; i < 16; i++) {
            int32_t sum = 0;
            for (int j = 0; j < 16; j++) {
                const int32_t q = round_even(scale * x[16 * i + j]);
                block->q[16 * i + j] = int8_t(q < 127 ? q : 127);
                sum += block->q[16 * i + j];
            }
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
const smol_activation act256 = {"q8_k", bytes256, prepare256};

} // namespace smol

// Q2_0 with the scales of two blocks merged into one for 128 weights, in the fields of two_bit.h: 2.125 bits a weight
// instead of 2.25, and a quarter of the float operations, because activations have one scale for 128 as well (they are
// rounded to 8 bits like the others). Loses accuracy.
//
// The merged scale and the fields under it are those with the least squared error over the 128 weights that the search
// below finds: from each block's own scale and from the best one for unchanged fields, fields are rounded again and the
// scale is fitted again until nothing changes. Blocks of one scale lose nothing.
#include "activations.h"
#include "sources.h"
#include "two_bit.h"

#include <math.h>

namespace smol {
namespace {

constexpr int BLOCK = 128;
using Fields128 = TwoBit<BLOCK, Act128>;

// To nearest, ties to even, at most the largest finite half.
uint16_t float_to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits < 0x38800000) { // below 2^-14: a multiple of 2^-24
        return uint16_t(sign | uint32_t(rintf(fabsf(x) * 0x1p24f)));
    }
    bits += 0xfff + (bits >> 13 & 1);
    const uint32_t half = (bits - 0x38000000) >> 13;
    return uint16_t(sign | (half < 0x7bff ? half : 0x7bff));
}

struct Merged {
    uint16_t scale; // IEEE half
    int8_t   weights[BLOCK]; // -1..2
    double   error;          // sum of squares
};

// Rounds the weights to a scale, fits the scale to them, until that gains nothing.
Merged fit(const float * weights, double scale) {
    Merged best = {};
    best.error = INFINITY;
    for (int round = 0; round < 8; round++) {
        Merged now;
        now.scale = float_to_half(float(scale));
        const double d = half_to_float(now.scale);
        now.error = 0;
        double product = 0, square = 0;
        for (int i = 0; i < BLOCK; i++) {
            const double q = d != 0 ? fmin(fmax(rint(weights[i] / d), -1), 2) : 0;
            now.weights[i] = int8_t(q);
            now.error += (weights[i] - d * q) * (weights[i] - d * q);
            product += weights[i] * q;
            square += q * q;
        }
        if (!(now.error < best.error)) {
            break;
        }
        best = now;
        if (square == 0) {
            break;
        }
        scale = product / square;
    }
    return best;
}

Merged merge(const SourceQ2 * blocks) {
    float weights[BLOCK];
    double square[2] = {0, 0}, scale[2];
    for (int b = 0; b < 2; b++) {
        scale[b] = half_to_float(blocks[b].d);
        for (int i = 0; i < BLOCK / 2; i++) {
            const int q = blocks[b].weight(i);
            weights[BLOCK / 2 * b + i] = float(q * scale[b]);
            square[b] += q * q;
        }
    }
    const double all = square[0] + square[1];
    const double starts[] = {all != 0 ? (scale[0] * square[0] + scale[1] * square[1]) / all : 0, scale[0], scale[1]};
    Merged best = fit(weights, starts[0]);
    for (int i = 1; i < 3 && best.error != 0; i++) {
        const Merged other = fit(weights, starts[i]);
        if (other.error < best.error) {
            best = other;
        }
    }
    return best;
}

bool accepts(int64_t k, const void * rows, size_t stride, int64_t n) {
    for (int64_t row = 0; row < n; row++) {
        const auto * source = source_row<SourceQ2>(rows, stride, row);
        for (int64_t b = 0; b < 2 * (k / BLOCK); b++) {
            if ((source[b].d & 0x7c00) == 0x7c00) { // infinity, NaN
                return false;
            }
        }
    }
    return true;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    memset(group, 0, Fields128::group_bytes(k));
    for (int64_t row = 0; row < n; row++) {
        const auto * source = source_row<SourceQ2>(rows, stride, row);
        for (int64_t b = 0; b < k / BLOCK; b++) {
            const Merged merged = merge(source + 2 * b);
            Fields128::pack_block(Fields128::block(b, group), row, merged.scale, [&](int i) { return int(merged.weights[i]); });
        }
    }
}

} // namespace

const smol_layout q2_0_merged = {ROWS == 16 ? "q2_0_merged-16" : ROWS == 8 ? "q2_0_merged-8" : "q2_0_merged-4", 1, GGML_TYPE_Q2_0, ROWS,
                                 BLOCK, false, &act128, Fields128::group_bytes, pack, Fields128::unpack_row,
                                 Fields128::gemv, Fields128::gemm, Fields128::reference, accepts, true};

} // namespace smol

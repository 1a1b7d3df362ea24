// Q2_0 with the scales of two blocks merged into one for 128 weights, in the fields of two_bit.h: 2.125 bits a weight
// instead of 2.25, and a quarter of the float operations, because activations have one scale for 128 as well (they are
// rounded to 8 bits like the others). Loses accuracy.
//
// The merged scale is the one with the least squared error over the 128 weights, which are rounded to it anew. Blocks of
// one scale lose nothing. Where scales s scatter, the root mean square error of the weights, relative to theirs, is about
// 0.7 times the standard deviation of log s: 1.4 % for 0.02, 7 % for 0.1, 14 % for 0.2; 11 % for a model that was
// rounded after training, with neighbours' scales 0.35 apart. What that costs is for `perplexity` to say, model by model.
#include "activations.h"
#include "sources.h"
#include "two_bit.h"

#include <algorithm>
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

// What two blocks become. They have at most 8 different weights, so the search is over those and how often they occur.
struct Merged {
    static constexpr int VALUES = 8;

    uint16_t scale; // IEEE half
    int      weight[VALUES]; // -1..2; number 4 b + q + 1 is for weight q of block b

    explicit Merged(const SourceQ2 * blocks) : scale(blocks[0].d) {
        for (int i = 0; i < VALUES; i++) {
            weight[i] = i % 4 - 1;
        }
        if (blocks[0].d != blocks[1].d) {
            float value[VALUES], count[VALUES];
            for (int i = 0; i < VALUES; i++) {
                const SourceQ2 & block = blocks[i / 4];
                value[i] = float(i % 4 - 1) * half_to_float(block.d);
                const auto count_in = [&](const uint8_t * qs) { return __builtin_popcountll(fields_equal(load_64(qs), i % 4)); };
                count[i] = value[i] != 0 ? float(count_in(block.qs) + count_in(block.qs + 8)) : 0;
            }
            search(value, count);
        }
    }

    // The fields of 32 weights of block b, as they become.
    uint64_t map(uint64_t fields, int b) const {
        uint64_t out = 0;
        for (int q = 0; q < 4; q++) {
            out |= fields_equal(fields, q) * uint64_t(weight[4 * b + q] + 1);
        }
        return out;
    }

private:
    // A one in each field of 2 bits that is q.
    static uint64_t fields_equal(uint64_t fields, int q) {
        const uint64_t same = ~(fields ^ uint64_t(q) * 0x5555555555555555);
        return same & same >> 1 & 0x5555555555555555;
    }

    // Scales that are tried, at most: zero, and one between any two of 18 places; in vectors of 8.
    static constexpr int SCALES = 24;

    // Of values that occur, and are not zero, the count is not zero.
    //
    // Rounding changes where a scale is a weight over 1/2, -1/2 or 3/2. Between two such places the best scale for the
    // rounded weights is their least-squares fit; the best of those is the best of all.
    void search(const float * value, const float * count) {
        float places[3 * VALUES], d[SCALES], product[SCALES] = {}, square[SCALES] = {}, error[SCALES] = {};
        uint16_t half[SCALES];
        int n = 0, scales = 1;
        for (int i = 0; i < VALUES; i++) {
            if (count[i] != 0) {
                for (const float inverse : {2.0f, -2.0f, 2.0f / 3.0f}) {
                    places[n++] = value[i] * inverse;
                }
            }
        }
        std::sort(places, places + n);
        // Nothing is gained beyond the places: there all weights are rounded to zero.
        std::fill(d, d + SCALES, INFINITY);
        for (int i = 1; i < n; i++) {
            const float middle = (places[i - 1] + places[i]) / 2;
            if (places[i] != places[i - 1] && middle != 0) {
                d[scales++] = middle;
            }
        }
        const int padded = (scales + 7) / 8 * 8;
        for (int i = 0; i < VALUES; i++) {
            for (int s = 0; s < padded && count[i] != 0; s++) {
                const float q = rounded(value[i] / d[s]);
                product[s] += count[i] * value[i] * q;
                square[s] += count[i] * q * q;
            }
        }
        for (int s = 0; s < scales; s++) {
            half[s] = float_to_half(square[s] != 0 ? product[s] / square[s] : 0);
            d[s] = half_to_float(half[s]);
        }
        for (int i = 0; i < VALUES; i++) {
            for (int s = 0; s < padded && count[i] != 0; s++) {
                const float rest = value[i] - d[s] * rounded(value[i] / d[s]);
                error[s] += count[i] * rest * rest;
            }
        }
        const auto best = std::min_element(error, error + scales) - error;
        scale = half[best];
        for (int i = 0; i < VALUES; i++) {
            weight[i] = d[best] != 0 ? int(rounded(value[i] / d[best])) : 0;
        }
    }

    // To the nearest of -1..2, ties to even. Not with comparisons, as compilers make branches of them.
    static float rounded(float x) {
        return 0.5f + copysignf(0.5f, x + 0.5f) - copysignf(0.5f, 0.5f - x) + copysignf(0.5f, x - 1.5f);
    }
};

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
    using Two = SourceQ2[2];
    const auto put = [](const Two & blocks, int64_t row, uint8_t * block) {
        const Merged merged(blocks);
        uint32_t fields[8];
        for (int i = 0; i < 4; i++) {
            to_fields(merged.map(load_64(blocks[i / 2].qs + i % 2 * 8), i / 2), fields + 2 * i);
        }
        Fields128::pack_block(merged.scale, fields, row, block);
    };
    pack_blocks<Two>(k / BLOCK, rows, stride, n, group, Fields128::BYTES, put);
}

} // namespace

const smol_layout q2_0_merged = {ROWS == 16 ? "q2_0_merged-16" : ROWS == 8 ? "q2_0_merged-8" : "q2_0_merged-4", 1, GGML_TYPE_Q2_0, ROWS,
                                 BLOCK, false, &act128, Fields128::group_bytes, pack, Fields128::unpack_row,
                                 Fields128::gemv, Fields128::gemm, Fields128::reference, accepts, true};

} // namespace smol

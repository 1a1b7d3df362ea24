// Q1_0 with the scales of a row in 8 bits: code c stands for base + c * span / 256, where base is the row's smallest scale
// and span 256/255 of the distance to its largest, both halves. 17 bytes for 128 weights and 4 for a row, where plain
// Q1_0 has 18. The bits, and the kernels, are those of q1_0_lookup.h.
//
// Loses accuracy: a scale is off by at most span / 512, which is below 0.2 % of the distance between the row's smallest
// and largest (Gemma 3 270M as Q1_0: 0.02 % root mean square, 0.08 % for 99 of 100 scales, 1.2 % for the worst of 2
// million). The arithmetic after that is exact.
#include "q1_0_lookup.h"

#include <math.h>

namespace smol {
namespace {

// The smallest half that is not below x; 0 <= x <= 65504.
uint16_t half_above(float x) {
    uint16_t low = 0, high = 0x7bff;
    while (low < high) {
        const uint16_t middle = uint16_t((low + high) / 2);
        if (half_to_float(middle) < x) {
            low = uint16_t(middle + 1);
        } else {
            high = middle;
        }
    }
    return low;
}

// The smallest and the largest scale of a row.
struct Range {
    uint16_t low;
    float    from, to;

    Range(int64_t blocks, const SourceQ1 * source) : low(source[0].d), from(half_to_float(low)), to(from) {
        for (int64_t b = 1; b < blocks; b++) {
            const float d = half_to_float(source[b].d);
            low = d < from ? source[b].d : low;
            from = d < from ? d : from;
            to = d > to ? d : to;
        }
    }
    float span() const { return (to - from) * (256.0f / 255.0f); }
};

struct AffineScales {
    static constexpr int ROW_BYTES = 4, BLOCK_BYTES = 1;
    static constexpr int VECTORS_OF_ROWS = lookups::ROWS_LOOKUP / LANES;

    // At the start of a group: the bases of all rows, then the spans.
    static uint8_t * base(uint8_t * head, int64_t row) { return head + 2 * row; }
    static uint8_t * span(uint8_t * head, int64_t row) { return head + 2 * (lookups::ROWS_LOOKUP + row); }

    static void pack(int64_t blocks, const SourceQ1 * source, uint8_t * head, int64_t row, uint8_t * at,
                     int64_t stride) {
        const Range range(blocks, source);
        const uint16_t half = half_above(range.span());
        memcpy(base(head, row), &range.low, 2);
        memcpy(span(head, row), &half, 2);
        const float step = half_to_float(half) / 256;
        for (int64_t b = 0; b < blocks; b++) {
            const float code = step > 0 ? roundf((half_to_float(source[b].d) - range.from) / step) : 0;
            at[row + b * stride] = uint8_t(code < 255 ? code : 255);
        }
    }
    static float read(const uint8_t * head, const uint8_t * at, int64_t row) {
        const float step = half_to_float(load_half(head + 2 * (lookups::ROWS_LOOKUP + row))) * (1.0f / 256);
        return fused(step, float(at[row]), half_to_float(load_half(head + 2 * row)));
    }

    Floats bases[VECTORS_OF_ROWS], steps[VECTORS_OF_ROWS];

    explicit AffineScales(const uint8_t * head) {
        for (int i = 0; i < VECTORS_OF_ROWS; i++) {
            bases[i] = load_halves(head + 2 * LANES * i);
            steps[i] = multiply(load_halves(head + 2 * (lookups::ROWS_LOOKUP + LANES * i)), set_floats(1.0f / 256));
        }
    }
    Floats load(const uint8_t * at, int i) const { return fused(steps[i], to_floats(load_u8(at + LANES * i)), bases[i]); }
};

bool accepts(int64_t k, const void * rows, size_t stride, int64_t n) {
    for (int64_t row = 0; row < n; row++) {
        const auto * source = source_row<SourceQ1>(rows, stride, row);
        for (int64_t b = 0; b < k / lookups::BLOCK; b++) {
            if ((source[b].d & 0x7c00) == 0x7c00) {
                return false; // infinite, NaN
            }
        }
        if (Range(k / lookups::BLOCK, source).span() > 65504) {
            return false;
        }
    }
    return true;
}

using Affine = lookups::Lookup<AffineScales>;

} // namespace

const smol_layout q1_0_affine = {SMOL_LOOKUP_NAME("q1_0-affine"), 1, GGML_TYPE_Q1_0, lookups::ROWS_LOOKUP, lookups::BLOCK,
                                 false, &tables32, Affine::group_bytes, Affine::pack, Affine::unpack_row, Affine::gemv,
                                 Affine::gemm, Affine::reference, accepts, true};

} // namespace smol

// TQ2_0 (ternary in 2 bits, a scale for 256): fields of 2 bits, 4 of them in a byte, in the order in which the kernel
// meets them. No byte more than plain TQ2_0.
//
// A group has k / 256 blocks, each: ROWS half scales; then for s = 0..16 and each row 4 bytes, where bits 2j..2j+2 of
// byte i are weight 16 s + 4 j + i, plus one.
#include "activations.h"
#include "layouts.h"
#include "simd.h"


namespace smol {
namespace {

constexpr int BLOCK = 256;
constexpr size_t BYTES = ROWS * (2 + BLOCK / 4);

struct Source { // as in a file (ggml-common.h: block_tq2_0)
    uint8_t  qs[64];
    uint16_t d;
};
static_assert(sizeof(Source) == 66, "a block of TQ2_0");

int source_weight(const Source & block, int k) { // 0..2 (ggml-quants.c: dequantize_row_tq2_0)
    return block.qs[k / 128 * 32 + k % 32] >> k % 128 / 32 * 2 & 3;
}

size_t group_bytes(int64_t k) {
    return size_t(k / BLOCK) * BYTES;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    auto * out = static_cast<uint8_t *>(group);
    memset(out, 0, group_bytes(k));
    for (int64_t row = 0; row < n; row++) {
        const auto * source = reinterpret_cast<const Source *>(static_cast<const uint8_t *>(rows) + stride * row);
        for (int64_t b = 0; b < k / BLOCK; b++) {
            uint8_t * block = out + b * BYTES;
            memcpy(block + 2 * row, &source[b].d, 2);
            uint8_t * fields = block + 2 * ROWS;
            for (int i = 0; i < BLOCK; i++) {
                fields[i / 16 * 4 * ROWS + 4 * row + i % 4] |= source_weight(source[b], i) << i % 16 / 4 * 2;
            }
        }
    }
}

int weight(const uint8_t * block, int64_t row, int i) { // -1..1
    return (block[2 * ROWS + i / 16 * 4 * ROWS + 4 * row + i % 4] >> i % 16 / 4 * 2 & 3) - 1;
}

void unpack_row(int64_t k, const void * group, int64_t row, float * out) {
    const auto * block = static_cast<const uint8_t *>(group);
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        const float d = half_to_float(load_half(block + 2 * row));
        for (int i = 0; i < BLOCK; i++) {
            *out++ = float(weight(block, row, i)) * d;
        }
    }
}

void reference(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
    const auto * act = static_cast<const Act256 *>(activation);
    for (int64_t row = 0; row < groups * ROWS; row++) {
        const uint8_t * block = static_cast<const uint8_t *>(group) + row / ROWS * group_bytes(k);
        float sum = 0;
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            int32_t dot = 0;
            for (int i = 0; i < BLOCK; i++) {
                dot += weight(block, row % ROWS, i) * act[b].q[i];
            }
            const float d = half_to_float(load_half(block + 2 * (row % ROWS)));
            sum = fused(d * act[b].d, float(dot), sum);
        }
        out[row] = sum;
    }
}

// One group with N activation rows. 16 weights of LANES rows: 4 products, 4 ands, 3 shifts, a load.
template <int N> void tile(int64_t k, const uint8_t * block, const void * const * activations, float * const * out) {
    // Enough sums at a time that one product does not wait for the one before.
    constexpr int CHAINS = N == 1 ? 4 : 1;
    const Act256 * act[N];
    Floats sum[N][VECTORS];
    for (int n = 0; n < N; n++) {
        act[n] = static_cast<const Act256 *>(activations[n]);
        for (int v = 0; v < VECTORS; v++) {
            sum[n][v] = set_floats(0);
        }
    }
    const Bytes mask = set_bytes(3);
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        for (int v = 0; v < VECTORS; v++) {
            const uint8_t * fields = block + 2 * ROWS + 4 * LANES * v;
            Ints dot[N];
            for (int n = 0; n < N; n++) {
                dot[n] = set_ints(act[n][b].minus_sum);
            }
            // At most 128 weights a Dot.
            for (int s = 0; s < 16;) {
                Dot part[N][CHAINS];
                for (int end = s + 8; s < end; s++) {
                    const Bytes w = load_bytes(fields + 4 * ROWS * s);
                    const Bytes w0 = and_bytes(w, mask), w1 = and_bytes(shift_right<2>(w), mask);
                    const Bytes w2 = and_bytes(shift_right<4>(w), mask), w3 = and_bytes(shift_right<6>(w), mask);
                    for (int n = 0; n < N; n++) {
                        const Acts a = load_acts(act[n][b].q + 16 * s);
                        part[n][0 % CHAINS].template add<0>(w0, a);
                        part[n][1 % CHAINS].template add<1>(w1, a);
                        part[n][2 % CHAINS].template add<2>(w2, a);
                        part[n][3 % CHAINS].template add<3>(w3, a);
                    }
                }
                for (int n = 0; n < N; n++) {
                    for (int c = 0; c < CHAINS; c++) {
                        dot[n] = add_ints(dot[n], part[n][c].sum());
                    }
                }
            }
            const Floats d = load_halves(block + 2 * LANES * v);
            for (int n = 0; n < N; n++) {
                sum[n][v] = fused(multiply(d, set_floats(act[n][b].d)), to_floats(dot[n]), sum[n][v]);
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
    const auto * bytes = static_cast<const uint8_t *>(group);
    for (int64_t g = 0; g < groups; g++, bytes += group_bytes(k), out += ROWS) {
        tile<1>(k, bytes, &activation, &out);
    }
}

void gemm(int64_t k, const void * group, int64_t groups, int64_t n, const void * const * activations, float * const * out) {
    const auto * bytes = static_cast<const uint8_t *>(group);
    tiles<tile<8>, tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
}

} // namespace

const smol_layout tq2_0 = {ROWS == 16 ? "tq2_0-16" : ROWS == 8 ? "tq2_0-8" : "tq2_0-4", 1, GGML_TYPE_TQ2_0, ROWS, BLOCK, true, &act256,
                           group_bytes, pack, unpack_row, gemv, gemm, reference, nullptr, false};

} // namespace smol

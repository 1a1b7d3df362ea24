// TQ1_0 (ternary in base 3, a scale for 256): five weights in a byte as in the file, in the order in which the kernel
// meets them. No byte more than plain TQ1_0: 1.6875 bits a weight.
//
// A group has k / 256 blocks, each: ROWS half scales; then for s = 0..13 and each row 4 bytes (base3.h), where digit j
// of byte i is weight 20 s + 4 j + i; the last byte of a row has four digits.
#include "activations.h"
#include "base3.h"
#include "layouts.h"
#include "simd.h"
#include "sources.h"
#include "two_bit.h"

namespace smol {
namespace {

constexpr int BLOCK = 256;
constexpr int STEPS = 13;
constexpr size_t BYTES = ROWS * (2 + 4 * STEPS);

static_assert(BYTES == ROWS * sizeof(SourceTq1), "no byte more");

size_t group_bytes(int64_t k) {
    return size_t(k / BLOCK) * BYTES;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    const auto put = [](const SourceTq1 & source, int64_t row, uint8_t * block) {
        uint8_t digits[4 * STEPS * base3::DIGITS];
        source.unpack(digits);
        memset(digits + BLOCK, 1, sizeof digits - BLOCK);
        uint32_t words[STEPS];
        for (int s = 0; s < STEPS; s++) {
            words[s] = base3::encode(digits + 20 * s);
        }
        memcpy(block + 2 * row, &source.d, 2);
        store_words(words, row, block + 2 * ROWS);
    };
    pack_blocks<SourceTq1>(k / BLOCK, rows, stride, n, group, BYTES, put);
}

int weight(const uint8_t * block, int64_t row, int i) { // -1..1
    return base3::decode(block[2 * ROWS + i / 20 * 4 * ROWS + 4 * row + i % 4], i % 20 / 4);
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

// One group with N activation rows. 20 weights of LANES rows: 5 digits of one load, each two products and a
// multiplication by 3, or one product for each column, three or four operations for the digit and the multiplication.
template <int N> void tile(int64_t k, const uint8_t * block, const void * const * activations, float * const * out) {
    const Act256 * act[N];
    Floats sum[N][VECTORS];
    for (int n = 0; n < N; n++) {
        act[n] = static_cast<const Act256 *>(activations[n]);
        for (int v = 0; v < VECTORS; v++) {
            sum[n][v] = set_floats(0);
        }
    }
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        const uint8_t * bytes = block + 2 * ROWS;
        // Where there is one vector, sums by turns: one product does not wait for the one before.
        base3::Products<N, N * VECTORS == 1 ? 2 : 1, 1> products;
        const int8_t * q[N];
        for (int n = 0; n < N; n++) {
            q[n] = act[n][b].q;
        }
        const auto load = [&](int n, int quad) { return load_acts(q[n] + 4 * quad); };
        for (int s = 0; s < STEPS - 1; s += 4, bytes += 16 * ROWS) {
            products.template step<0, 5>(bytes, load);
            products.template step<5, 5>(bytes + 4 * ROWS, load);
            products.template step<10, 5>(bytes + 8 * ROWS, load);
            products.template step<15, 5>(bytes + 12 * ROWS, load);
            for (int n = 0; n < N; n++) {
                q[n] += 80;
            }
        }
        products.template step<0, 4>(bytes, load);
        for (int v = 0; v < VECTORS; v++) {
            const Floats d = load_halves(block + 2 * LANES * v);
            for (int n = 0; n < N; n++) {
                Ints dot = products.sum(v, n, 0, act[n][b].minus_sum);
                if constexpr (N * VECTORS == 1) {
                    dot = add_ints(dot, products.sum(v, n, 1, 0));
                }
                sum[n][v] = fused(multiply(d, set_floats(act[n][b].d)), to_floats(dot), sum[n][v]);
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

// A block as that of two_bit.h: what many columns are multiplied with, so that each digit is taken out once.
using Fields256 = TwoBit<BLOCK, Act256>;

void to_fields(const uint8_t * block, uint8_t * out) {
    memcpy(out, block, 2 * ROWS);
    for (int v = 0; v < VECTORS; v++) {
        const uint8_t * bytes = block + 2 * ROWS + 4 * LANES * v;
        uint8_t * to = out + 2 * ROWS + 4 * LANES * v;
        const auto load = [&] {
            const Bytes y = base3::start(load_bytes(bytes));
            bytes += 4 * ROWS;
            return y;
        };
        Bytes fields[5];
        const auto store = [&](int n) {
            for (int i = 0; i < n; i++, to += 4 * ROWS) {
                memcpy(to, &fields[i], sizeof(Bytes));
            }
        };
        for (int s = 0; s < STEPS - 1; s += 4) {
            base3::to_fields<0, 5>(load(), fields);
            base3::to_fields<5, 5>(load(), fields);
            base3::to_fields<10, 5>(load(), fields);
            base3::to_fields<15, 5>(load(), fields);
            store(5);
        }
        base3::to_fields<0, 4>(load(), fields);
        store(1);
    }
}

// Blocks that are taken at a time, so that they stay in the first cache, and the activations of so many columns with
// which they are multiplied in the second.
constexpr int64_t BLOCKS = 8, COLUMNS = 128;

void gemm_in_fields(int64_t k, const uint8_t * group, int64_t groups, int64_t n, const void * const * activations, float * const * out) {
    uint8_t fields[BLOCKS * Fields256::BYTES];
    const void * from[COLUMNS];
    float * to[COLUMNS];
    for (int64_t first = 0; first < n; first += COLUMNS) {
        const int64_t columns = n - first < COLUMNS ? n - first : COLUMNS;
        for (int64_t b = 0; b < k / BLOCK; b += BLOCKS) {
            const int64_t blocks = k / BLOCK - b < BLOCKS ? k / BLOCK - b : BLOCKS;
            for (int64_t i = 0; i < columns; i++) {
                from[i] = static_cast<const Act256 *>(activations[first + i]) + b;
            }
            for (int64_t g = 0; g < groups; g++) {
                const uint8_t * block = group + g * group_bytes(k) + b * BYTES;
                for (int64_t i = 0; i < blocks; i++) {
                    to_fields(block + i * BYTES, fields + i * Fields256::BYTES);
                }
                for (int64_t i = 0; i < columns; i++) {
                    to[i] = out[first + i] + g * ROWS;
                }
                if (b == 0) {
                    Fields256::columns<false>(blocks * BLOCK, fields, 1, columns, from, to);
                } else {
                    Fields256::columns<true>(blocks * BLOCK, fields, 1, columns, from, to);
                }
            }
        }
    }
}

void gemm(int64_t k, const void * group, int64_t groups, int64_t n, const void * const * activations, float * const * out) {
    const auto * bytes = static_cast<const uint8_t *>(group);
    if (n >= (base3::EIGHT_COLUMNS ? 16 : 8)) { // fewer columns do not pay for `to_fields`
        gemm_in_fields(k, bytes, groups, n, activations, out);
    } else if constexpr (base3::EIGHT_COLUMNS) {
        tiles<tile<8>, tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
    } else {
        tiles<tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
    }
}

} // namespace

const smol_layout tq1_0 = {ROWS == 16 ? "tq1_0-16" : ROWS == 8 ? "tq1_0-8" : "tq1_0-4", 1, GGML_TYPE_TQ1_0, ROWS, BLOCK, true, &act256,
                           group_bytes, pack, unpack_row, gemv, gemm, reference, nullptr, false};

} // namespace smol

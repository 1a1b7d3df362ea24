// Q2_0 whose weights are all ternary (no field is 3), without loss in base 3: 1.875 bits a weight instead of 2.25. For
// devices where memory is short; slower than 2-bit fields.
//
// A group has k / 256 parts of 4 blocks, the last one of fewer where k leaves a rest. A part: for each row 4 bytes
// (base3.h), where digit b of byte i is weight 60 + i of block b; then its blocks, each: ROWS half scales; for
// s = 0..3 and each row 4 bytes, where digit j of byte i is weight 20 s + 4 j + i.
#include "activations.h"
#include "base3.h"
#include "layouts.h"
#include "simd.h"
#include "sources.h"

namespace smol {
namespace {

constexpr int BLOCK = 64;
constexpr int BLOCKS = 4; // of a part
constexpr size_t SHARED = 4 * ROWS;
constexpr size_t BYTES = ROWS * (2 + 12); // of a block

size_t group_bytes(int64_t k) {
    const int64_t blocks = k / BLOCK;
    return size_t((blocks + BLOCKS - 1) / BLOCKS) * SHARED + size_t(blocks) * BYTES;
}

bool accepts(int64_t k, const void * rows, size_t stride, int64_t n) {
    for (int64_t row = 0; row < n; row++) {
        const auto * source = source_row<SourceQ2>(rows, stride, row);
        unsigned both = 0; // bit 2j: whether a field is 3
        for (int64_t b = 0; b < k / BLOCK; b++) {
            for (const unsigned byte : source[b].qs) {
                both |= byte & byte >> 1;
            }
        }
        if (both & 0x55) {
            return false;
        }
    }
    return true;
}

// The first byte of part b / 4 and of block b.
size_t part_offset(int64_t b) {
    return size_t(b / BLOCKS) * (SHARED + BLOCKS * BYTES);
}

size_t block_offset(int64_t b) {
    return part_offset(b) + SHARED + size_t(b % BLOCKS) * BYTES;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    auto * out = static_cast<uint8_t *>(group);
    memset(out, 0, group_bytes(k));
    const int64_t blocks = k / BLOCK;
    for (int64_t row = 0; row < n; row++) {
        const auto * source = source_row<SourceQ2>(rows, stride, row);
        uint8_t shared[4 * base3::DIGITS];
        for (int64_t b = 0; b < blocks; b++) {
            uint8_t  digits[BLOCK];
            uint32_t fields[4], words[3];
            to_fields(source[b].qs, fields);
            fields_to_quads(fields, digits);
            for (int s = 0; s < 3; s++) {
                words[s] = base3::encode(digits + 20 * s);
            }
            uint8_t * block = out + block_offset(b);
            memcpy(block + 2 * row, &source[b].d, 2);
            store_words(words, row, block + 2 * ROWS);
            if (b % BLOCKS == 0) {
                memset(shared, 1, sizeof shared);
            }
            memcpy(shared + b % BLOCKS * 4, digits + 60, 4);
            if (b % BLOCKS == BLOCKS - 1 || b == blocks - 1) {
                const uint32_t word[1] = {base3::encode(shared)};
                store_words(word, row, out + part_offset(b));
            }
        }
    }
}

int weight(const uint8_t * group, int64_t row, int64_t b, int i) { // -1..1
    if (i >= 60) {
        return base3::decode(group[part_offset(b) + 4 * row + i % 4], b % BLOCKS);
    }
    return base3::decode(group[block_offset(b) + 2 * ROWS + i / 20 * 4 * ROWS + 4 * row + i % 4], i % 20 / 4);
}

float scale(const uint8_t * group, int64_t row, int64_t b) {
    return half_to_float(load_half(group + block_offset(b) + 2 * row));
}

void unpack_row(int64_t k, const void * group, int64_t row, float * out) {
    const auto * bytes = static_cast<const uint8_t *>(group);
    for (int64_t b = 0; b < k / BLOCK; b++) {
        const float d = scale(bytes, row, b);
        for (int i = 0; i < BLOCK; i++) {
            *out++ = float(weight(bytes, row, b, i)) * d;
        }
    }
}

void reference(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
    const auto * act = static_cast<const Act32 *>(activation);
    for (int64_t row = 0; row < groups * ROWS; row++) {
        const uint8_t * bytes = static_cast<const uint8_t *>(group) + row / ROWS * group_bytes(k);
        float sum = 0;
        for (int64_t b = 0; b < k / BLOCK; b++) {
            int32_t dot[2] = {0, 0};
            for (int i = 0; i < BLOCK; i++) {
                dot[i / 32] += weight(bytes, row % ROWS, b, i) * act[2 * b + i / 32].q[i % 32];
            }
            const float part = fused(act[2 * b + 1].d, float(dot[1]), act[2 * b].d * float(dot[0]));
            sum = fused(scale(bytes, row % ROWS, b), part, sum);
        }
        out[row] = sum;
    }
}

// One group with N activation rows: the digits as in TQ1_0, float operations as in Q2_0.
template <int N> void tile(int64_t k, const uint8_t * bytes, const void * const * activations, float * const * out) {
    using Products = base3::Products<N, 2, 8>;
    const Act32 * act[N];
    Floats sum[N][VECTORS];
    for (int n = 0; n < N; n++) {
        act[n] = static_cast<const Act32 *>(activations[n]);
        for (int v = 0; v < VECTORS; v++) {
            sum[n][v] = set_floats(0);
        }
    }
    Bytes shared[VECTORS];
    for (int64_t b = 0; b < k / BLOCK; b++, bytes += BYTES) {
        if (b % BLOCKS == 0) {
            Products::start_all(shared, bytes);
            bytes += SHARED;
        }
        Products products;
        const auto load = [&](int n, int quad) { return load_acts(act[n][quad / 8].q + 4 * (quad % 8)); };
        const uint8_t * p = bytes + 2 * ROWS;
        products.template step<0, 5>(p, load);
        products.template step<5, 5>(p + 4 * ROWS, load);
        products.template step<10, 5>(p + 8 * ROWS, load);
        products.template digits<15, 1>(shared, load);
        for (int v = 0; v < VECTORS; v++) {
            const Floats d = load_halves(bytes + 2 * LANES * v);
            for (int n = 0; n < N; n++) {
                const Floats first = to_floats(products.sum(v, n, 0, act[n][0].minus_sum));
                const Floats second = to_floats(products.sum(v, n, 1, act[n][1].minus_sum));
                const Floats part = multiply(set_floats(act[n][0].d), first);
                sum[n][v] = fused(d, fused(set_floats(act[n][1].d), second, part), sum[n][v]);
            }
        }
        for (int n = 0; n < N; n++) {
            act[n] += 2;
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

void gemm(int64_t k, const void * group, int64_t groups, int64_t n, const void * const * activations, float * const * out) {
    const auto * bytes = static_cast<const uint8_t *>(group);
    if constexpr (base3::EIGHT_COLUMNS) {
        tiles<tile<8>, tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
    } else {
        tiles<tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
    }
}

} // namespace

const smol_layout q2_0_base3 = {ROWS == 16 ? "q2_0_base3-16" : ROWS == 8 ? "q2_0_base3-8" : "q2_0_base3-4", 1, GGML_TYPE_Q2_0, ROWS,
                                BLOCK, true, &act32, group_bytes, pack, unpack_row, gemv, gemm, reference, accepts, true};

} // namespace smol

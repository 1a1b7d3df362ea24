// Weights -1..2 in fields of 2 bits with one scale for BLOCK of them, and activations whose blocks are as long: packing,
// reference and kernels, for every type that fits these fields.
//
// A group has k / BLOCK blocks, each: ROWS half scales; then for s = 0..BLOCK / 16 and each row 4 bytes, where bits
// 2j..2j+2 of byte i are weight 16 s + 4 j + i, plus one.
#pragma once

#include "layouts.h"
#include "simd.h"
#include "sources.h"

namespace smol {

// Act: float d, int32_t minus_sum, int8_t q[BLOCK].
template <int BLOCK, class Act> struct TwoBit {
    static constexpr size_t BYTES = ROWS * (2 + BLOCK / 4);

#if SMOL_AVX512 || SMOL_DOTPROD
    static constexpr int SUMS = 16, SPAN = BLOCK; // what fits the registers; the weights that a Dot takes at most
#else
    static constexpr int SUMS = 8, SPAN = BLOCK < 128 ? BLOCK : 128;
#endif

    static size_t group_bytes(int64_t k) { return size_t(k / BLOCK) * BYTES; }

    static void pack_block(uint16_t scale, const uint32_t (&fields)[BLOCK / 16], int64_t row, uint8_t * block) {
        memcpy(block + 2 * row, &scale, 2);
        store_words(fields, row, block + 2 * ROWS);
    }

    static int weight(const uint8_t * block, int64_t row, int i) { // -1..2
        return (block[2 * ROWS + i / 16 * 4 * ROWS + 4 * row + i % 4] >> i % 16 / 4 * 2 & 3) - 1;
    }

    static void unpack_row(int64_t k, const void * group, int64_t row, float * out) {
        const auto * block = static_cast<const uint8_t *>(group);
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            const float d = half_to_float(load_half(block + 2 * row));
            for (int i = 0; i < BLOCK; i++) {
                *out++ = float(weight(block, row, i)) * d;
            }
        }
    }

    static void reference(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
        const auto * act = static_cast<const Act *>(activation);
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

    template <int j, int V, int N, int C> static void add(Dot (&part)[V][N][C], const Fields (&w)[V], const Acts (&acts)[N]) {
        for (int v = 0; v < V; v++) {
            for (int n = 0; n < N; n++) {
                part[v][n][j % C].template add<j>(w[v].field[j], acts[n]);
            }
        }
    }

    // One group with N activation rows, or sums that go on from those in `out`. 16 weights of LANES rows: 4 products,
    // 4 ands, 3 shifts, a load.
    template <int N, bool GOES_ON = false>
    static void tile(int64_t k, const uint8_t * block, const void * const * activations, float * const * out) {
        // All vectors of a group at a time where their sums fit the registers.
        constexpr int TOGETHER = N * VECTORS <= SUMS ? VECTORS : 1;
        // Field by field where there are registers for all: a product does not wait for its field, or for the last sum.
#if SMOL_NEON
        constexpr bool BY_FIELD = true;
#else
        constexpr bool BY_FIELD = TOGETHER > 1 || N < 8;
#endif
        // Enough sums that one product does not wait for the one before.
        constexpr int CHAINS = N * TOGETHER == 1 ? 4 : N * TOGETHER == 2 ? 2 : 1;
        const Act * act[N];
        Floats sum[N][VECTORS];
        for (int n = 0; n < N; n++) {
            act[n] = static_cast<const Act *>(activations[n]);
            for (int v = 0; v < VECTORS; v++) {
                sum[n][v] = set_floats(0);
                if constexpr (GOES_ON) {
                    memcpy(&sum[n][v], out[n] + LANES * v, sizeof(Floats));
                }
            }
        }
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            for (int first = 0; first < VECTORS; first += TOGETHER) {
                Ints dot[TOGETHER][N];
                for (int v = 0; v < TOGETHER; v++) {
                    for (int n = 0; n < N; n++) {
                        dot[v][n] = set_ints(act[n][b].minus_sum);
                    }
                }
                const uint8_t * bytes = block + 2 * ROWS + 4 * LANES * first;
                int s = 0;
#if SMOL_DOTPROD
                if constexpr (N == 1) { // 1.2 times as fast on a Cortex-A55
                    TwoBitSums sums[VECTORS] = {TwoBitSums(act[0][b].minus_sum), TwoBitSums(act[0][b].minus_sum)};
                    for (; s < BLOCK / 16; s++, bytes += 4 * ROWS) {
                        add_two_bits(sums, bytes, load_acts(act[0][b].q + 16 * s));
                    }
                    dot[0][0] = sums[0].sum();
                    dot[1][0] = sums[1].sum();
                }
#endif
                while (s < BLOCK / 16) {
                    Dot part[TOGETHER][N][CHAINS];
                    for (int end = s + SPAN / 16; s < end; s++, bytes += 4 * ROWS) {
                        Acts acts[N];
                        for (int n = 0; n < N; n++) {
                            acts[n] = load_acts(act[n][b].q + 16 * s);
                        }
                        Fields w[TOGETHER];
                        for (int v = 0; v < TOGETHER; v++) {
                            w[v] = Fields(load_bytes(bytes + 4 * LANES * v));
                        }
                        if constexpr (BY_FIELD) {
                            add<0>(part, w, acts);
                            add<1>(part, w, acts);
                            add<2>(part, w, acts);
                            add<3>(part, w, acts);
                        } else {
                            for (int n = 0; n < N; n++) {
                                part[0][n][0].template add<0>(w[0].field[0], acts[n]);
                                part[0][n][0].template add<1>(w[0].field[1], acts[n]);
                                part[0][n][0].template add<2>(w[0].field[2], acts[n]);
                                part[0][n][0].template add<3>(w[0].field[3], acts[n]);
                            }
                        }
                    }
                    for (int v = 0; v < TOGETHER; v++) {
                        for (int n = 0; n < N; n++) {
                            for (int c = 0; c < CHAINS; c++) {
                                dot[v][n] = add_ints(dot[v][n], part[v][n][c].sum());
                            }
                        }
                    }
                }
                for (int v = 0; v < TOGETHER; v++) {
                    const Floats d = load_halves(block + 2 * LANES * (first + v));
                    for (int n = 0; n < N; n++) {
                        Floats & total = sum[n][first + v];
                        total = fused(multiply(d, set_floats(act[n][b].d)), to_floats(dot[v][n]), total);
                    }
                }
            }
        }
        for (int n = 0; n < N; n++) {
            for (int v = 0; v < VECTORS; v++) {
                store(out[n] + LANES * v, sum[n][v]);
            }
        }
    }

    static void gemv(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
        tiles<tile<1>>(k, static_cast<const uint8_t *>(group), group_bytes(k), groups, ROWS, 1, &activation, &out);
    }

    template <bool GOES_ON>
    static void columns(int64_t k, const uint8_t * group, int64_t groups, int64_t n, const void * const * activations, float * const * out) {
        tiles<tile<8, GOES_ON>, tile<4, GOES_ON>, tile<2, GOES_ON>, tile<1, GOES_ON>>(k, group, group_bytes(k), groups, ROWS,
                                                                                      n, activations, out);
    }

    static void gemm(int64_t k, const void * group, int64_t groups, int64_t n, const void * const * activations, float * const * out) {
        columns<false>(k, static_cast<const uint8_t *>(group), groups, n, activations, out);
    }
};

} // namespace smol

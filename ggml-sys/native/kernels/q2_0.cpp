// Q2_0 (2 bits, a scale for 64; weights -1..2 times the scale): fields of 2 bits, 4 of them in a byte, in the order in
// which the kernel meets them. No byte more than plain Q2_0.
//
// A group has k / 64 blocks, each: ROWS half scales; then for s = 0..4 and each row 4 bytes, where bits 2j..2j+2 of
// byte i are weight 16 s + 4 j + i, plus one.
#include "activations.h"
#include "layouts.h"
#include "simd.h"
#include "sources.h"

namespace smol {
namespace {

constexpr int BLOCK = 64;
constexpr size_t BYTES = ROWS * (2 + BLOCK / 4);

static_assert(BYTES == ROWS * sizeof(SourceQ2), "no byte more");

size_t group_bytes(int64_t k) {
    return size_t(k / BLOCK) * BYTES;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    const auto put = [](const SourceQ2 & source, int64_t row, uint8_t * block) {
        uint32_t fields[4];
        to_fields(source.qs, fields);
        memcpy(block + 2 * row, &source.d, 2);
        store_words(fields, row, block + 2 * ROWS);
    };
    pack_blocks<SourceQ2>(k / BLOCK, rows, stride, n, group, BYTES, put);
}

int weight(const uint8_t * block, int64_t row, int i) { // -1..2
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
    const auto * act = static_cast<const Act32 *>(activation);
    for (int64_t row = 0; row < groups * ROWS; row++) {
        const uint8_t * block = static_cast<const uint8_t *>(group) + row / ROWS * group_bytes(k);
        float sum = 0;
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            int32_t dot[2] = {0, 0};
            for (int i = 0; i < BLOCK; i++) {
                dot[i / 32] += weight(block, row % ROWS, i) * act[2 * b + i / 32].q[i % 32];
            }
            const float part = fused(act[2 * b + 1].d, float(dot[1]), act[2 * b].d * float(dot[0]));
            sum = fused(half_to_float(load_half(block + 2 * (row % ROWS))), part, sum);
        }
        out[row] = sum;
    }
}

// Activation rows with which all vectors of a group are worked on at once: as registers allow.
#if SMOL_DOTPROD
constexpr int FEW = 4;
#elif SMOL_NEON
constexpr int FEW = 1;
#else
constexpr int FEW = 0;
#endif

// One group with N activation rows. 16 weights of LANES rows: 4 products, 4 ands, 3 shifts, a load; for 32 of them a
// conversion and 1.5 float operations.
template <int N> void tile(int64_t k, const uint8_t * block, const void * const * activations, float * const * out) {
    constexpr int TOGETHER = N <= FEW ? VECTORS : 1;
    const Act32 * act[N];
    Floats sum[N][VECTORS];
    for (int n = 0; n < N; n++) {
        act[n] = static_cast<const Act32 *>(activations[n]);
        for (int v = 0; v < VECTORS; v++) {
            sum[n][v] = set_floats(0);
        }
    }
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        for (int v = 0; v < VECTORS; v += TOGETHER) {
            const uint8_t * fields = block + 2 * ROWS + 4 * LANES * v;
            Floats part[N][TOGETHER];
            const auto half = [&](int h) {
                const auto scale = [&](int n, int t, Ints value) {
                    const Floats d = set_floats(act[n][h].d), product = to_floats(value);
                    part[n][t] = h ? fused(d, product, part[n][t]) : multiply(d, product);
                };
#if SMOL_DOTPROD
                if constexpr (N == 1) {
                    TwoBitSums sums[VECTORS] = {TwoBitSums(act[0][h].minus_sum), TwoBitSums(act[0][h].minus_sum)};
                    add_two_bits(sums, fields + 8 * ROWS * h, load_acts(act[0][h].q));
                    add_two_bits(sums, fields + 8 * ROWS * h + 4 * ROWS, load_acts(act[0][h].q + 16));
                    for (int t = 0; t < TOGETHER; t++) {
                        scale(0, t, sums[t].sum());
                    }
                    return;
                }
#endif
#if SMOL_NEON
                Dot dot[N][TOGETHER];
                for (int n = 0; n < N; n++) {
                    for (int t = 0; t < TOGETHER; t++) {
                        dot[n][t] = Dot(&act[n][h].minus_sum);
                    }
                }
                for (int s = 0; s < 2; s++) {
                    Fields w[TOGETHER];
                    for (int t = 0; t < TOGETHER; t++) {
                        w[t] = Fields(load_bytes(fields + 4 * ROWS * (2 * h + s) + 4 * LANES * t));
                    }
                    Acts a[N];
                    for (int n = 0; n < N; n++) {
                        a[n] = load_acts(act[n][h].q + 16 * s);
                    }
                    each_of_four([&](auto field) {
                        constexpr int f = decltype(field)::value;
                        for (int n = 0; n < N; n++) {
                            for (int t = 0; t < TOGETHER; t++) {
                                dot[n][t].template add<f>(w[t].field[f], a[n]);
                            }
                        }
                    });
                }
                for (int n = 0; n < N; n++) {
                    for (int t = 0; t < TOGETHER; t++) {
                        scale(n, t, dot[n][t].sum());
                    }
                }
#else
                const Fields w0(load_bytes(fields + 8 * ROWS * h)), w1(load_bytes(fields + 8 * ROWS * h + 4 * ROWS));
                for (int n = 0; n < N; n++) {
                    Dot dot(&act[n][h].minus_sum);
                    add_fields(dot, w0, load_acts(act[n][h].q));
                    add_fields(dot, w1, load_acts(act[n][h].q + 16));
                    scale(n, 0, dot.sum());
                }
#endif
            };
            half(0);
            half(1);
            for (int t = 0; t < TOGETHER; t++) {
                const Floats d = load_halves(block + 2 * LANES * (v + t));
                for (int n = 0; n < N; n++) {
                    sum[n][v + t] = fused(d, part[n][t], sum[n][v + t]);
                }
            }
#if SMOL_AVX2 || SMOL_SSE
            // Else GCC keeps all activations, broadcast, on the stack for the next vector: 1.3 times as slow.
            asm volatile("" ::: "memory");
#endif
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
#if SMOL_NEON
    tiles<tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
#else
    tiles<tile<8>, tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
#endif
}

} // namespace

const smol_layout q2_0 = {ROWS == 16 ? "q2_0-16" : ROWS == 8 ? "q2_0-8" : "q2_0-4", 1, GGML_TYPE_Q2_0, ROWS, BLOCK, true,
                          &act32, group_bytes, pack, unpack_row, gemv, gemm, reference, nullptr, false};

} // namespace smol

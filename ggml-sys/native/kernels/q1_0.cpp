// Q1_0 (a bit for +d or -d, a scale for 128): bit planes, 8 of them in a byte, in the order in which the kernel meets
// them. No byte more than plain Q1_0. Exact.
//
// A group has k / 128 blocks, each: ROWS half scales; then for s = 0..4 and each row 4 bytes, where bit b of byte i is
// weight 32 (b % 4) + 16 (b / 4) + 4 s + i: the low and the high half of the byte have each a bit for every 32
// activations that share a scale.
//
// 32 activations a against bits b give 2 * sum(b a) - sum(a). Operations per 16 weights: an and (AVX-512: of 64
// weights), or a test, and a dot product; without dotprod a test, an and, a pairwise addition; AVX2 and SSE4.1: and,
// shift, multiply-add, add.
#include "activations.h"
#include "layouts.h"
#include "simd.h"
#include "sources.h"

#include <utility>

namespace smol {
namespace {

constexpr int BLOCK = 128;
constexpr size_t BYTES = ROWS * (2 + BLOCK / 8);

static_assert(BYTES == ROWS * sizeof(SourceQ1), "no byte more");

size_t group_bytes(int64_t k) {
    return size_t(k / BLOCK) * BYTES;
}

// Where weight i of a row lies.
size_t byte_of(int64_t row, int i) {
    return 2 * ROWS + i % 16 / 4 * 4 * ROWS + 4 * row + i % 4;
}
int bit_of(int i) {
    return i / 32 + i % 32 / 16 * 4;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    const auto put = [](const SourceQ1 & source, int64_t row, uint8_t * block) {
        uint32_t planes[4];
        for (int i = 0; i < 2; i++) {
            uint64_t bytes = 0;
            for (int b = 0; b < 8; b++) { // the bytes whose bits become bits b: weights 32 (b % 4) + 16 (b / 4) + 8 i and up
                bytes |= uint64_t(source.qs[4 * (b % 4) + 2 * (b / 4) + i]) << 8 * b;
            }
            bytes = transpose_bits(bytes);
            planes[2 * i] = uint32_t(bytes);
            planes[2 * i + 1] = uint32_t(bytes >> 32);
        }
        memcpy(block + 2 * row, &source.d, 2);
        store_words(planes, row, block + 2 * ROWS);
    };
    pack_blocks<SourceQ1>(k / BLOCK, rows, stride, n, group, BYTES, put);
}

int bit(const uint8_t * block, int64_t row, int i) {
    return block[byte_of(row, i)] >> bit_of(i) & 1;
}

void unpack_row(int64_t k, const void * group, int64_t row, float * out) {
    const auto * block = static_cast<const uint8_t *>(group);
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        const float d = half_to_float(load_half(block + 2 * row));
        for (int i = 0; i < BLOCK; i++) {
            *out++ = bit(block, row, i) ? d : -d;
        }
    }
}

void reference(int64_t k, const void * group, int64_t groups, const void * activation, float * out) {
    for (int64_t row = 0; row < groups * ROWS; row++) {
        const uint8_t * block = static_cast<const uint8_t *>(group) + row / ROWS * group_bytes(k);
        const auto * act = static_cast<const Act32 *>(activation);
        float sum = 0;
        for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
            float t = 0;
            for (int part = 0; part < 4; part++, act++) {
                int32_t dot = 0;
                for (int i = 0; i < 32; i++) {
                    dot += bit(block, row % ROWS, 32 * part + i) ? act->q[i] : -act->q[i];
                }
                t = part == 0 ? act->d * float(dot) : fused(act->d, float(dot), t);
            }
            sum = fused(half_to_float(load_half(block + 2 * (row % ROWS))), t, sum);
        }
        out[row] = sum;
    }
}

#if SMOL_NEON
// Ones where a bit of the mask is set. Of the intrinsic clang makes two or three instructions where what follows is
// bitwise.
inline Bytes test(Bytes a, Bytes mask) {
    Bytes out;
    __asm__("cmtst %0.16b, %1.16b, %2.16b" : "=w"(out) : "w"(a), "w"(mask));
    return out;
}
#endif

// The 128 weights of LANES rows: 4 vectors of 4 * ROWS bytes, one after the other.
struct Planes {
    Bytes w[4];
    explicit Planes(const uint8_t * p) {
        for (int s = 0; s < 4; s++) {
            w[s] = load_bytes(p + 4 * ROWS * s);
        }
    }

    // The products of 32 weights with N activations: ints[n] = 2 * sum(bit a) - sum(a).
    template <int part, int N> void products(const Act32 * const * act, Ints * ints) const {
        products<part, N>(act, ints, std::make_integer_sequence<int, 4>());
    }

#if SMOL_AVX512
    // Bits stay where they are: as bytes they count 2^part and 2^(part + 4) times, which is taken back from the sums.
    template <int part, int N, int... s>
    void products(const Act32 * const * act, Ints * ints, std::integer_sequence<int, s...>) const {
        const Bytes low_mask = set_bytes(1 << part), high_mask = set_bytes(16 << part);
        Ints low[N], high[N];
        for (int n = 0; n < N; n++) {
            low[n] = set_ints(0);
            high[n] = set_ints(int32_t(uint32_t(act[n]->minus_sum) << (part + 3)));
        }
        const auto four = [](const int8_t * q) {
            int32_t out;
            memcpy(&out, q, 4);
            return set_ints(out);
        };
        const auto add = [&](Bytes both, int at) {
            const Bytes w0 = and_bytes(both, low_mask), w1 = and_bytes(both, high_mask);
            for (int n = 0; n < N; n++) {
                low[n] = _mm512_dpbusd_epi32(low[n], w0, four(act[n]->q + 4 * at));
                high[n] = _mm512_dpbusd_epi32(high[n], w1, four(act[n]->q + 4 * at + 16));
            }
        };
        (add(w[s], s), ...);
        for (int n = 0; n < N; n++) {
            ints[n] = _mm512_srai_epi32(add_ints(_mm512_slli_epi32(low[n], 4), high[n]), part + 3);
        }
    }
#elif SMOL_NEON
    // A bit that is set becomes a byte of ones, which is -1, or lets its activation through.
    template <int part, int N, int... s>
    void products(const Act32 * const * act, Ints * ints, std::integer_sequence<int, s...>) const {
        const Bytes low_mask = set_bytes(1 << part), high_mask = set_bytes(16 << part);
        int8x16_t a0[N], a1[N];
        for (int n = 0; n < N; n++) {
            a0[n] = load_acts(act[n]->q);
            a1[n] = load_acts(act[n]->q + 16);
        }
#    if SMOL_DOTPROD
        // One row of activations: bits count -1 or 0. Several share the weights, and it is cheaper to make these 1, -1.
        Ints sum[N];
        for (int n = 0; n < N; n++) {
            sum[n] = set_ints(0);
        }
        const auto weights = [](Bytes both, Bytes mask) {
            return vreinterpretq_s8_u8(N == 1 ? vtstq_u8(both, mask) : vornq_u8(set_bytes(1), test(both, mask)));
        };
        const auto add = [&](auto quad, Bytes both) {
            const int8x16_t w0 = weights(both, low_mask), w1 = weights(both, high_mask);
            for (int n = 0; n < N; n++) {
                sum[n] = vdotq_laneq_s32(sum[n], w0, a0[n], quad.value);
                sum[n] = vdotq_laneq_s32(sum[n], w1, a1[n], quad.value);
            }
        };
        (add(std::integral_constant<int, s>(), w[s]), ...);
        for (int n = 0; n < N; n++) {
            ints[n] = N > 1 ? sum[n] : vsubq_s32(vdupq_n_s32(act[n]->minus_sum), vaddq_s32(sum[n], sum[n]));
        }
#    else
        int16x8_t sum[N];
        for (int n = 0; n < N; n++) {
            sum[n] = vdupq_n_s16(0);
        }
        const auto add = [&](auto quad, Bytes both) {
            const int8x16_t w0 = vreinterpretq_s8_u8(test(both, low_mask));
            const int8x16_t w1 = vreinterpretq_s8_u8(test(both, high_mask));
            for (int n = 0; n < N; n++) {
                const int8x16_t q0 = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(a0[n]), quad.value));
                const int8x16_t q1 = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(a1[n]), quad.value));
                sum[n] = vpadalq_s8(sum[n], vandq_s8(w0, q0));
                sum[n] = vpadalq_s8(sum[n], vandq_s8(w1, q1));
            }
        };
        (add(std::integral_constant<int, s>(), w[s]), ...);
        for (int n = 0; n < N; n++) {
            const Ints half = vpaddlq_s16(sum[n]);
            ints[n] = vaddq_s32(vdupq_n_s32(act[n]->minus_sum), vaddq_s32(half, half));
        }
#    endif
    }
#else
    template <int part, int N, int... s>
    void products(const Act32 * const * act, Ints * ints, std::integer_sequence<int, s...>) const {
        const Bytes one = set_bytes(1);
        Dot dot[N];
        const auto add = [&](auto quad, Bytes both) {
            const Bytes w0 = and_bytes(shift_right<part>(both), one), w1 = and_bytes(shift_right<part + 4>(both), one);
            for (int n = 0; n < N; n++) {
                dot[n].template add<quad.value>(w0, load_acts(act[n]->q));
                dot[n].template add<quad.value>(w1, load_acts(act[n]->q + 16));
            }
        };
        (add(std::integral_constant<int, s>(), w[s]), ...);
        for (int n = 0; n < N; n++) {
            const Ints half = dot[n].sum();
            ints[n] = add_ints(set_ints(act[n]->minus_sum), add_ints(half, half));
        }
    }
#endif
};

template <int part, int N> void add_part(const Planes & planes, const Act32 * const * act, Floats * t) {
    const Act32 * here[N];
    for (int n = 0; n < N; n++) {
        here[n] = act[n] + part;
    }
    Ints dot[N];
    planes.products<part, N>(here, dot);
    for (int n = 0; n < N; n++) {
        const Floats d = set_floats(here[n]->d);
        t[n] = part == 0 ? multiply(d, to_floats(dot[n])) : fused(d, to_floats(dot[n]), t[n]);
    }
}

template <int N> void tile(int64_t k, const uint8_t * block, const void * const * activations, float * const * out) {
    const Act32 * act[N];
    Floats sum[N][VECTORS];
    for (int n = 0; n < N; n++) {
        act[n] = static_cast<const Act32 *>(activations[n]);
        for (int v = 0; v < VECTORS; v++) {
            sum[n][v] = set_floats(0);
        }
    }
    for (int64_t b = 0; b < k / BLOCK; b++, block += BYTES) {
        for (int v = 0; v < VECTORS; v++) {
            const Planes planes(block + 2 * ROWS + 4 * LANES * v);
            Floats t[N];
            add_part<0, N>(planes, act, t);
            add_part<1, N>(planes, act, t);
            add_part<2, N>(planes, act, t);
            add_part<3, N>(planes, act, t);
            const Floats d = load_halves(block + 2 * LANES * v);
            for (int n = 0; n < N; n++) {
                sum[n][v] = fused(d, t[n], sum[n][v]);
            }
        }
        for (int n = 0; n < N; n++) {
            act[n] += 4;
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
    tiles<tile<4>, tile<2>, tile<1>>(k, bytes, group_bytes(k), groups, ROWS, n, activations, out);
}

} // namespace

const smol_layout q1_0 = {ROWS == 16 ? "q1_0-16" : ROWS == 8 ? "q1_0-8" : "q1_0-4", 1, GGML_TYPE_Q1_0, ROWS, BLOCK,
                          true, &act32, group_bytes, pack, unpack_row, gemv, gemm, reference, nullptr, false};

} // namespace smol

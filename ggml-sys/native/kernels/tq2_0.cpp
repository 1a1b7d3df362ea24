// TQ2_0 (ternary in 2 bits, a scale for 256): the fields of two_bit.h. No byte more than plain TQ2_0.
#include "activations.h"
#include "two_bit.h"

namespace smol {
namespace {

constexpr int BLOCK = 256;
using Fields256 = TwoBit<BLOCK, Act256>;

struct Source { // as in a file (ggml-common.h: block_tq2_0)
    uint8_t  qs[64];
    uint16_t d;
};
static_assert(sizeof(Source) == 66, "a block of TQ2_0");
static_assert(Fields256::BYTES == ROWS * sizeof(Source), "no byte more");

int source_weight(const Source & block, int k) { // -1..1 (ggml-quants.c: dequantize_row_tq2_0)
    return (block.qs[k / 128 * 32 + k % 32] >> k % 128 / 32 * 2 & 3) - 1;
}

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    memset(group, 0, Fields256::group_bytes(k));
    for (int64_t row = 0; row < n; row++) {
        const auto * source = reinterpret_cast<const Source *>(static_cast<const uint8_t *>(rows) + stride * row);
        for (int64_t b = 0; b < k / BLOCK; b++) {
            Fields256::pack_block(Fields256::block(b, group), row, source[b].d,
                                  [&](int i) { return source_weight(source[b], i); });
        }
    }
}

} // namespace

const smol_layout tq2_0 = {ROWS == 16 ? "tq2_0-16" : ROWS == 8 ? "tq2_0-8" : "tq2_0-4", 1, GGML_TYPE_TQ2_0, ROWS, BLOCK, true, &act256,
                           Fields256::group_bytes, pack, Fields256::unpack_row, Fields256::gemv, Fields256::gemm,
                           Fields256::reference, nullptr, false};

} // namespace smol

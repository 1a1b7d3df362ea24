// TQ2_0 (ternary in 2 bits, a scale for 256): the fields of two_bit.h. No byte more than plain TQ2_0.
#include "activations.h"
#include "sources.h"
#include "two_bit.h"

namespace smol {
namespace {

constexpr int BLOCK = 256;
using Fields256 = TwoBit<BLOCK, Act256>;

static_assert(Fields256::BYTES == ROWS * sizeof(SourceTq2), "no byte more");

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    const auto put = [](const SourceTq2 & source, int64_t row, uint8_t * block) {
        uint32_t fields[16];
        to_fields(source.qs, fields);
        Fields256::pack_block(source.d, fields, row, block);
    };
    pack_blocks<SourceTq2>(k / BLOCK, rows, stride, n, group, Fields256::BYTES, put);
}

} // namespace

const smol_layout tq2_0 = {ROWS == 16 ? "tq2_0-16" : ROWS == 8 ? "tq2_0-8" : "tq2_0-4", 1, GGML_TYPE_TQ2_0, ROWS, BLOCK, true, &act256,
                           Fields256::group_bytes, pack, Fields256::unpack_row, Fields256::gemv, Fields256::gemm,
                           Fields256::reference, nullptr, false};

} // namespace smol

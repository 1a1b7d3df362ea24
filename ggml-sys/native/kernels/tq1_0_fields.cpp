// TQ1_0 in the fields of two_bit.h: 2.0625 bits a weight instead of 1.6875, for devices with memory to spare. The same
// sums as tq1_0.cpp, and generation is 1.6 times (AVX-512) to 2.3 times (AVX2) as fast while memory keeps up.
#include "activations.h"
#include "sources.h"
#include "two_bit.h"

namespace smol {
namespace {

constexpr int BLOCK = 256;
using Fields256 = TwoBit<BLOCK, Act256>;

void pack(int64_t k, const void * rows, size_t stride, int64_t n, void * group) {
    const auto put = [](const SourceTq1 & source, int64_t row, uint8_t * block) {
        uint8_t  quads[BLOCK];
        uint32_t fields[16];
        source.unpack(quads);
        quads_to_fields(quads, fields);
        Fields256::pack_block(source.d, fields, row, block);
    };
    pack_blocks<SourceTq1>(k / BLOCK, rows, stride, n, group, Fields256::BYTES, put);
}

} // namespace

const smol_layout tq1_0_fields = {ROWS == 16 ? "tq1_0_fields-16" : ROWS == 8 ? "tq1_0_fields-8" : "tq1_0_fields-4", 1, GGML_TYPE_TQ1_0,
                                  ROWS, BLOCK, true, &act256, Fields256::group_bytes, pack, Fields256::unpack_row,
                                  Fields256::gemv, Fields256::gemm, Fields256::reference, nullptr, true};

} // namespace smol

// Compilers have miscompiled kernels of this kind for others, and CPUs report features that their emulators get wrong: a
// few rows are computed both ways before a layout is used.
#include "smol.h"

#include "ggml.h"

#include <cstring>
#include <random>
#include <vector>

const char * smol_self_test(const smol_layout * layout) {
    const ggml_type_traits * traits = ggml_get_type_traits(layout->type);
    // Two blocks; a full group and a part of one.
    const int64_t k = 2 * layout->columns, rows = layout->rows + (layout->rows + 1) / 2, columns = 5;
    std::minstd_rand random(k);
    std::uniform_real_distribution<float> value(-1, 1);
    std::vector<float> weights(rows * k), inputs(columns * k);
    for (float & w : weights) {
        // Three values, so that layouts for ternary weights take them.
        w = float(int(random() / 7 % 3) - 1);
    }
    for (float & x : inputs) {
        x = value(random);
    }
    const size_t stride = ggml_row_size(layout->type, k);
    std::vector<uint8_t> plain(rows * stride);
    ggml_quantize_chunk(layout->type, weights.data(), plain.data(), 0, rows, k, nullptr);
    if (layout->accepts && !layout->accepts(k, plain.data(), stride, rows)) {
        return "it does not take the test's weights";
    }

    const size_t group_bytes = layout->group_bytes(k);
    std::vector<uint8_t> packed(2 * group_bytes);
    for (int64_t group = 0; group < 2; group++) {
        const int64_t first = group * layout->rows;
        layout->pack(k, plain.data() + first * stride, stride, group ? rows - first : layout->rows, &packed[group * group_bytes]);
    }
    std::vector<float> expected(k), got(k);
    for (int64_t row = 0; row < rows; row++) {
        traits->to_float(plain.data() + row * stride, expected.data(), k);
        layout->unpack_row(k, &packed[row / layout->rows * group_bytes], row % layout->rows, got.data());
        if (layout->exact && memcmp(expected.data(), got.data(), k * sizeof(float)) != 0) {
            return "packed rows are not the plain ones";
        }
    }

    const size_t bytes = (layout->activation->bytes(k) + 63) / 64 * 64;
    std::vector<uint8_t> prepared(columns * bytes + 64);
    auto * base = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(prepared.data()) + 63) / 64 * 64);
    const int64_t padded = 2 * layout->rows;
    std::vector<float> reference(columns * padded), one(padded), all(columns * padded);
    std::vector<const void *> activations(columns);
    std::vector<float *> out(columns);
    for (int64_t c = 0; c < columns; c++) {
        layout->activation->prepare(k, &inputs[c * k], base + c * bytes);
        activations[c] = base + c * bytes;
        out[c] = &all[c * padded];
        layout->reference(k, packed.data(), 2, activations[c], &reference[c * padded]);
        layout->gemv(k, packed.data(), 2, activations[c], one.data());
        if (memcmp(one.data(), &reference[c * padded], padded * sizeof(float)) != 0) {
            return "the product with one row is wrong";
        }
    }
    layout->gemm(k, packed.data(), 2, columns, activations.data(), out.data());
    return memcmp(all.data(), reference.data(), all.size() * sizeof(float)) != 0 ? "the product with several rows is wrong" : nullptr;
}

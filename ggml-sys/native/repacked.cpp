// Upstream packs weights when it writes them into a buffer of a type of its own (repack.cpp), and computes with that form
// by code that looks at nothing but the bytes. Here they are packed, and computed with, anywhere.
#include "repacked.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"
#include "repack.h"
#include "traits.h"

#include <algorithm>

namespace {

// An empty buffer of upstream's type, for the functions that buffers of it have.
ggml_backend_buffer_t buffer;

// A matrix of `rows` rows, without an address.
ggml_tensor matrix(ggml_type type, int64_t columns, int64_t rows) {
    ggml_tensor tensor = {};
    tensor.type = type;
    const int64_t ne[GGML_MAX_DIMS] = {columns, rows, 1, 1};
    std::copy_n(ne, GGML_MAX_DIMS, tensor.ne);
    tensor.nb[0] = ggml_type_size(type);
    tensor.nb[1] = ggml_row_size(type, columns);
    tensor.nb[2] = tensor.nb[3] = tensor.nb[1] * size_t(rows);
    return tensor;
}

} // namespace

void smol_repacked_init(void) {
    ggml_backend_buffer_type_t type = ggml_backend_cpu_repack_buffer_type();
    buffer = buffer ? buffer : type->iface.alloc_buffer(type, 0);
}

ggml::cpu::tensor_traits * smol_repacked_traits(const ggml_tensor * weight) {
    if (!buffer || ggml_n_dims(weight) != 2 || weight->ne[0] % ggml_blck_size(weight->type) != 0) {
        return nullptr;
    }
    ggml_tensor tensor = *weight;
    // Which of its forms upstream takes follows from type and shape (repack.cpp:5149).
    return buffer->iface.init_tensor(buffer, &tensor) == GGML_STATUS_SUCCESS
               ? static_cast<ggml::cpu::tensor_traits *>(tensor.extra)
               : nullptr;
}

int64_t smol_repacked_rows(ggml_type type, int64_t columns, int64_t rows) {
    const ggml_tensor whole = matrix(type, columns, rows);
    const ggml::cpu::tensor_traits * traits = smol_repacked_traits(&whole);
    // Groups of rows are packed one after the other (repack.cpp:3541 and the others), and upstream takes every number of
    // rows that consists of whole groups: the least one that is packed in the same way is a group.
    for (int64_t n = 2; traits && n < rows; n++) {
        const ggml_tensor part = matrix(type, columns, n);
        if (rows % n == 0 && smol_repacked_traits(&part) == traits) {
            return n;
        }
    }
    return traits ? rows : 0;
}

void smol_repack(ggml_type type, int64_t columns, int64_t rows, const void * plain, int64_t n, void * packed) {
    const ggml_tensor whole = matrix(type, columns, rows);
    ggml_tensor part = matrix(type, columns, n);
    part.extra = smol_repacked_traits(&whole);
    part.data = packed;
    GGML_ASSERT(part.extra);
    buffer->iface.set_tensor(buffer, &part, plain, 0, ggml_nbytes(&part));
}

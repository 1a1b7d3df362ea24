// One matrix and one graph node with it, computed by the CPU backend as in a model's graph: the kernels with all that
// is around them (preparing activations, sharing rows among threads), and upstream's own way with the same weights.
#include "guard.h"
#include "packed.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

struct smol_matrix {
    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * tensor;
};

struct smol_product {
    ggml_backend_ptr backend;
    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor * activations; // NULL: the op has none
    ggml_tensor * ids;         // NULL: the op has none
    int64_t ids_end;           // one more than the largest id
    bool ids_may_miss;         // -1 is an id
    ggml_tensor * node;
    ggml_cgraph * graph;
};

namespace {

// Largest number of elements of anything here: more is a mistake, and its size may not fit.
constexpr int64_t MAX_ELEMENTS = int64_t(1) << 40;

ggml_backend_dev_t cpu_device() {
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!dev) {
        throw std::runtime_error("llama.cpp has no CPU backend");
    }
    return dev;
}

// A type of the CPU backend's extra ones, or its plain one; NULL: not in this build.
ggml_backend_buffer_type_t find_buffer_type(ggml_backend_dev_t dev, const char * name) {
    if (!strcmp(name, ggml_backend_buft_name(ggml_backend_cpu_buffer_type()))) {
        return ggml_backend_cpu_buffer_type();
    }
    auto * get = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t * bufts = get ? get(dev) : nullptr;
    for (; bufts && *bufts; bufts++) {
        if (!strcmp(name, ggml_backend_buft_name(*bufts))) {
            return *bufts;
        }
    }
    return nullptr;
}

ggml_context_ptr new_context(size_t tensors, size_t more = 0) {
    ggml_init_params params = {tensors * ggml_tensor_overhead() + more, nullptr, /*no_alloc =*/true};
    ggml_context_ptr context(ggml_init(params));
    if (!context) {
        throw std::bad_alloc();
    }
    return context;
}

ggml_backend_buffer_ptr allocate(ggml_context * context, ggml_backend_buffer_type_t buft) {
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, buft));
    if (!buffer) {
        throw std::bad_alloc();
    }
    return buffer;
}

ggml_tensor * new_node(ggml_context * context, ggml_op op, ggml_tensor * weights, ggml_tensor * activations,
                       ggml_tensor * ids) {
    switch (op) {
        case GGML_OP_MUL_MAT: return ggml_mul_mat(context, weights, activations);
        case GGML_OP_MUL_MAT_ID: return ggml_mul_mat_id(context, weights, activations, ids);
        default: return ggml_get_rows(context, weights, ids);
    }
}

// Whether the buffer type takes the weights for products, asked as the loader does.
bool takes(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft, ggml_tensor * weights, bool experts) {
    ggml_context_ptr context = new_context(3);
    ggml_tensor * activations = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, weights->ne[0], 1, 1);
    ggml_tensor * ids = ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 1, 1);
    ggml_tensor * node =
        new_node(context.get(), experts ? GGML_OP_MUL_MAT_ID : GGML_OP_MUL_MAT, weights, activations, ids);
    ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(buft, 0));
    weights->buffer = empty.get();
    const bool taken = empty && ggml_backend_dev_supports_op(dev, node);
    weights->buffer = nullptr;
    return taken;
}

smol_status refuse(const char * reason) {
    smol_set_error(reason);
    return SMOL_ERR_MISSING;
}

bool in_range(int64_t n) {
    return n > 0 && n <= MAX_ELEMENTS;
}

bool in_range(std::initializer_list<int64_t> sizes) {
    int64_t product = 1;
    for (const int64_t n : sizes) {
        if (!in_range(n) || n > MAX_ELEMENTS / product) {
            return false;
        }
        product *= n;
    }
    return true;
}

} // namespace

smol_status smol_matrix_new(const smol_matrix_params * params, const void * data, smol_matrix ** out) {
    *out = nullptr;
    return smol_guard([&] {
        const int64_t k = params->columns, matrices = std::max<int64_t>(params->matrices, 1);
        if (params->type < 0 || params->type >= GGML_TYPE_COUNT || ggml_blck_size(params->type) <= 0 ||
            !in_range({k, params->rows, matrices}) || params->matrices < 0 || k % ggml_blck_size(params->type)) {
            throw std::runtime_error("there is no such matrix");
        }
        const smol_layout * layout = params->layout;
        if (layout && (layout->type != params->type || k % layout->columns)) {
            return refuse("the layout does not take rows of this length");
        }
        if (layout && layout->accepts &&
            !layout->accepts(k, data, ggml_row_size(params->type, k), params->rows * matrices)) {
            return refuse("the layout does not take these weights");
        }
        ggml_backend_dev_t dev = cpu_device();
        ggml_backend_buffer_type_t buft = find_buffer_type(dev, layout ? "SMOL" : params->buffer_type);
        if (!buft) {
            return refuse("there is no such buffer type in this build");
        }
        auto matrix = std::make_unique<smol_matrix>();
        matrix->context = new_context(1);
        matrix->tensor = ggml_new_tensor_3d(matrix->context.get(), params->type, k, params->rows, matrices);
        if (!layout && !takes(dev, buft, matrix->tensor, params->matrices > 0)) {
            return refuse("the buffer type does not take such weights");
        }
        struct Forced {
            explicit Forced(const smol_layout * layout) { smol_packing_force(layout); }
            ~Forced() { smol_packing_force(nullptr); }
        } forced(layout);
        matrix->buffer = allocate(matrix->context.get(), buft);
        ggml_backend_buffer_set_usage(matrix->buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_tensor_set(matrix->tensor, data, 0, ggml_nbytes(matrix->tensor));
        *out = matrix.release();
        return SMOL_OK;
    });
}

void smol_matrix_free(smol_matrix * matrix) {
    delete matrix;
}

size_t smol_matrix_bytes(const smol_matrix * matrix) {
    const ggml_tensor * tensor = matrix->tensor;
    const smol_layout * layout = smol_packed_layout(tensor);
    // What upstream repacks keeps its size.
    return layout ? smol_packed_matrix_bytes(layout, tensor) * size_t(tensor->ne[2]) : ggml_nbytes(tensor);
}

smol_status smol_product_new(const smol_matrix * matrix, const smol_product_params * params, ggml_threadpool * pool,
                             int32_t threads, smol_product ** out) {
    return smol_guard_object(out, [&] {
        ggml_tensor * weights = matrix->tensor;
        const int64_t k = weights->ne[0], *ne = params->ne, *n_ids = params->ids;
        const bool products = params->op != GGML_OP_GET_ROWS, by_id = params->op != GGML_OP_MUL_MAT;
        const bool known = params->op == GGML_OP_MUL_MAT || params->op == GGML_OP_MUL_MAT_ID || params->op == GGML_OP_GET_ROWS;
        const bool fits = params->op == GGML_OP_MUL_MAT_ID
                              ? n_ids[1] == ne[1] && ne[2] == 1 && in_range(ne[0]) && n_ids[0] % ne[0] == 0
                              : weights->ne[2] == 1 && (!by_id || n_ids[1] == 1);
        if (!known || !fits || threads < 1 || (by_id && !in_range({n_ids[0], n_ids[1]})) ||
            (products && (params->stride < k || !in_range({params->stride, ne[0], ne[1], ne[2]})))) {
            throw std::runtime_error("there is no such product");
        }
        auto product = std::make_unique<smol_product>();
        product->backend.reset(ggml_backend_dev_init(cpu_device(), nullptr));
        if (!product->backend) {
            throw std::bad_alloc();
        }
        ggml_backend_cpu_set_n_threads(product->backend.get(), threads);
        ggml_backend_cpu_set_threadpool(product->backend.get(), pool);

        product->context = new_context(4, ggml_graph_overhead_custom(4, false));
        ggml_context * context = product->context.get();
        ggml_tensor * activations = nullptr;
        if (products) {
            product->activations = ggml_new_tensor_4d(context, GGML_TYPE_F32, params->stride, ne[0], ne[1], ne[2]);
            const size_t * nb = product->activations->nb;
            activations = params->stride == k ? product->activations
                                              : ggml_view_4d(context, product->activations, k, ne[0], ne[1], ne[2],
                                                             nb[1], nb[2], nb[3], 0);
        }
        if (by_id) {
            product->ids = products ? ggml_new_tensor_2d(context, GGML_TYPE_I32, n_ids[0], n_ids[1])
                                    : ggml_new_tensor_1d(context, GGML_TYPE_I32, n_ids[0]);
            product->ids_end = products ? weights->ne[2] : weights->ne[1];
            product->ids_may_miss = products;
        }
        product->node = new_node(context, params->op, weights, activations, product->ids);
        product->graph = ggml_new_graph_custom(context, 4, false);
        ggml_build_forward_expand(product->graph, product->node);
        product->buffer = allocate(context, ggml_backend_cpu_buffer_type());
        ggml_backend_buffer_clear(product->buffer.get(), 0);
        return product.release();
    });
}

void smol_product_free(smol_product * product) {
    delete product;
}

smol_status smol_product_input(smol_product * product, const float * activations, size_t activations_n, const int32_t * ids,
                               size_t ids_n) {
    return smol_guard([&] {
        const auto elements = [](const ggml_tensor * tensor) { return tensor ? size_t(ggml_nelements(tensor)) : 0; };
        if (activations_n != elements(product->activations) || ids_n != elements(product->ids)) {
            throw std::runtime_error("not as many inputs as the product has");
        }
        const int64_t least = product->ids_may_miss ? -1 : 0;
        if (std::any_of(ids, ids + ids_n, [&](int32_t id) { return id < least || id >= product->ids_end; })) {
            throw std::runtime_error("an id is outside of the matrix");
        }
        if (activations_n) {
            ggml_backend_tensor_set(product->activations, activations, 0, activations_n * sizeof *activations);
        }
        if (ids_n) {
            ggml_backend_tensor_set(product->ids, ids, 0, ids_n * sizeof *ids);
        }
        return SMOL_OK;
    });
}

smol_status smol_product_compute(smol_product * product, uint32_t times) {
    return smol_guard([&] {
        for (uint32_t i = 0; i < times; i++) {
            const ggml_status status = ggml_backend_graph_compute(product->backend.get(), product->graph);
            if (status != GGML_STATUS_SUCCESS) {
                throw std::runtime_error(std::string("the graph failed: ") + ggml_status_to_string(status));
            }
        }
        return SMOL_OK;
    });
}

const float * smol_product_output(const smol_product * product, size_t * n) {
    *n = size_t(ggml_nelements(product->node));
    return static_cast<const float *>(product->node->data);
}

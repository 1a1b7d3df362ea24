#include "one_row.h"

#include "binary-ops.h"
#include "ggml-cpu-impl.h"
#include "ops.h"

namespace {

// Where a thread's columns may begin. Upstream's loops take up to 64 floats a step and end with a slower loop, whose
// roundings may differ: only the last thread may come to that one. It is also a multiple of every cache line.
constexpr int64_t STEP = 64;

// Fewest columns for which two threads were faster than one on x86-64 (Zen 4). What the next node has to read from another
// core's cache counts too: an addition of 8192 gains 1 us before a matrix product, which reads with all threads, and
// loses as much before a norm, which reads with one. A SWIGLU of 8192 gains 2 us, a GEGLU 4.
constexpr int64_t FEWEST_ARITHMETIC = 16384;
constexpr int64_t FEWEST_VECTOR = 2048;
constexpr int64_t FEWEST_SCALAR = 1024;

bool is_row(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && ggml_nrows(t) == 1;
}

int64_t fewest_columns(const ggml_tensor * node) {
    switch (node->op) {
        case GGML_OP_GLU:
            switch (ggml_get_glu_op(node)) {
                case GGML_GLU_OP_REGLU:
                    return FEWEST_ARITHMETIC;
                case GGML_GLU_OP_SWIGLU:
                case GGML_GLU_OP_GEGLU_QUICK:
                    return FEWEST_VECTOR;
                default:
                    return FEWEST_SCALAR;
            }
        case GGML_OP_UNARY:
            switch (ggml_get_unary_op(node)) {
                case GGML_UNARY_OP_TANH:
                case GGML_UNARY_OP_ELU:
                case GGML_UNARY_OP_SIGMOID:
                case GGML_UNARY_OP_GELU:
                case GGML_UNARY_OP_GELU_ERF:
                case GGML_UNARY_OP_EXP:
                case GGML_UNARY_OP_EXPM1:
                case GGML_UNARY_OP_SOFTPLUS:
                case GGML_UNARY_OP_XIELU:
                    return FEWEST_SCALAR;
                case GGML_UNARY_OP_SILU:
                case GGML_UNARY_OP_GELU_QUICK:
                    return FEWEST_VECTOR;
                default:
                    return FEWEST_ARITHMETIC;
            }
        default:
            return FEWEST_ARITHMETIC;
    }
}

// Columns [begin, end) of a row.
ggml_tensor columns(const ggml_tensor & row, int64_t begin, int64_t end) {
    ggml_tensor view = row;
    view.data = static_cast<float *>(row.data) + begin;
    view.ne[0] = end - begin;
    view.nb[1] = view.nb[2] = view.nb[3] = size_t(end - begin) * sizeof(float);
    return view;
}

} // namespace

bool smol_one_row_wants(const ggml_tensor * node) {
    const ggml_tensor * a = node->src[0];
    const ggml_tensor * b = node->src[1];
    switch (node->op) {
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
            if (!is_row(b) || (b->ne[0] != node->ne[0] && b->ne[0] != 1)) {
                return false;
            }
            break;
        case GGML_OP_GLU:
            if (b && !is_row(b)) {
                return false;
            }
            break;
        case GGML_OP_SCALE:
        case GGML_OP_UNARY:
            break;
        default:
            return false;
    }
    return is_row(node) && is_row(a) && node->ne[0] >= fewest_columns(node);
}

bool smol_one_row(const ggml_compute_params * params, ggml_tensor * node) {
    if (params->nth == 1 || !smol_one_row_wants(node)) {
        return false;
    }
    const int64_t n = node->ne[0];
    const int64_t steps = (n + STEP - 1) / STEP;
    const int64_t begin = steps * params->ith / params->nth * STEP;
    const int64_t end = params->ith + 1 == params->nth ? n : steps * (params->ith + 1) / params->nth * STEP;
    if (begin == end) {
        return true;
    }

    const bool halves = node->op == GGML_OP_GLU && !node->src[1]; // both factors in one row
    const bool swapped = halves && ggml_get_op_params_i32(node, 1) != 0;
    ggml_tensor part = columns(*node, begin, end);
    ggml_tensor a = columns(*node->src[0], begin + (swapped ? n : 0), end + (swapped ? n : 0));
    ggml_tensor b;
    part.src[0] = &a;
    if (halves) {
        b = columns(*node->src[0], begin + (swapped ? 0 : n), end + (swapped ? 0 : n));
        part.src[1] = &b;
    } else if (node->src[1] && node->src[1]->ne[0] == n) {
        b = columns(*node->src[1], begin, end);
        part.src[1] = &b;
    }

    ggml_compute_params alone = *params;
    alone.ith = 0;
    alone.nth = 1;
    switch (node->op) {
        case GGML_OP_ADD: ggml_compute_forward_add(&alone, &part); break;
        case GGML_OP_SUB: ggml_compute_forward_sub(&alone, &part); break;
        case GGML_OP_MUL: ggml_compute_forward_mul(&alone, &part); break;
        case GGML_OP_DIV: ggml_compute_forward_div(&alone, &part); break;
        case GGML_OP_SCALE: ggml_compute_forward_scale(&alone, &part); break;
        case GGML_OP_UNARY: ggml_compute_forward_unary(&alone, &part); break;
        case GGML_OP_GLU: ggml_compute_forward_glu(&alone, &part); break;
        default: return false;
    }
    return true;
}

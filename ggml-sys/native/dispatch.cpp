// Offers graph nodes to the attached engine, and computes those with packed weights, with paged experts, with streamed
// weights or of one row of activations, through extra buffer types of the CPU backend.
#include "dispatch.h"

#include "matrix_vector.h"
#include "one_row.h"
#include "packed.h"
#include "paged.h"
#include "streamed.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "traits.h"

namespace {

bool is_packed(const ggml_tensor * op) {
    return op->src[0] && smol_packed_layout(op->src[0]);
}

class dispatch_traits final : public ggml::cpu::tensor_traits {
  public:
    // false: upstream reserves the work buffer as for its own kernel, which runs when nothing here takes the node.
    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        if (!is_packed(op)) {
            return false;
        }
        size = smol_packed_work_size(op);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (smol_engine_wants(op->op) && smol_engine_node(op, params->ith, params->nth)) {
            return true;
        }
        if (is_packed(op)) {
            smol_packed_compute(params, op);
            return true;
        }
        return smol_matrix_vector(params, op) || smol_one_row(params, op);
    }
};

class dispatch_type final : public ggml::cpu::extra_buffer_type {
  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override { return smol_packed_supports(op); }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static dispatch_traits traits;
        const bool wanted = smol_engine_wants(op->op) || is_packed(op) || smol_matrix_vector_wants(op) || smol_one_row_wants(op);
        return wanted ? &traits : nullptr;
    }
};

class paged_traits final : public ggml::cpu::tensor_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const size_t own = smol_paged_work_size(n_threads, op);
        size = own ? own : size;
        return own != 0;
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override { return smol_paged_compute(params, op); }
};

class paged_type final : public ggml::cpu::extra_buffer_type {
  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override { return smol_paged_supports(op); }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static paged_traits traits;
        return smol_paged_wants(op) ? &traits : nullptr;
    }
};

class streamed_traits final : public ggml::cpu::tensor_traits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = smol_streamed_work_size(n_threads, op);
        return true;
    }
    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        smol_streamed_compute(params, op);
        return true;
    }
};

class streamed_type final : public ggml::cpu::extra_buffer_type {
  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override { return smol_streamed_supports(op); }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static streamed_traits traits;
        return smol_streamed_wants(op) ? &traits : nullptr;
    }
};

// Whether the loader of this thread leaves weights as they are in the file.
thread_local bool plain = false;

// One of upstream's types, which takes no weight while the loader is to leave them as they are.
class upstream_type final : public ggml::cpu::extra_buffer_type {
  public:
    explicit upstream_type(ggml::cpu::extra_buffer_type * inner) : inner(inner) {}

    bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) override { return !plain && inner->supports_op(dev, op); }
    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override { return inner->get_tensor_traits(op); }

  private:
    ggml::cpu::extra_buffer_type * inner;
};

} // namespace

void smol_dispatch_plain(bool on) {
    plain = on;
}

void * smol_streamed_dispatch_type(void) {
    static streamed_type type;
    return static_cast<ggml::cpu::extra_buffer_type *>(&type);
}

void * smol_paged_dispatch_type(void) {
    static paged_type type;
    return static_cast<ggml::cpu::extra_buffer_type *>(&type);
}

void * smol_dispatch_type(void) {
    static dispatch_type type;
    return static_cast<ggml::cpu::extra_buffer_type *>(&type);
}

void smol_dispatch_init(ggml_backend_buffer_type_t packed, ggml_backend_buffer_type_t paged,
                        ggml_backend_buffer_type_t streamed) {
    // They live as long as the process, as upstream's do.
    for (ggml_backend_buffer_type_t buft : ggml_backend_cpu_get_extra_buffer_types()) {
        if (buft && buft->context) {
            auto * inner = static_cast<ggml::cpu::extra_buffer_type *>(buft->context);
            buft->context = static_cast<ggml::cpu::extra_buffer_type *>(new upstream_type(inner));
        }
    }
    smol_packed_init(packed);
    smol_paged_init(paged);
    smol_streamed_init(streamed);
}

void smol_dispatch_list(ggml_backend_buffer_type_t buft, bool add) {
    auto & list = ggml_backend_cpu_get_extra_buffer_types();
    if (add) {
        list.insert(list.begin(), buft);
    } else {
        list.erase(list.begin());
    }
}

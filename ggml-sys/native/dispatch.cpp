// Offers graph nodes to the attached engine through an extra buffer type of the CPU backend.
#include "dispatch.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"
#include "traits.h"

namespace {

class dispatch_traits final : public ggml::cpu::tensor_traits {
  public:
    // false: upstream reserves the work buffer as for its own kernel, which runs when the engine declines
    bool work_size(int, const ggml_tensor *, size_t &) override { return false; }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        return smol_engine_wants(op->op) && smol_engine_node(op, params->ith, params->nth);
    }
};

class dispatch_type final : public ggml::cpu::extra_buffer_type {
  public:
    // No weight is placed in this buffer type.
    bool supports_op(ggml_backend_dev_t, const ggml_tensor *) override { return false; }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        static dispatch_traits traits;
        return smol_engine_wants(op->op) ? &traits : nullptr;
    }
};

} // namespace

void * smol_dispatch_type(void) {
    static dispatch_type type;
    return static_cast<ggml::cpu::extra_buffer_type *>(&type);
}

void smol_dispatch_list(ggml_backend_buffer_type_t buft, bool add) {
    auto & list = ggml_backend_cpu_get_extra_buffer_types();
    if (add) {
        list.insert(list.begin(), buft);
    } else {
        list.erase(list.begin());
    }
}

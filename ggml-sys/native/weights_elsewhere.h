// A buffer type of weights without bytes of their own: something else hands out where they are while they are used.
#pragma once

#include "ggml-backend-impl.h"

#include <list>
#include <memory>
#include <stdexcept>
#include <string>

namespace smol {

// `Kind` has: `Extra`, what `extra` of a tensor points to; `NAME` of the type; `REFUSAL`, why no tensor can be read or
// written as a whole; and `fill`, which makes the extra of a tensor that is loaded, or says that it is none of the kind.
template <typename Kind> class WeightsElsewhere {
  public:
    static void init(ggml_backend_buffer_type * buft) {
        buft->iface.get_name = [](ggml_backend_buffer_type_t) { return Kind::NAME; };
        buft->iface.alloc_buffer = alloc_buffer;
        buft->iface.get_alignment = [](ggml_backend_buffer_type_t) {
            return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
        };
        buft->iface.get_alloc_size = [](ggml_backend_buffer_type_t, const ggml_tensor *) { return TENSOR_BYTES; };
    }

  private:
    // A tensor needs an address, though nobody reads there.
    static constexpr size_t TENSOR_BYTES = 64;

    struct Tensors {
        ggml_backend_buffer_t memory;
        std::list<typename Kind::Extra> all; // addresses stay
    };

    static Tensors * tensors_of(ggml_backend_buffer_t buffer) { return static_cast<Tensors *>(buffer->context); }

    static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
        auto tensors = std::make_unique<Tensors>();
        tensors->memory = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
        if (!tensors->memory) {
            return nullptr;
        }
        ggml_backend_buffer_i i = {};
        i.free_buffer = free_buffer;
        i.get_base = [](ggml_backend_buffer_t buffer) { return ggml_backend_buffer_get_base(tensors_of(buffer)->memory); };
        i.init_tensor = init_tensor;
        i.set_tensor = [](ggml_backend_buffer_t, ggml_tensor * tensor, const void *, size_t, size_t) { refuse(tensor); };
        i.get_tensor = [](ggml_backend_buffer_t, const ggml_tensor * tensor, void *, size_t, size_t) { refuse(tensor); };
        i.clear = [](ggml_backend_buffer_t, uint8_t) {};
        return ggml_backend_buffer_init(buft, i, tensors.release(), size);
    }

    static void free_buffer(ggml_backend_buffer_t buffer) {
        Tensors * tensors = tensors_of(buffer);
        ggml_backend_buffer_free(tensors->memory);
        delete tensors;
    }

    static ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
        if (tensor->view_src) {
            return GGML_STATUS_SUCCESS;
        }
        auto & all = tensors_of(buffer)->all;
        typename Kind::Extra & extra = all.emplace_back();
        if (!Kind::fill(tensor, extra)) {
            all.pop_back();
            return GGML_STATUS_FAILED;
        }
        tensor->extra = &extra;
        return GGML_STATUS_SUCCESS;
    }

    [[noreturn]] static void refuse(const ggml_tensor * tensor) {
        throw std::runtime_error(std::string(tensor->name) + Kind::REFUSAL);
    }
};

} // namespace smol

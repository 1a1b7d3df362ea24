// The buffer type of paged experts: tensors without bytes, and which of the loaded tensors they are.
#include "paged.h"

#include "dispatch.h"
#include "guard.h"
#include "packed.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <cstring>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

ggml_backend_buffer_type_t paged_buft;

// Of the models that this thread loads.
thread_local const smol_pager * current;

// A tensor needs an address, though nobody reads there.
constexpr size_t TENSOR_BYTES = 64;

struct Tensors {
    ggml_backend_buffer_t memory;
    std::list<smol_paged> all; // addresses stay
};

Tensors * tensors_of(ggml_backend_buffer_t buffer) {
    return static_cast<Tensors *>(buffer->context);
}

void free_buffer(ggml_backend_buffer_t buffer) {
    Tensors * tensors = tensors_of(buffer);
    ggml_backend_buffer_free(tensors->memory);
    delete tensors;
}

void * get_base(ggml_backend_buffer_t buffer) {
    return ggml_backend_buffer_get_base(tensors_of(buffer)->memory);
}

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    if (tensor->view_src) {
        return GGML_STATUS_SUCCESS;
    }
    smol_paged_place place;
    if (!smol_paged_takes(tensor->name, &place)) {
        return GGML_STATUS_FAILED;
    }
    smol_paged & paged = tensors_of(buffer)->all.emplace_back();
    paged.pager = current;
    paged.place = place;
    tensor->extra = &paged;
    return GGML_STATUS_SUCCESS;
}

[[noreturn]] void refuse(const ggml_tensor * tensor) {
    throw std::runtime_error(std::string(tensor->name) + " is paged and can't be read or written as a whole; load the model without a pager");
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void *, size_t, size_t) {
    refuse(tensor);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void *, size_t, size_t) {
    refuse(tensor);
}

void clear(ggml_backend_buffer_t, uint8_t) {}

const char * buft_name(ggml_backend_buffer_type_t) {
    return "SMOL_PAGED";
}

size_t buft_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

size_t alloc_size(ggml_backend_buffer_type_t, const ggml_tensor *) {
    return TENSOR_BYTES;
}

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    auto tensors = std::make_unique<Tensors>();
    tensors->memory = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (!tensors->memory) {
        return nullptr;
    }
    static constexpr ggml_backend_buffer_i iface = [] {
        ggml_backend_buffer_i i = {};
        i.free_buffer = free_buffer;
        i.get_base = get_base;
        i.init_tensor = init_tensor;
        i.set_tensor = set_tensor;
        i.get_tensor = get_tensor;
        i.clear = clear;
        return i;
    }();
    return ggml_backend_buffer_init(buft, iface, tensors.release(), size);
}

} // namespace

void smol_paged_init(ggml_backend_buffer_type * buft) {
    paged_buft = buft;
    buft->iface.get_name = buft_name;
    buft->iface.alloc_buffer = alloc_buffer;
    buft->iface.get_alignment = buft_alignment;
    buft->iface.get_alloc_size = alloc_size;
}

bool smol_paged_takes(const char * name, smol_paged_place * place) {
    return current && current->place(current->ud, name, place);
}

const smol_paged * smol_paged_of(const ggml_tensor * tensor) {
    return tensor->buffer && tensor->buffer->buft == paged_buft ? static_cast<const smol_paged *>(tensor->extra) : nullptr;
}

bool smol_paged_supports(const ggml_tensor * op) {
    const ggml_tensor * weight = op->src[0];
    if (op->op != GGML_OP_MUL_MAT_ID || !weight || !weight->buffer || weight->buffer->buft != paged_buft || !op->src[1] ||
        op->src[1]->type != GGML_TYPE_F32 || op->src[1]->nb[0] != sizeof(float)) {
        return false;
    }
    if (weight->extra) {
        return true;
    }
    // The loader asks, with an empty buffer (llama-model-loader.cpp:933).
    smol_paged_place place;
    if (!smol_paged_takes(weight->name, &place)) {
        return false;
    }
    smol_packed_note(op, place.layout, "paged as it lies in the file");
    return true;
}

bool smol_paged_load(ggml_tensor * tensor, uint16_t file, size_t offset, size_t size) {
    const smol_paged * paged = smol_paged_of(tensor);
    if (!paged) {
        return false;
    }
    if (!paged->pager->check(paged->pager->ud, &paged->place, file, offset, size)) {
        throw std::runtime_error(std::string("the pager would read ") + tensor->name + " from another place than llama.cpp");
    }
    return true;
}

const smol_layout * smol_paged_layout(enum ggml_type type, int64_t k) {
    return smol_layout_for_any(type, k);
}

ggml_backend_buffer_type_t smol_paging_type(void) {
    return current ? paged_buft : nullptr;
}

smol_status smol_paging_set(const smol_pager * pager) {
    if (pager && pager->abi_version != SMOL_ABI_VERSION) {
        smol_set_error("the pager was built for another ABI version: rebuild it");
        return SMOL_ERR_ABI;
    }
    if (pager && !smol_has_load_hook()) {
        smol_set_error("this build leaves out the load-hook patch (cargo feature load-hook of ggml-sys)");
        return SMOL_ERR_MISSING;
    }
    current = pager;
    return SMOL_OK;
}

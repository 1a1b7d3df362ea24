// The buffer type of paged experts: tensors without bytes, and which of the loaded tensors they are.
#include "paged.h"

#include "dispatch.h"
#include "guard.h"
#include "packed.h"
#include "weights_elsewhere.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <stdexcept>
#include <string>

namespace {

ggml_backend_buffer_type_t paged_buft;

// Of the models that this thread loads.
thread_local const smol_pager * current;

struct Paged {
    using Extra = smol_paged;
    static constexpr const char * NAME = "SMOL_PAGED";
    static constexpr const char * REFUSAL =
        " is paged and can't be read or written as a whole; load the model without a pager";

    static bool fill(const ggml_tensor * tensor, smol_paged & paged) {
        paged.pager = current;
        return smol_paged_takes(tensor->name, &paged.place);
    }
};

} // namespace

void smol_paged_init(ggml_backend_buffer_type * buft) {
    paged_buft = buft;
    smol::WeightsElsewhere<Paged>::init(buft);
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

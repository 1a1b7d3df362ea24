// The buffer type of streamed weights, and which of the loaded tensors they are.
#include "streamed.h"

#include "guard.h"
#include "packed.h"
#include "repacked.h"
#include "weights_elsewhere.h"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace {

ggml_backend_buffer_type_t streamed_buft;

// Of the models that this thread loads.
thread_local const smol_streamer * current;

std::atomic<int64_t> tensors{0};

bool find(const char * name, smol_stream_place * place) {
    return current && current->place(current->ud, name, place);
}

struct Streamed {
    using Extra = smol_streamed;
    static constexpr const char * NAME = "SMOL_STREAMED";
    static constexpr const char * REFUSAL =
        " is streamed and can't be read or written as a whole; load the model without streaming";

    static bool fill(const ggml_tensor * tensor, smol_streamed & streamed) {
        streamed.streamer = current;
        if (!find(tensor->name, &streamed.place)) {
            return false;
        }
        streamed.repacked = streamed.place.repacked ? smol_repacked_traits(tensor) : nullptr;
        return !streamed.place.repacked || streamed.repacked;
    }
};

} // namespace

smol_streamed::smol_streamed() : streamer(nullptr), place{}, repacked(nullptr), run(0), index(-1), address(nullptr) {
    tensors.fetch_add(1, std::memory_order_relaxed);
}

smol_streamed::~smol_streamed() {
    tensors.fetch_sub(1, std::memory_order_relaxed);
}

bool smol_streamed_any(void) {
    return tensors.load(std::memory_order_relaxed) != 0;
}

void smol_streamed_init(ggml_backend_buffer_type * buft) {
    streamed_buft = buft;
    smol::WeightsElsewhere<Streamed>::init(buft);
}

bool smol_streamed_takes(const char * name, ggml_op op, smol_stream_place * place) {
    const bool used = op == GGML_OP_MUL_MAT || op == GGML_OP_GET_ROWS;
    // A head that is tied to embeddings of which only rows are read is a weight of its own.
    return used && find(name, place) && (op == GGML_OP_GET_ROWS || !place->rows_only);
}

bool smol_streaming(void) {
    return current != nullptr;
}

smol_streamed * smol_streamed_of(const ggml_tensor * tensor) {
    return tensor->buffer && tensor->buffer->buft == streamed_buft ? static_cast<smol_streamed *>(tensor->extra) : nullptr;
}

bool smol_streamed_supports(const ggml_tensor * op) {
    const auto is_asked_for = [](const ggml_tensor * source) {
        // By the loader, with an empty buffer (llama-model-loader.cpp:933).
        return source && source->buffer && source->buffer->buft == streamed_buft && source->buffer->size == 0;
    };
    if (std::none_of(op->src, op->src + GGML_MAX_SRC, is_asked_for)) {
        // A graph's node, whatever it does with the weight: what can't be computed ends the graph with an error when it
        // begins, where a refusal now would end the process (ggml-backend.cpp, ggml_backend_sched_split_graph).
        return true;
    }
    const ggml_tensor * weight = op->src[0];
    const ggml_tensor * other = op->src[1];
    const bool plain = op->op == GGML_OP_MUL_MAT ? other->type == GGML_TYPE_F32 && other->nb[0] == sizeof(float)
                                                 : op->op == GGML_OP_GET_ROWS && other->type == GGML_TYPE_I32;
    smol_stream_place place;
    if (!is_asked_for(weight) || !plain || !smol_streamed_takes(weight->name, op->op, &place)) {
        return false;
    }
    const bool product = op->op == GGML_OP_MUL_MAT;
    smol_packed_note(op, product ? place.layout : nullptr,
                     product && place.repacked ? nullptr : "streamed as it lies in the file");
    return true;
}

bool smol_streamed_load(ggml_tensor * tensor, uint16_t file, size_t offset, size_t size) {
    const smol_streamed * streamed = smol_streamed_of(tensor);
    if (!streamed) {
        return false;
    }
    if (!streamed->streamer->check(streamed->streamer->ud, &streamed->place, file, offset, size)) {
        throw std::runtime_error(std::string(tensor->name) + " would be streamed from another place than llama.cpp reads");
    }
    return true;
}

smol_status smol_streaming_set(const smol_streamer * streamer) {
    if (streamer && streamer->abi_version != SMOL_ABI_VERSION) {
        smol_set_error("the streamer was built for another ABI version: rebuild it");
        return SMOL_ERR_ABI;
    }
    if (streamer && !smol_has_load_hook()) {
        smol_set_error("this build leaves out the load-hook patch (cargo feature load-hook of ggml-sys)");
        return SMOL_ERR_MISSING;
    }
    current = streamer;
    return SMOL_OK;
}

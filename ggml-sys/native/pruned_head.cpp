// A vocabulary head that has the rows of some tokens only. Its model file holds those rows as `output.weight` (and
// `output.bias`), and a tensor `output_ids` with the token of each row, ascending. The head's graph is left as every
// architecture builds it; one node after it puts each row's logit in its token's place and -inf in all others.
// A block that drafts further tokens may have a head of its own: pruned to the same tokens, or whole.
#include "smol-hooks.h"

#include "llama-graph.h"
#include "llama-model-loader.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>

struct smol_head {
    // The token of each row, ascending.
    std::vector<int32_t> ids;
};

namespace {

const char * const IDS = "output_ids";

bool is_head_of_drafts(const std::string & name) {
    const std::string end = ".nextn.shared_head_head.weight";
    return name.size() > end.size() && name.compare(name.size() - end.size(), end.size(), end) == 0;
}

// Each thread deals with a range of tokens, in every row of logits. Those are of the kept tokens, or of all.
void spread(ggml_tensor * dst, int ith, int nth, void * userdata) {
    const std::vector<int32_t> & ids = static_cast<const smol_head *>(userdata)->ids;
    const ggml_tensor * logits = dst->src[0];
    const bool whole = logits->ne[0] == dst->ne[0];
    const int64_t begin = dst->ne[0] * ith / nth, end = dst->ne[0] * (ith + 1) / nth;
    const size_t first = std::lower_bound(ids.begin(), ids.end(), begin) - ids.begin();
    const size_t last = std::lower_bound(ids.begin(), ids.end(), end) - ids.begin();
    for (int64_t row = 0; row < dst->ne[1]; row++) {
        float * to = reinterpret_cast<float *>(static_cast<char *>(dst->data) + row * dst->nb[1]);
        const float * from = reinterpret_cast<const float *>(static_cast<const char *>(logits->data) + row * logits->nb[1]);
        std::fill(to + begin, to + end, -INFINITY);
        for (size_t i = first; i < last; i++) {
            to[ids[i]] = from[whole ? size_t(ids[i]) : i];
        }
    }
}

template <typename T> std::vector<int32_t> read_ids(llama_file & file, size_t offset, size_t count, int64_t n_vocab) {
    std::vector<T> stored(count);
    file.seek(offset, SEEK_SET);
    file.read_raw(stored.data(), count * sizeof(T));
    std::vector<int32_t> ids(count);
    int64_t before = -1;
    for (size_t i = 0; i < count; i++) {
        if (stored[i] <= before || stored[i] >= n_vocab) {
            throw std::runtime_error(format("%s: entry %zu is %lld: they must ascend and be below %lld, the size of the "
                                            "vocabulary", IDS, i, (long long) stored[i], (long long) n_vocab));
        }
        before = stored[i];
        ids[i] = int32_t(stored[i]);
    }
    return ids;
}

} // namespace

bool smol_head_replaces(const llama_model_loader & loader, const std::string & name) {
    return name == "token_embd.weight" && loader.get_weight(IDS) && loader.get_weight("output.weight");
}

std::vector<int64_t> smol_head_shape(const llama_model_loader & loader, const std::string & name,
                                     std::vector<int64_t> shape) {
    const auto * ids = shape.empty() ? nullptr : loader.get_weight(IDS);
    if (!ids) {
        return shape;
    }
    const int64_t n_kept = ids->tensor->ne[0];
    if (name == "output.weight" || name == "output.bias") {
        shape.back() = n_kept;
    } else if (is_head_of_drafts(name)) {
        const auto * own = loader.get_weight(name.c_str());
        if (own && own->tensor->ne[1] == n_kept) {
            shape.back() = n_kept;
        }
    }
    return shape;
}

std::shared_ptr<const smol_head> smol_head_load(llama_model_loader & loader, const llama_model & model) {
    const auto * weight = loader.get_weight(IDS);
    if (!weight) {
        return nullptr;
    }
    const ggml_tensor * stored = weight->tensor;
    if ((stored->type != GGML_TYPE_I32 && stored->type != GGML_TYPE_I64) || ggml_n_dims(stored) != 1) {
        throw std::runtime_error(format("%s must be a list of I32 or I64", IDS));
    }
    // These add to the logits by token, or take the rows for those of a vocabulary of their own.
    if (model.arch == LLM_ARCH_CHAMELEON || model.arch == LLM_ARCH_DFLASH || model.d2t) {
        throw std::runtime_error(format("%s: the head of %s models cannot be pruned", IDS, llm_arch_name(model.arch)));
    }
    if (!model.output || strcmp(model.output->name, "output.weight") != 0) {
        throw std::runtime_error(format("%s: the model has no output.weight that it could belong to", IDS));
    }
    auto head = std::make_shared<smol_head>();
    llama_file & file = *loader.files.at(weight->idx);
    const size_t count = stored->ne[0];
    const int64_t n_vocab = model.vocab.n_tokens();
    head->ids = stored->type == GGML_TYPE_I32 ? read_ids<int32_t>(file, weight->offs, count, n_vocab)
                                              : read_ids<int64_t>(file, weight->offs, count, n_vocab);
    // As for a tensor that the model does not use: this one is not loaded with the others.
    loader.n_created++;
    loader.size_data -= ggml_nbytes(stored);
    return head;
}

const smol_head * smol_head_of(const llama_model & model, const smol_head * head) {
    if (head && (model.arch == LLM_ARCH_DFLASH || model.d2t)) {
        throw std::runtime_error("a draft model with a vocabulary of its own cannot use a pruned head");
    }
    return head;
}

void smol_head_logits(llm_graph_context & graph, const smol_head * head, bool drafts, int64_t n_vocab) {
    ggml_tensor * logits = graph.res->t_logits;
    if (!head || !logits) {
        return;
    }
    const int64_t n_kept = head->ids.size();
    const bool whole = drafts && logits->ne[0] == n_vocab;
    if ((logits->ne[0] != n_kept && !whole) || logits->ne[2] != 1 || logits->ne[3] != 1 || logits->type != GGML_TYPE_F32 ||
        logits->nb[0] != sizeof(float) || head->ids.back() >= n_vocab) {
        throw std::runtime_error("this architecture's head cannot be pruned: its logits are no list of the kept tokens'");
    }
    ggml_tensor * all = ggml_custom_4d(graph.ctx0, GGML_TYPE_F32, n_vocab, logits->ne[1], 1, 1, &logits, 1, spread,
                                       GGML_N_TASKS_MAX, const_cast<smol_head *>(head));
    ggml_set_name(all, "result_logits");
    graph.res->t_logits = all;
}

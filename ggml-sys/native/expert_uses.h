// The rows of a MUL_MAT_ID node by expert.
#pragma once

#include "ggml-impl.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace smol {

// One use of an expert: which of the token's experts it is, and the token.
struct ExpertUse {
    int32_t slot, token;
};

// In the work buffer of MUL_MAT_ID, before the activations.
struct ExpertUses {
    int32_t * first; // first use of each expert, and the end: experts + 1
    int32_t * active; // experts with at least one use
    int32_t * active_n;
    ExpertUse * all;

    static size_t bytes(int64_t experts, int64_t uses) {
        return size_t(2 * experts + 2) * sizeof(int32_t) + sizeof(ExpertUse) + size_t(uses) * sizeof(ExpertUse);
    }
    ExpertUses(void * work, int64_t experts)
        : first(static_cast<int32_t *>(work)), active(first + experts + 1), active_n(active + experts),
          all(reinterpret_cast<ExpertUse *>(active_n + 2)) {}

    // Sorts the uses by expert; a slot without expert gets a row of zeros (ggml-cpu.c:1666).
    void sort(ggml_tensor * node, int64_t experts) {
        const ggml_tensor * ids = node->src[2];
        const auto id = [&](int64_t token, int64_t slot) {
            return *reinterpret_cast<const int32_t *>(static_cast<const char *>(ids->data) + token * ids->nb[1] +
                                                      slot * ids->nb[0]);
        };
        std::fill_n(first, experts + 1, 0);
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
                const int32_t expert = id(token, slot);
                GGML_ASSERT(expert >= -1 && expert < experts);
                if (expert >= 0) {
                    first[expert + 1]++;
                } else {
                    memset(static_cast<char *>(node->data) + slot * node->nb[1] + token * node->nb[2], 0,
                           node->ne[0] * sizeof(float));
                }
            }
        }
        *active_n = 0;
        for (int64_t e = 0; e < experts; e++) {
            if (first[e + 1]) {
                active[(*active_n)++] = int32_t(e);
            }
            first[e + 1] += first[e];
        }
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
                if (const int32_t expert = id(token, slot); expert >= 0) {
                    all[first[expert]++] = {int32_t(slot), int32_t(token)};
                }
            }
        }
        // Each count has moved to the end of its expert, which is the next one's begin.
        for (int64_t e = experts; e > 0; e--) {
            first[e] = first[e - 1];
        }
        first[0] = 0;
    }
};

} // namespace smol

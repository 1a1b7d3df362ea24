// Chooses the CPU level once. Until then, and in programs that never choose, the lowest one runs.
#include "levels.h"

#include "guard.h"

#include <mutex>

namespace {
std::mutex mutex;
uint32_t selected = 0;
bool fixed = false;
} // namespace

void smol_level_fix(void) {
    std::lock_guard<std::mutex> lock(mutex);
    fixed = true;
}

uint32_t smol_level_count(void) {
    return smol_level_n;
}

uint32_t smol_level_selected(void) {
    std::lock_guard<std::mutex> lock(mutex);
    return selected;
}

smol_status smol_level_select(uint32_t level) {
    std::lock_guard<std::mutex> lock(mutex);
    if (level >= smol_level_n) {
        smol_set_error("there is no such CPU level in this build");
        return SMOL_ERR_STATE;
    }
    if (level == selected) {
        return SMOL_OK;
    }
    if (fixed) {
        smol_set_error("the CPU level must be selected before llama.cpp is used");
        return SMOL_ERR_STATE;
    }
    smol_level_apply(level);
    selected = level;
    return SMOL_OK;
}

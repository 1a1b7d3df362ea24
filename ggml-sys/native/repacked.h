// Upstream's own packed form of weights that lie outside of its buffers. Compiled once per CPU level.
#pragma once

#include "smol.h"

namespace ggml::cpu {
class tensor_traits;
}

extern "C" {

// Keeps what packs in upstream's buffer type, which must still be as upstream made it.
void smol_repacked_init(void);

// What computes with the weight in that form; nullptr: it has none on this CPU.
ggml::cpu::tensor_traits * smol_repacked_traits(const struct ggml_tensor * weight);

} // extern "C"

// What the files of the layouts share, and their names.
#pragma once

#include "layout.h"

namespace smol {

extern const smol_layout q1_0;
extern const smol_layout tq1_0;
extern const smol_layout tq2_0;
extern const smol_layout q2_0;
extern const smol_layout q2_k;

using Tile = void(int64_t k, const uint8_t * group, const void * const * activations, float * const * out);

// Cuts n activation rows into tiles of 4, 2 and 1, group by group: a group's weights stay in the first cache.
template <Tile four, Tile two, Tile one>
void tiles(int64_t k, const uint8_t * group, size_t group_bytes, int64_t groups, int64_t rows, int64_t n,
           const void * const * activations, float * const * out) {
    for (int64_t g = 0; g < groups; g++, group += group_bytes) {
        for (int64_t i = 0; i < n;) {
            const int64_t left = n - i;
            const int64_t step = left >= 4 ? 4 : left >= 2 ? 2 : 1;
            float * to[4];
            for (int64_t j = 0; j < step; j++) {
                to[j] = out[i + j] + g * rows;
            }
            (step == 4 ? four : step == 2 ? two : one)(k, group, activations + i, to);
            i += step;
        }
    }
}

} // namespace smol

// What the files of the layouts share, and their names.
#pragma once

#include "layout.h"

namespace smol {

extern const smol_layout q1_0_lookup;
extern const smol_layout q1_0_affine;
extern const smol_layout q1_0;
extern const smol_layout tq1_0;
extern const smol_layout tq1_0_fields;
extern const smol_layout tq2_0;
extern const smol_layout q2_0;
extern const smol_layout q2_0_base3;
extern const smol_layout q2_0_merged;
extern const smol_layout q2_k;

using Tile = void(int64_t k, const uint8_t * group, const void * const * activations, float * const * out);

// Cuts n activation rows into tiles of 2^(number of `tile`s - 1), ..., 2, 1 rows, group by group: a group's weights
// stay in the first cache.
template <Tile... tile>
void tiles(int64_t k, const uint8_t * group, size_t group_bytes, int64_t groups, int64_t rows, int64_t n,
           const void * const * activations, float * const * out) {
    constexpr int SIZES = sizeof...(tile), LARGEST = 1 << (SIZES - 1);
    static constexpr Tile * all[SIZES] = {tile...};
    for (int64_t g = 0; g < groups; g++, group += group_bytes) {
        int size = 0;
        for (int64_t i = 0; i < n;) {
            while (n - i < LARGEST >> size) {
                size++;
            }
            float * to[LARGEST];
            for (int j = 0; j < LARGEST >> size; j++) {
                to[j] = out[i + j] + g * rows;
            }
            all[size](k, group, activations + i, to);
            i += LARGEST >> size;
        }
    }
}

} // namespace smol

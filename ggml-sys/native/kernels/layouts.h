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

// Cuts n activation rows into tiles of 2^(number of `tile`s - 1), ..., 2, 1 rows. The weights of a group stay in the
// first cache from tile to tile, and as many activation rows as fit the second cache stay there from group to group.
template <Tile... tile>
void tiles(int64_t k, const uint8_t * group, size_t group_bytes, int64_t groups, int64_t rows, int64_t n,
           const void * const * activations, float * const * out) {
    constexpr int SIZES = sizeof...(tile), LARGEST = 1 << (SIZES - 1);
    static constexpr Tile * all[SIZES] = {tile...};
    const int64_t fit = (1 << 18) / k / LARGEST * LARGEST, step = fit > LARGEST ? fit : LARGEST;
    for (int64_t start = 0; start < n; start += step) {
        const int64_t end = start + step < n ? start + step : n;
        for (int64_t g = 0; g < groups; g++) {
            int size = 0;
            for (int64_t i = start; i < end;) {
                while (end - i < LARGEST >> size) {
                    size++;
                }
                float * to[LARGEST];
                for (int j = 0; j < LARGEST >> size; j++) {
                    to[j] = out[i + j] + g * rows;
                }
                all[size](k, group + g * group_bytes, activations + i, to);
                i += LARGEST >> size;
            }
        }
    }
}

} // namespace smol

#include "layouts.h"

#include "simd.h"

const smol_layout * const * smol_layouts(size_t * n) {
    static const smol_layout * const all[] = {
#if SMOL_AVX512 // its dot products do as well as lookups, and need no tables
        &smol::q1_0,
        &smol::q1_0_lookup,
#else
        &smol::q1_0_lookup,
        &smol::q1_0,
#endif
        &smol::q1_0_affine,
        &smol::tq1_0,
        &smol::tq1_0_fields,
        &smol::tq2_0,
        &smol::q2_0,
        &smol::q2_0_base3,
        &smol::q2_0_merged,
        &smol::q2_k,
    };
    *n = sizeof all / sizeof *all;
    return all;
}

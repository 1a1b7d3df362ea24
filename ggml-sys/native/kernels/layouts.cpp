#include "layouts.h"

const smol_layout * const * smol_layouts(size_t * n) {
    static const smol_layout * const all[] = {
        &smol::q1_0,
        &smol::tq1_0,
        &smol::tq2_0,
        &smol::q2_0,
        &smol::q2_0_base3,
        &smol::q2_k,
    };
    *n = sizeof all / sizeof *all;
    return all;
}

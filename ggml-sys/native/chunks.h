// Guided self-scheduling (Polychronopoulos and Kuck 1987): large chunks first, each half of a thread's fair share of what
// remains, so that a slow core or thread ends with the others. Which units belong to chunk number i follows from i alone,
// so one counter is all that threads share.
#pragma once

#include "ggml-cpu-impl.h"

#include <algorithm>
#include <cstdint>

namespace smol {

// Chunks of `total` units for `threads` threads, in order of their number.
class Chunks {
  public:
    Chunks(int64_t total, int threads, int64_t least) : total(total), threads(threads), least(least) {}

    // The units of chunk `number`, which must not fall from call to call; false: there is no such chunk.
    bool find(int number, int64_t & begin, int64_t & end) {
        for (; at < number && next < total; at++) {
            next += size();
        }
        begin = next;
        end = std::min(total, next + size());
        return begin < end;
    }

  private:
    int64_t size() const { return std::max((total - next) / (2 * threads), least); }

    int64_t total, threads, least;
    int64_t next = 0; // first unit of chunk number `at`
    int at = 0;
};

// Runs chunks on this thread until none is left. ggml_threadpool_chunk_set(nth) was called before the last barrier.
template <typename F> void run_chunks(const ggml_compute_params * params, int64_t total, int64_t least, F && f) {
    Chunks chunks(total, params->nth, least);
    int64_t begin, end;
    for (int number = params->ith; chunks.find(number, begin, end);) {
        f(begin, end);
        number = ggml_threadpool_chunk_add(params->threadpool, 1);
    }
}

} // namespace smol

// musl gives a thread 128 KiB of stack. ggml starts its threads with what the C library gives, and on them run kernels
// and the engine's Rust code, which is used to the 2 MiB of Rust's own threads. Memory is taken as it is touched.
#include "thread_stack.h"

#include <pthread.h>

#include <cstddef>

void smol_thread_stack() {
#if defined(__linux__) && !defined(__GLIBC__) && !defined(__ANDROID__)
    constexpr size_t wanted = size_t(2) << 20;
    pthread_attr_t attr;
    size_t         size = 0;
    if (pthread_getattr_default_np(&attr) != 0 || pthread_attr_getstacksize(&attr, &size) != 0 || size >= wanted) {
        return;
    }
    if (pthread_attr_setstacksize(&attr, wanted) == 0) {
        pthread_setattr_default_np(&attr);
    }
#endif
}

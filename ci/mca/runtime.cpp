// The little of a C library that the traced program needs: building a whole one for each core takes a minute.
#include "runtime.h"

#include <stdint.h>
#include <string.h>

namespace {

long syscall(long number, long a, const void * b, long c) {
    register long x8 asm("x8") = number;
    register long x0 asm("x0") = a;
    register const void * x1 asm("x1") = b;
    register long x2 asm("x2") = c;
    asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}

} // namespace

extern "C" {

void * memcpy(void * to, const void * from, size_t n) {
    auto * out = static_cast<uint8_t *>(to);
    auto * in = static_cast<const uint8_t *>(from);
    for (; n >= 16; n -= 16, in += 16, out += 16) {
        __builtin_memcpy(out, in, 16);
    }
    for (; n > 0; n--) {
        *out++ = *in++;
        asm volatile("" ::: "memory");
    }
    return to;
}

void * memset(void * to, int value, size_t n) {
    auto * out = static_cast<uint8_t *>(to);
    const uint64_t word = 0x0101010101010101 * uint8_t(value);
    for (; n >= 8; n -= 8, out += 8) {
        __builtin_memcpy(out, &word, 8);
        asm volatile("" ::: "memory");
    }
    for (; n > 0; n--) {
        *out++ = uint8_t(value);
        asm volatile("" ::: "memory");
    }
    return to;
}

size_t strlen(const char * text) {
    size_t n = 0;
    while (text[n] != 0) {
        n++;
        asm volatile("" ::: "memory");
    }
    return n;
}

int strcmp(const char * a, const char * b) {
    while (*a == *b && *a != 0) {
        a++, b++;
    }
    return *a - *b;
}

// Upstream's assertions.
void ggml_abort(const char *, int, const char * message, ...) {
    put(message);
    quit(1);
}

[[noreturn]] void quit(int status) {
    for (;;) {
        syscall(93, status, nullptr, 0);
    }
}

void put(const char * text) {
    syscall(64, 1, text, long(strlen(text)));
}

void put_number(long n) {
    char digits[24], * at = digits + 23;
    *at = 0;
    do {
        *--at = char('0' + n % 10);
    } while ((n /= 10) != 0);
    put(at);
}

__attribute__((used)) [[noreturn]] void start(long * stack) {
    quit(run(int(stack[0]), reinterpret_cast<char **>(stack + 1)));
}

asm(".globl _start\n_start:\n mov x0, sp\n b start\n");
}

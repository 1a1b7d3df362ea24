// Keeps C++ exceptions inside C++: runs a function, turns what it throws into a status and a message.
#pragma once

#include "smol.h"

#include <exception>
#include <new>
#include <stdexcept>

// Sets the message of this thread; long texts are cut.
void smol_set_error(const char * text) noexcept;

template <typename F> smol_status smol_guard(F && f) noexcept {
    try {
        return f();
    } catch (const std::bad_alloc &) {
        smol_set_error("out of memory");
        return SMOL_ERR_MEMORY;
    } catch (const std::length_error & e) {
        smol_set_error(e.what());
        return SMOL_ERR_MEMORY;
    } catch (const std::exception & e) {
        smol_set_error(e.what());
        return SMOL_ERR_EXCEPTION;
    } catch (...) {
        smol_set_error("a C++ exception that is no std::exception");
        return SMOL_ERR_EXCEPTION;
    }
}

// For calls that return an object or NULL.
template <typename T, typename F> smol_status smol_guard_object(T ** out, F && f) noexcept {
    *out = nullptr;
    return smol_guard([&] {
        *out = f();
        if (*out) {
            return SMOL_OK;
        }
        smol_set_error("llama.cpp returned no object");
        return SMOL_ERR_NULL;
    });
}

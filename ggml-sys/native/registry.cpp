// The backend registry: what upstream's ggml-backend-reg.cpp and ggml-backend-dl.cpp offer in a build with the CPU
// backend inside, without their search for libraries on disk. It needs neither std::filesystem, which iOS 12 lacks, nor
// dlopen, which a static program lacks, and reads no environment variable: a program has the CPU backend and what it
// registers itself.
//
// Unlike upstream's, it may be used from several threads at once, and nothing is thrown out of it. No callback of a
// backend runs under its lock, so that a backend may look others up.
#include "levels.h"
#include "thread_stack.h"

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace {

// Distinct entries in the order in which they came.
template <typename T> class ordered_set {
  public:
    // Returns whether the entry is new.
    bool add(T entry) {
        std::unique_lock<std::shared_mutex> lock(mutex);
        if (std::find(entries.begin(), entries.end(), entry) != entries.end()) {
            return false;
        }
        entries.push_back(entry);
        return true;
    }

    bool remove(T entry) {
        std::unique_lock<std::shared_mutex> lock(mutex);
        const auto it = std::find(entries.begin(), entries.end(), entry);
        if (it == entries.end()) {
            return false;
        }
        entries.erase(it);
        return true;
    }

    size_t size() {
        std::shared_lock<std::shared_mutex> lock(mutex);
        return entries.size();
    }

    // NULL behind the end, so that a walk ends although another thread removes entries.
    T at(size_t index) {
        std::shared_lock<std::shared_mutex> lock(mutex);
        return index < entries.size() ? entries[index] : nullptr;
    }

    template <typename F> T find(F && matches) {
        for (size_t i = 0; T entry = at(i); i++) {
            if (matches(entry)) {
                return entry;
            }
        }
        return nullptr;
    }

  private:
    std::shared_mutex mutex;
    std::vector<T> entries;
};

struct registry {
    ordered_set<ggml_backend_reg_t> backends;
    ordered_set<ggml_backend_dev_t> devices;

    registry() {
        smol_level_fix();
        smol_thread_stack();
        add(ggml_backend_cpu_reg());
    }

    void add(ggml_backend_reg_t backend) {
        if (!backend || !backends.add(backend)) {
            return;
        }
        const size_t n = ggml_backend_reg_dev_count(backend);
        for (size_t i = 0; i < n; i++) {
            devices.add(ggml_backend_reg_dev_get(backend, i));
        }
    }

    void remove(ggml_backend_reg_t backend) {
        if (!backends.remove(backend)) {
            return;
        }
        const auto is_of_backend = [&](ggml_backend_dev_t dev) { return ggml_backend_dev_backend_reg(dev) == backend; };
        while (ggml_backend_dev_t dev = devices.find(is_of_backend)) {
            devices.remove(dev);
        }
    }
};

// Made by the first use; when that throws, the next use tries again. Never destroyed, as threads may outlive static
// objects.
registry & the_registry() {
    static registry & instance = *new registry;
    return instance;
}

// Runs a function on the registry; `failed` when something throws (no memory, no lock).
template <typename T, typename F> T with_registry(const char * caller, T failed, F && f) noexcept {
    try {
        return f(the_registry());
    } catch (const std::exception & e) {
        GGML_LOG_ERROR("%s: %s\n", caller, e.what());
    } catch (...) {
        GGML_LOG_ERROR("%s: unknown exception\n", caller);
    }
    return failed;
}

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
}

bool same_name(const char * a, const char * b) {
    if (!a || !b) {
        return false;
    }
    while (*a && lower(*a) == lower(*b)) {
        a++;
        b++;
    }
    return lower(*a) == lower(*b);
}

ggml_backend_t init(ggml_backend_dev_t dev, const char * params) {
    return dev ? ggml_backend_dev_init(dev, params) : nullptr;
}

} // namespace

void ggml_backend_register(ggml_backend_reg_t reg) {
    with_registry(__func__, false, [&](registry & r) {
        r.add(reg);
        return true;
    });
}

void ggml_backend_device_register(ggml_backend_dev_t device) {
    with_registry(__func__, false, [&](registry & r) { return device && r.devices.add(device); });
}

size_t ggml_backend_reg_count(void) {
    return with_registry(__func__, size_t(0), [](registry & r) { return r.backends.size(); });
}

ggml_backend_reg_t ggml_backend_reg_get(size_t index) {
    const ggml_backend_reg_t reg =
        with_registry(__func__, ggml_backend_reg_t(nullptr), [&](registry & r) { return r.backends.at(index); });
    GGML_ASSERT(reg && "no backend has this index");
    return reg;
}

ggml_backend_reg_t ggml_backend_reg_by_name(const char * name) {
    return with_registry(__func__, ggml_backend_reg_t(nullptr), [&](registry & r) {
        return r.backends.find([&](ggml_backend_reg_t reg) { return same_name(ggml_backend_reg_name(reg), name); });
    });
}

size_t ggml_backend_dev_count(void) {
    return with_registry(__func__, size_t(0), [](registry & r) { return r.devices.size(); });
}

ggml_backend_dev_t ggml_backend_dev_get(size_t index) {
    const ggml_backend_dev_t dev =
        with_registry(__func__, ggml_backend_dev_t(nullptr), [&](registry & r) { return r.devices.at(index); });
    GGML_ASSERT(dev && "no device has this index");
    return dev;
}

ggml_backend_dev_t ggml_backend_dev_by_name(const char * name) {
    return with_registry(__func__, ggml_backend_dev_t(nullptr), [&](registry & r) {
        return r.devices.find([&](ggml_backend_dev_t dev) { return same_name(ggml_backend_dev_name(dev), name); });
    });
}

ggml_backend_dev_t ggml_backend_dev_by_type(enum ggml_backend_dev_type type) {
    return with_registry(__func__, ggml_backend_dev_t(nullptr), [&](registry & r) {
        return r.devices.find([&](ggml_backend_dev_t dev) { return ggml_backend_dev_type(dev) == type; });
    });
}

ggml_backend_t ggml_backend_init_by_name(const char * name, const char * params) {
    return init(ggml_backend_dev_by_name(name), params);
}

ggml_backend_t ggml_backend_init_by_type(enum ggml_backend_dev_type type, const char * params) {
    return init(ggml_backend_dev_by_type(type), params);
}

ggml_backend_t ggml_backend_init_best(void) {
    for (const enum ggml_backend_dev_type type :
         {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU, GGML_BACKEND_DEVICE_TYPE_CPU}) {
        if (const ggml_backend_dev_t dev = ggml_backend_dev_by_type(type)) {
            return init(dev, nullptr);
        }
    }
    return nullptr;
}

ggml_backend_reg_t ggml_backend_load(const char * path) {
    GGML_LOG_ERROR("%s: %s is not loaded: this build has no backend libraries; link the backend and call "
                   "ggml_backend_register\n",
                   __func__, path ? path : "(null)");
    return nullptr;
}

void ggml_backend_unload(ggml_backend_reg_t reg) {
    with_registry(__func__, false, [&](registry & r) {
        r.remove(reg);
        return true;
    });
}

// There is nothing on disk to search: the CPU backend is there from the start.
void ggml_backend_load_all(void) {}

void ggml_backend_load_all_from_path(const char *) {}

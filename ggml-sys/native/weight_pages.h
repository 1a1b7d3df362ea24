// Huge pages under weights that lie in memory, and under caches of contexts. Every token reads all of them once, so that with
// pages of 4 KiB a good part of the time goes into translating addresses.
#pragma once

// Has the CPU backend ask for huge pages where a buffer is allocated within a smol_weight_pages, or is cleared as a whole.
void smol_weight_pages_init();

// While one exists, buffers that this thread allocates hold weights: each of their bytes will be used.
class smol_weight_pages {
public:
    smol_weight_pages() noexcept;
    ~smol_weight_pages();
    smol_weight_pages(const smol_weight_pages &) = delete;
    smol_weight_pages & operator=(const smol_weight_pages &) = delete;

private:
    bool before;
};

//! Instruction set extensions that matter to the kernels.

/// Returns the names of the extensions that both the CPU and the operating system offer,
/// in the names of `std::arch`'s detection macros. Empty where they cannot be detected.
pub fn cpu_features() -> Vec<&'static str> {
    // The macros ask the OS too: CPUID of some virtual machines shows AMX and AVX-512 state
    // that the OS has not enabled.
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    macro_rules! detected {
        ($($name:tt),* $(,)?) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
        };
    }
    #[cfg(target_arch = "aarch64")]
    macro_rules! detected {
        ($($name:tt),* $(,)?) => {
            [$(($name, std::arch::is_aarch64_feature_detected!($name))),*]
        };
    }

    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let features: &[(&'static str, bool)] = &detected![
        "ssse3",
        "sse4.1",
        "sse4.2",
        "popcnt",
        "avx",
        "f16c",
        "fma",
        "bmi2",
        "avx2",
        "avxvnni",
        "avx512f",
        "avx512cd",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512vbmi",
        "avx512vnni",
        "avx512bf16",
        "avx512fp16",
    ];
    #[cfg(target_arch = "aarch64")]
    let features: &[(&'static str, bool)] =
        &detected!["neon", "lse", "rdm", "fp16", "dotprod", "bf16", "i8mm", "sve", "sve2"];
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    let features: &[(&'static str, bool)] = &[];

    features.iter().filter(|(_, there)| *there).map(|(name, _)| *name).collect()
}

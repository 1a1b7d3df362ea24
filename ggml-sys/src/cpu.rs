//! Checks the CPU level that was built in against the CPU that runs.

use crate::build_info;
use std::fmt;

/// The running CPU lacks features that this build uses without asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFeatures {
    /// CPU level of the build.
    pub level: &'static str,
    /// The missing features, as `std::arch` spells them.
    pub missing: Vec<&'static str>,
}

impl fmt::Display for MissingFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this program was built for the CPU level {}, but this CPU lacks {}; rebuild with GGML_SYS_CPU={} or another \
             level that this CPU has",
            self.level,
            self.missing.join(", "),
            if cfg!(target_arch = "aarch64") { "armv8-a" } else { "x86-64-v2" },
        )
    }
}

impl std::error::Error for MissingFeatures {}

/// Checks that the running CPU has every feature that the kernels were compiled for.
///
/// Call it before the first call into ggml: a missing feature would end the process with SIGILL.
///
/// # Errors
///
/// [`MissingFeatures`] names the level of the build and what the CPU lacks.
pub fn check() -> Result<(), MissingFeatures> {
    check_against(build_info().cpu_features, has)
}

fn check_against(
    required: &[&'static str],
    has: impl Fn(&str) -> bool,
) -> Result<(), MissingFeatures> {
    let missing: Vec<_> = required.iter().copied().filter(|feature| !has(feature)).collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(MissingFeatures { level: build_info().cpu_level, missing })
    }
}

/// Features of the running CPU, out of those that a level can need, each with whether it is there.
pub fn features() -> Vec<(&'static str, bool)> {
    KNOWN.iter().map(|name| (*name, has(name))).collect()
}

macro_rules! detect {
    ($macro:ident: $($name:tt),* $(,)?) => {
        const KNOWN: &[&str] = &[$($name),*];
        fn has(feature: &str) -> bool {
            match feature {
                $($name => std::arch::$macro!($name),)*
                _ => false,
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
detect!(is_x86_feature_detected: "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "f16c", "fma", "bmi2", "avx2", "avxvnni",
    "avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw", "avx512vbmi", "avx512vnni", "avx512bf16");

#[cfg(target_arch = "aarch64")]
detect!(is_aarch64_feature_detected: "lse", "rdm", "dotprod", "fp16", "i8mm", "bf16", "sve", "sve2");

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const KNOWN: &[&str] = &[];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has(_: &str) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_passes() {
        check().expect("tests run on the machine that they were built for");
    }

    #[test]
    fn missing_features_are_named() {
        let error = check_against(&["dotprod", "fp16"], |feature| feature == "fp16")
            .expect_err("dotprod is missing");
        assert_eq!(error.missing, ["dotprod"]);
        assert!(error.to_string().contains("lacks dotprod;"), "{error}");
    }

    #[test]
    fn every_required_feature_can_be_detected() {
        for feature in build_info().cpu_features {
            assert!(KNOWN.contains(feature), "{feature} is required but never detected");
        }
    }
}

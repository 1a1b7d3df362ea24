//! Which CPU levels are built in, which the running CPU can run, and the choice between them.

use crate::{CpuLevel, SMOL_OK, build_info, smol_level_select, smol_level_selected};
use std::fmt;
use std::sync::OnceLock;

/// The running CPU lacks features that the lowest level of this build uses without asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingFeatures {
    /// The lowest CPU level of the build.
    pub level: &'static str,
    /// The missing features, as `std::arch` spells them.
    pub missing: Vec<&'static str>,
}

impl fmt::Display for MissingFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this program was built for the CPU level {}, but this CPU lacks {}; rebuild with GGML_SYS_CPU={} or another \
             level that this CPU has, or with the feature multi-level",
            self.level,
            self.missing.join(", "),
            if cfg!(target_arch = "aarch64") { "armv8-a" } else { "x86-64-v2" },
        )
    }
}

impl std::error::Error for MissingFeatures {}

/// Checks that the running CPU can run this build, and selects the highest CPU level that it has.
///
/// Call it before the first call into ggml: a missing feature would end the process with SIGILL, and with the feature
/// `multi-level` the lowest level runs until another one is selected. Later calls return what the first one found.
///
/// # Errors
///
/// [`MissingFeatures`] names the lowest level of the build and what the CPU lacks.
pub fn check() -> Result<&'static CpuLevel, MissingFeatures> {
    static CHECKED: OnceLock<Result<(), MissingFeatures>> = OnceLock::new();
    CHECKED
        .get_or_init(|| {
            let best = best_of(build_info().cpu_levels, has)?;
            // Too late only if llama.cpp is in use already: then it stays with what it has.
            apply(best);
            Ok(())
        })
        .clone()?;
    Ok(selected())
}

/// Selects a CPU level by name instead of the highest one.
///
/// # Errors
///
/// The build has no such level, the CPU cannot run it, or llama.cpp is in use already.
pub fn select(name: &str) -> Result<&'static CpuLevel, SelectError> {
    let levels = build_info().cpu_levels;
    let index = levels.iter().position(|level| level.name == name).ok_or_else(|| {
        let known = levels.iter().map(|level| level.name).collect::<Vec<_>>().join(", ");
        SelectError(format!("this build has no CPU level {name}; it has {known}"))
    })?;
    best_of(&levels[index..=index], has)
        .map_err(|e| SelectError(format!("the CPU lacks {} for {name}", e.missing.join(", "))))?;
    // The choice of check() must not come after this one.
    check().map_err(|e| SelectError(e.to_string()))?;
    if apply(index) {
        Ok(selected())
    } else {
        Err(SelectError(format!("too late for {name}: llama.cpp is in use already")))
    }
}

/// Why a CPU level could not be selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectError(String);

impl fmt::Display for SelectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SelectError {}

/// The CPU level whose code runs.
pub fn selected() -> &'static CpuLevel {
    // SAFETY: takes nothing and reads a number under a lock (native/levels.cpp, smol_level_selected).
    let index = unsafe { smol_level_selected() };
    &build_info().cpu_levels[index as usize]
}

fn apply(index: usize) -> bool {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    // SAFETY: checks the number, and refuses once the CPU backend is registered (native/levels.cpp, smol_level_select).
    unsafe { smol_level_select(index) == SMOL_OK }
}

/// Index of the highest level that a CPU can run.
fn best_of(levels: &[CpuLevel], has: impl Fn(&str) -> bool) -> Result<usize, MissingFeatures> {
    let missing = |level: &CpuLevel| -> Vec<_> {
        level.features.iter().copied().filter(|feature| !has(feature)).collect()
    };
    levels
        .iter()
        .rposition(|level| missing(level).is_empty())
        .ok_or_else(|| MissingFeatures { level: levels[0].name, missing: missing(&levels[0]) })
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

    const LOW: CpuLevel = CpuLevel { name: "low", flags: "", features: &["dotprod"] };
    const HIGH: CpuLevel = CpuLevel { name: "high", flags: "", features: &["dotprod", "fp16"] };

    #[test]
    fn this_machine_passes_and_has_the_highest_level_that_it_can() {
        let level = check().expect("tests run on the machine that they were built for");
        assert_eq!(level, selected());
        let levels = build_info().cpu_levels;
        let higher = levels.iter().rev().take_while(|other| *other != level);
        for other in higher {
            assert!(
                other.features.iter().any(|feature| !has(feature)),
                "{other:?} was passed over"
            );
        }
    }

    #[test]
    fn the_highest_level_wins() {
        let best =
            |features: &'static [&str]| best_of(&[LOW, HIGH], |name| features.contains(&name));
        assert_eq!(best(&["dotprod", "fp16"]), Ok(1));
        assert_eq!(best(&["dotprod"]), Ok(0));
    }

    #[test]
    fn missing_features_are_named() {
        let error = best_of(&[LOW, HIGH], |feature| feature == "fp16").expect_err("no dotprod");
        assert_eq!(error.missing, ["dotprod"]);
        assert!(error.to_string().contains("lacks dotprod;"), "{error}");
    }

    #[test]
    fn every_required_feature_can_be_detected() {
        for feature in build_info().cpu_levels.iter().flat_map(|level| level.features) {
            assert!(KNOWN.contains(feature), "{feature} is required but never detected");
        }
    }

    #[test]
    fn an_unknown_level_is_refused_with_the_known_ones() {
        let error = select("z80").expect_err("no such level").to_string();
        assert!(
            error.contains("z80") && error.contains(build_info().cpu_levels[0].name),
            "{error}"
        );
    }
}

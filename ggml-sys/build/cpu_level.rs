//! The CPU level: which instructions ggml's kernels may use, spelled `BASE[+FEATURE]...`, or the preset of a device.
//!
//! `-march=native` is never used: on virtual machines it enables what CPUID shows (AMX, for one) although the system
//! has not enabled it, and the first matmul dies with SIGILL. `native` asks the detection of the Rust standard library,
//! which also asks the system.

use crate::vars::Vars;

/// A level as the compiler and the start-up check need it.
#[derive(Debug)]
pub struct CpuLevel {
    /// Canonical spelling, for example `x86-64-v4+vnni`.
    pub name: String,
    /// Compiler flags for the kernels, as GCC spells them; `spelling` puts in those of the compiler at hand.
    pub flags: Vec<String>,
    /// Features that the running CPU must have, as `std::arch` spells them.
    pub required: Vec<&'static str>,
    /// The preset that the level comes from.
    pub preset: Option<&'static str>,
    /// The CPU core that instructions are scheduled for, as clang spells it; it allows no instruction.
    pub tune: Option<&'static str>,
}

/// A device, or a family of devices with the same kind of core.
struct Preset {
    name: &'static str,
    arch: &'static str,
    level: &'static str,
    tune: &'static str,
}

const PRESETS: &[Preset] = &[
    // Cortex-A55, the core of most TV boxes and cheap boards since 2019 (S905X3, S905X4, RK3566, RK3568).
    Preset { name: "tvbox", arch: "aarch64", level: "armv8.2-a+dotprod+fp16", tune: "cortex-a55" },
    // Apple A7, the first 64-bit core: iPad Air, iPad mini 2 and 3, iPhone 5s.
    Preset { name: "ipad-air", arch: "aarch64", level: "armv8-a", tune: "apple-a7" },
    Preset { name: "rpi4", arch: "aarch64", level: "armv8-a", tune: "cortex-a72" },
    Preset { name: "rpi5", arch: "aarch64", level: "armv8.2-a+dotprod+fp16", tune: "cortex-a76" },
];

struct Feature {
    name: &'static str,
    /// Flags on x86; empty on ARM, where the name goes into `-march`.
    flags: &'static [&'static str],
    required: &'static [&'static str],
}

const fn feature(
    name: &'static str,
    flags: &'static [&'static str],
    required: &'static [&'static str],
) -> Feature {
    Feature { name, flags, required }
}

const X86: &[Feature] = &[
    feature("sse4.2", &["-msse4.2"], &["ssse3", "sse4.1", "sse4.2", "popcnt"]),
    feature("avx", &["-mavx"], &["avx"]),
    feature("f16c", &["-mf16c"], &["f16c"]),
    feature("fma", &["-mfma"], &["fma"]),
    feature("bmi2", &["-mbmi2"], &["bmi2"]),
    feature("avx2", &["-mavx2"], &["avx2"]),
    feature("avxvnni", &["-mavxvnni"], &["avxvnni"]),
    feature(
        "avx512",
        &["-mavx512f", "-mavx512cd", "-mavx512vl", "-mavx512dq", "-mavx512bw"],
        &["avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"],
    ),
    feature("vbmi", &["-mavx512vbmi"], &["avx512vbmi"]),
    feature("vnni", &["-mavx512vnni"], &["avx512vnni"]),
    feature("bf16", &["-mavx512bf16"], &["avx512bf16"]),
];

const X86_BASES: &[(&str, &[&str])] = &[
    ("x86-64", &[]),
    ("x86-64-v2", &["sse4.2"]),
    ("x86-64-v3", &["sse4.2", "avx", "f16c", "fma", "bmi2", "avx2"]),
    ("x86-64-v4", &["sse4.2", "avx", "f16c", "fma", "bmi2", "avx2", "avx512"]),
];

const ARM: &[Feature] = &[
    feature("dotprod", &[], &["dotprod"]),
    feature("fp16", &[], &["fp16"]),
    feature("i8mm", &[], &["i8mm"]),
    feature("bf16", &[], &["bf16"]),
    // Compilers turn fp16 on with sve: the architecture has no CPU with one and not the other.
    feature("sve", &[], &["sve", "fp16"]),
    feature("sve2", &[], &["sve2", "sve", "fp16"]),
];

/// Each base with the features that it implies and that std can detect.
const ARM_BASES: &[(&str, &[&str])] = &[
    ("armv8-a", &[]),
    ("armv8.1-a", &["lse", "rdm"]),
    ("armv8.2-a", &["lse", "rdm"]),
    ("armv8.4-a", &["lse", "rdm", "dotprod"]),
    ("armv8.6-a", &["lse", "rdm", "dotprod", "i8mm", "bf16"]),
    ("armv9-a", &["lse", "rdm", "dotprod", "fp16", "sve", "sve2"]),
];

impl CpuLevel {
    fn plain(name: &str) -> Self {
        CpuLevel {
            name: name.to_owned(),
            flags: vec![],
            required: vec![],
            preset: None,
            tune: None,
        }
    }

    /// The level of that name, for an architecture.
    pub fn parse(name: &str, arch: &str) -> Result<Self, String> {
        parse(name, arch)
    }

    /// What any machine of the target has.
    pub fn generic(vars: &Vars) -> Result<Self, String> {
        parse(generic(&vars.target_arch, &vars.target_os), &vars.target_arch)
    }

    /// The level that the user or the target asks for.
    pub fn resolve(vars: &Vars) -> Result<Self, String> {
        let wanted = vars.cpu.as_deref().unwrap_or("default");
        if let Some(preset) = PRESETS.iter().find(|preset| preset.name == wanted) {
            return preset.resolve(&vars.target_arch);
        }
        let name = match wanted {
            "native" if vars.host != vars.target => {
                return Err(format!(
                    "GGML_SYS_CPU=native makes no sense for a cross build ({} on {})",
                    vars.target, vars.host
                ));
            }
            "native" => native(),
            "default" if vars.host == vars.target => native(),
            "default" | "generic" => generic(&vars.target_arch, &vars.target_os).to_owned(),
            name => name.to_owned(),
        };
        let mut level = parse(&name, &vars.target_arch)?;
        level.preset = (wanted == "generic").then_some("generic");
        Ok(level)
    }
}

impl Preset {
    fn resolve(&self, arch: &str) -> Result<CpuLevel, String> {
        if self.arch != arch {
            return Err(format!(
                "GGML_SYS_CPU={} is the preset of a device with {} ({}), and this build is for {arch}: pass `--target` \
                 with a triple that starts with {}, or unset GGML_SYS_CPU",
                self.name, self.arch, self.level, self.arch
            ));
        }
        let level = parse(self.level, arch)?;
        Ok(CpuLevel { preset: Some(self.name), tune: Some(self.tune), ..level })
    }
}

/// What any machine of a target has.
fn generic(arch: &str, os: &str) -> &'static str {
    match (arch, os) {
        ("x86_64", _) => "x86-64-v2",
        ("aarch64", "macos") => "armv8.4-a+fp16",
        ("aarch64", _) => "armv8-a",
        _ => "generic",
    }
}

fn parse(name: &str, arch: &str) -> Result<CpuLevel, String> {
    let (features, bases) = match arch {
        "x86_64" => (X86, X86_BASES),
        "aarch64" => (ARM, ARM_BASES),
        _ if name == "generic" => {
            return Ok(CpuLevel::plain(name));
        }
        _ => return Err(format!("GGML_SYS_CPU={name}: only `generic` is known for {arch}")),
    };
    let unknown = |part: &str| {
        let bases: Vec<_> = bases.iter().map(|(base, _)| *base).collect();
        let features: Vec<_> = features.iter().map(|feature| feature.name).collect();
        let presets = PRESETS.iter().filter(|preset| preset.arch == arch);
        let presets: String = presets.map(|preset| format!(", {}", preset.name)).collect();
        format!(
            "GGML_SYS_CPU={name}: `{part}` is not known for {arch}; a level is BASE[+FEATURE]... with a base of {} and \
             features of {}, or one of native, generic{presets}",
            bases.join(", "),
            features.join(", "),
        )
    };
    let mut parts = name.split('+');
    let base = parts.next().unwrap_or_default();
    let (_, implied) =
        bases.iter().find(|(known, _)| *known == base).ok_or_else(|| unknown(base))?;
    let mut level = CpuLevel::plain(name);
    if arch == "aarch64" {
        level.flags.push(format!("-march={name}"));
    }
    for part in implied.iter().copied().chain(parts) {
        match features.iter().find(|feature| feature.name == part) {
            Some(feature) => {
                level.flags.extend(feature.flags.iter().map(|flag| (*flag).to_owned()));
                level.required.extend(feature.required);
            }
            // Implied by the base, not to be chosen on its own.
            None => level
                .required
                .push(implied.iter().find(|i| **i == part).ok_or_else(|| unknown(part))?),
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    level.required.retain(|feature| seen.insert(*feature));
    Ok(level)
}

/// The highest level of the machine that runs this build script.
#[cfg(target_arch = "x86_64")]
fn native() -> String {
    macro_rules! has {
        ($($name:tt),*) => {
            [$(($name, is_x86_feature_detected!($name))),*]
        };
    }
    let detected = has!(
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
        "avx512vl",
        "avx512dq",
        "avx512bw",
        "avx512vbmi",
        "avx512vnni",
        "avx512bf16"
    );
    spell(X86, X86_BASES, |name| detected.iter().any(|(known, on)| *known == name && *on))
}

/// The highest level of the machine that runs this build script.
#[cfg(target_arch = "aarch64")]
fn native() -> String {
    use std::arch::is_aarch64_feature_detected as detected;
    let found = [
        ("dotprod", detected!("dotprod")),
        ("fp16", detected!("fp16")),
        ("i8mm", detected!("i8mm")),
        ("bf16", detected!("bf16")),
        ("sve", detected!("sve")),
        ("sve2", detected!("sve2")),
        ("lse", detected!("lse")),
        ("rdm", detected!("rdm")),
    ];
    // armv9-a would let the compiler use more than std can check.
    spell(ARM, &ARM_BASES[..5], |name| found.iter().any(|(known, on)| *known == name && *on))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn native() -> String {
    "generic".to_owned()
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn spell(features: &[Feature], bases: &[(&str, &[&str])], has: impl Fn(&str) -> bool) -> String {
    let on = |name: &str| match features.iter().find(|feature| feature.name == name) {
        Some(feature) => feature.required.iter().all(|required| has(required)),
        None => has(name),
    };
    let complete = |implied: &[&str]| implied.iter().all(|name| on(name));
    let (base, implied) =
        bases.iter().rev().find(|(_, implied)| complete(implied)).expect("the first base is empty");
    let mut name = (*base).to_owned();
    for feature in features {
        if on(feature.name) && !implied.contains(&feature.name) {
            name.push('+');
            name.push_str(feature.name);
        }
    }
    name
}

//! The flags of a CPU level as the compiler at hand spells them, checked by the macros that it then predefines.
//!
//! GCC and clang take `-march=armv8.2-a+dotprod+fp16`. zig refuses it and takes `-mcpu=generic+v8_2a+dotprod+fullfp16`,
//! and cargo-zigbuild's wrapper takes the former but forgets the base. ggml chooses its code by the macros: so they
//! decide which spelling is right, and a level that cannot be had exactly is an error. Too little would be slow code
//! under a promising name, too much would die with SIGILL on the device.

use crate::cpu_level::CpuLevel;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Macros with the feature of `std::arch` that each stands for. `None`: no level has it, so it must never be on.
const ARM: &[(&str, Option<&str>)] = &[
    ("__ARM_FEATURE_ATOMICS", Some("lse")),
    ("__ARM_FEATURE_QRDMX", Some("rdm")),
    ("__ARM_FEATURE_DOTPROD", Some("dotprod")),
    ("__ARM_FEATURE_FP16_VECTOR_ARITHMETIC", Some("fp16")),
    ("__ARM_FEATURE_MATMUL_INT8", Some("i8mm")),
    ("__ARM_FEATURE_BF16_VECTOR_ARITHMETIC", Some("bf16")),
    ("__ARM_FEATURE_SVE", Some("sve")),
    ("__ARM_FEATURE_SVE2", Some("sve2")),
    ("__ARM_FEATURE_SME", None),
];

/// Every Apple CPU has it, and Apple's clang turns it on at any level; a Raspberry Pi 4 lacks it.
const ARM_AES: (&str, Option<&str>) = ("__ARM_FEATURE_AES", None);

// Not popcnt: some compilers include it in SSE 4.2, some do not, and no kernel asks.
const X86: &[(&str, Option<&str>)] = &[
    ("__SSSE3__", Some("ssse3")),
    ("__SSE4_1__", Some("sse4.1")),
    ("__SSE4_2__", Some("sse4.2")),
    ("__AVX__", Some("avx")),
    ("__F16C__", Some("f16c")),
    ("__FMA__", Some("fma")),
    ("__BMI2__", Some("bmi2")),
    ("__AVX2__", Some("avx2")),
    ("__AVXVNNI__", Some("avxvnni")),
    ("__AVX512F__", Some("avx512f")),
    ("__AVX512CD__", Some("avx512cd")),
    ("__AVX512VL__", Some("avx512vl")),
    ("__AVX512DQ__", Some("avx512dq")),
    ("__AVX512BW__", Some("avx512bw")),
    ("__AVX512VBMI__", Some("avx512vbmi")),
    ("__AVX512VNNI__", Some("avx512vnni")),
    ("__AVX512BF16__", Some("avx512bf16")),
    ("__AVX512FP16__", None),
    ("__AVXVNNIINT8__", None),
    ("__AMX_TILE__", None),
    ("__AMX_INT8__", None),
];

/// Where the code is to run.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    pub arch: &'a str,
    pub os: &'a str,
}

/// A way to start a compiler, with all flags but those of the level.
pub type Compiler<'a> = &'a dyn Fn() -> Command;

/// Puts the flags into `level` that make all of `compilers` generate exactly its instructions, and those that tune.
/// Returns a warning when the compilers cannot tune for the level's core. `empty` is an empty file.
///
/// # Errors
///
/// No known spelling gives the level.
pub fn choose(
    level: &mut CpuLevel,
    target: Target<'_>,
    compilers: &[Compiler<'_>],
    empty: &Path,
) -> Result<Option<String>, String> {
    let wants = Wants::new(level, target);
    let mut refused = Vec::new();
    let check = |flags: &[String]| {
        compilers.iter().try_for_each(|compiler| wants.check(&macros(compiler(), flags, empty)?))
    };
    let mut chosen = None;
    for flags in candidates(level, target) {
        match check(&flags) {
            Ok(()) => {
                chosen = Some(flags);
                break;
            }
            Err(why) => refused.push(format!("\n  {}: {why}", spoken(&flags))),
        }
    }
    let Some(flags) = chosen else {
        return Err(format!(
            "the C and C++ compilers (CC, CXX) cannot compile for the CPU level {}:{}\nUse a newer compiler, ask for \
             another level with GGML_SYS_CPU, and leave -march, -mcpu and -mtune out of CFLAGS and CXXFLAGS.",
            level.name,
            refused.concat(),
        ));
    };
    level.flags = flags;
    let Some(tune) = level.tune else { return Ok(None) };
    for flags in tunings(tune) {
        let flags = [level.flags.clone(), flags].concat();
        // zig takes `-mtune=` for `-mcpu=`, which allows instructions: the macros tell.
        if check(&flags).is_ok() {
            level.flags = flags;
            return Ok(None);
        }
    }
    level.tune = None;
    Ok(Some(format!(
        "the compiler cannot tune for {tune}: the code will run there, but not be scheduled for it"
    )))
}

/// The ways to ask for a level, the most common first.
fn candidates(level: &CpuLevel, target: Target<'_>) -> Vec<Vec<String>> {
    let mut candidates = vec![level.flags.clone()];
    let before = |flag: &str| {
        let mut flags = vec![flag.to_owned()];
        flags.extend(level.flags.iter().cloned());
        flags
    };
    match target.arch {
        // Against a compiler that was configured for more, as some distributions do; the second is zig's.
        "x86_64" => candidates.extend([before("-march=x86-64"), before("-mcpu=x86_64")]),
        "aarch64" => {
            let (base, asked) = level.name.split_once('+').unwrap_or((&level.name, ""));
            // Older clangs leave out what a base implies.
            let names = ["dotprod", "fp16", "i8mm", "bf16", "sve", "sve2"];
            let all: Vec<_> =
                names.into_iter().filter(|name| level.required.contains(name)).collect();
            let plus = |spell: &dyn Fn(&str) -> String| -> String {
                all.iter().map(|name| format!("+{}", spell(name))).collect()
            };
            if asked.split('+').filter(|name| !name.is_empty()).count() != all.len() {
                candidates.push(vec![format!("-march={base}{}", plus(&str::to_owned))]);
            }
            let zig = |name: &str| if name == "fp16" { "fullfp16" } else { name }.to_owned();
            // `armv8.2-a` -> `v8_2a`; `generic` alone is armv8-a.
            let version = base.trim_start_matches("armv").trim_end_matches("-a");
            let version = match version {
                "8" => String::new(),
                version => format!("+v{}a", version.replace('.', "_")),
            };
            candidates.push(vec![format!("-mcpu=generic{version}{}", plus(&zig))]);
        }
        _ => {}
    }
    candidates
}

/// The ways to schedule for a core. The first is for clang and zig, and means what it says in every version.
fn tunings(core: &str) -> [Vec<String>; 2] {
    let own = ["-Xclang", "-tune-cpu", "-Xclang", core];
    [own.map(str::to_owned).to_vec(), vec![format!("-mtune={core}")]]
}

fn spoken(flags: &[String]) -> String {
    if flags.is_empty() { "no flags".to_owned() } else { flags.join(" ") }
}

/// What must be and what must not be predefined.
struct Wants {
    wanted: Vec<&'static str>,
    unwanted: Vec<&'static str>,
}

impl Wants {
    fn new(level: &CpuLevel, target: Target<'_>) -> Self {
        let mut known = match target.arch {
            "x86_64" => X86.to_vec(),
            "aarch64" => ARM.to_vec(),
            _ => vec![],
        };
        if target.arch == "aarch64" && !matches!(target.os, "macos" | "ios") {
            known.push(ARM_AES);
        }
        let (wanted, unwanted): (Vec<_>, Vec<_>) = known
            .into_iter()
            .partition(|(_, feature)| feature.is_some_and(|f| level.required.contains(&f)));
        let names = |list: Vec<(&'static str, _)>| list.into_iter().map(|(name, _)| name).collect();
        Wants { wanted: names(wanted), unwanted: names(unwanted) }
    }

    fn check(&self, defined: &BTreeSet<String>) -> Result<(), String> {
        let missing: Vec<_> =
            self.wanted.iter().copied().filter(|name| !defined.contains(*name)).collect();
        let surplus: Vec<_> =
            self.unwanted.iter().copied().filter(|name| defined.contains(*name)).collect();
        match (missing.is_empty(), surplus.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("accepted, but it does not define {}", missing.join(", "))),
            (true, false) => Err(format!("accepted, but it also defines {}", surplus.join(", "))),
        }
    }
}

/// The macros that a compiler predefines under `flags`.
fn macros(
    mut compiler: Command,
    flags: &[String],
    empty: &Path,
) -> Result<BTreeSet<String>, String> {
    let output = compiler
        .args(flags)
        .args(["-dM", "-E"])
        .arg(empty)
        .output()
        .map_err(|e| format!("{}: {e}", compiler.get_program().to_string_lossy()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("error")).or_else(|| text.lines().next());
        return Err(line.unwrap_or("refused without a message").trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text.lines().filter_map(|line| line.strip_prefix("#define ")?.split(' ').next());
    Ok(names.map(str::to_owned).collect())
}

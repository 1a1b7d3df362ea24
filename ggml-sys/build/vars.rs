//! Every variable that the build reads, in one place.

use crate::android::{self, AndroidVars, Ndk};
use crate::apple;
use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

/// A tree of llama.cpp to use instead of fetching the pinned package; copied, never modified.
const LLAMA_DIR: &str = "GGML_SYS_LLAMA_DIR";
/// CPU level to compile for: `native`, `generic`, a device's preset, or BASE[+FEATURE]..., see `cpu_level`.
const CPU: &str = "GGML_SYS_CPU";

/// What cargo and the user told this build.
pub struct Vars {
    pub out_dir: PathBuf,
    pub manifest_dir: PathBuf,
    pub cargo: PathBuf,
    pub target: String,
    pub host: String,
    pub target_arch: String,
    pub target_os: String,
    pub target_env: String,
    pub features: BTreeSet<String>,
    pub docs_rs: bool,
    pub llama_dir: Option<PathBuf>,
    pub cpu: Option<String>,
    /// `IPHONEOS_DEPLOYMENT_TARGET`.
    pub ios_version: Option<String>,
    pub android: AndroidVars,
    /// The NDK that these lead to.
    pub ndk: Option<Ndk>,
    /// The C++ standard library is chosen by `CXXSTDLIB`, as the `cc` crate documents.
    pub stdlib_is_set: bool,
}

impl Vars {
    pub fn read() -> Self {
        for name in [LLAMA_DIR, CPU, apple::VARIABLE, "DOCS_RS"] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let cargo = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
        let tracked = |name: &'static str| {
            println!("cargo::rerun-if-env-changed={name}");
            set(name)
        };
        let dirs = |names: [&'static str; 2]| {
            names.into_iter().filter_map(|name| Some((name, tracked(name)?.into()))).collect()
        };
        let target = cargo("TARGET");
        // Under the names that `cc` reads for a target.
        let tool_is_set = |tool: &str| {
            let mut names =
                [&target, &target.replace('-', "_")].map(|name| format!("{tool}_{name}")).to_vec();
            names.extend([format!("TARGET_{tool}"), tool.to_owned()]);
            for name in &names {
                println!("cargo::rerun-if-env-changed={name}");
            }
            names.iter().any(|name| set(name).is_some())
        };
        let target_os = cargo("CARGO_CFG_TARGET_OS");
        let android = match target_os.as_str() {
            "android" => AndroidVars {
                compiler_is_set: tool_is_set("CXX"),
                api: tracked(android::API),
                ndk_dirs: dirs(android::NDK_DIRS),
                sdk_dirs: dirs(android::SDK_DIRS),
            },
            _ => AndroidVars::default(),
        };
        Vars {
            out_dir: cargo("OUT_DIR").into(),
            manifest_dir: cargo("CARGO_MANIFEST_DIR").into(),
            cargo: cargo("CARGO").into(),
            stdlib_is_set: tool_is_set("CXXSTDLIB"),
            android,
            ndk: None,
            target,
            host: cargo("HOST"),
            target_arch: cargo("CARGO_CFG_TARGET_ARCH"),
            target_os,
            // Absent where a target has no variants.
            target_env: set("CARGO_CFG_TARGET_ENV").unwrap_or_default(),
            features: env::vars()
                .filter_map(|(name, _)| name.strip_prefix("CARGO_FEATURE_").map(str::to_owned))
                .map(|name| name.to_lowercase().replace('_', "-"))
                .collect(),
            docs_rs: set("DOCS_RS").is_some(),
            llama_dir: set(LLAMA_DIR).map(PathBuf::from),
            cpu: set(CPU),
            ios_version: set(apple::VARIABLE),
        }
    }
}

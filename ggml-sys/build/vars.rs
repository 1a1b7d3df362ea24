//! Every variable that the build reads, in one place.

use crate::apple;
use std::collections::BTreeSet;
use std::env;
use std::path::PathBuf;

/// A tree of llama.cpp to use instead of fetching the pinned package; copied, never modified.
const LLAMA_DIR: &str = "GGML_SYS_LLAMA_DIR";
/// CPU level to compile for: `native`, or BASE[+FEATURE]..., see `cpu_level`.
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
    pub features: BTreeSet<String>,
    pub docs_rs: bool,
    pub llama_dir: Option<PathBuf>,
    pub cpu: Option<String>,
    /// `IPHONEOS_DEPLOYMENT_TARGET`.
    pub ios_version: Option<String>,
}

impl Vars {
    pub fn read() -> Self {
        for name in [LLAMA_DIR, CPU, apple::VARIABLE, "DOCS_RS"] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let cargo = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
        Vars {
            out_dir: cargo("OUT_DIR").into(),
            manifest_dir: cargo("CARGO_MANIFEST_DIR").into(),
            cargo: cargo("CARGO").into(),
            target: cargo("TARGET"),
            host: cargo("HOST"),
            target_arch: cargo("CARGO_CFG_TARGET_ARCH"),
            target_os: cargo("CARGO_CFG_TARGET_OS"),
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

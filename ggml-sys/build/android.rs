//! The compilers of the Android NDK, found where Android's own tools look for it.

use crate::vars::Vars;
use std::fs;
use std::path::{Path, PathBuf};

/// Lowest Android API level to run on; the NDK has one compiler per level.
pub const API: &str = "GGML_SYS_ANDROID_API";
/// Folders of an NDK, the first that is set counts.
pub const NDK_DIRS: [&str; 2] = ["ANDROID_NDK_HOME", "ANDROID_NDK_ROOT"];
/// Folders of an SDK, whose newest NDK counts.
pub const SDK_DIRS: [&str; 2] = ["ANDROID_HOME", "ANDROID_SDK_ROOT"];
/// Android 6.0; the devices with 64-bit cores that are still in use have it or later.
const DEFAULT_API: u32 = 23;
/// The first with 64-bit programs.
const OLDEST_API: u32 = 21;

/// What the environment says about Android.
#[derive(Default)]
pub struct AndroidVars {
    /// The compiler is chosen by `CXX` or one of its variants, as by cargo-ndk.
    pub compiler_is_set: bool,
    pub api: Option<String>,
    /// Values of `NDK_DIRS`, then of `SDK_DIRS`, with their names.
    pub ndk_dirs: Vec<(&'static str, PathBuf)>,
    pub sdk_dirs: Vec<(&'static str, PathBuf)>,
}

/// Programs of an NDK for one target and API level.
#[derive(Debug, Clone)]
pub struct Ndk {
    pub cc: PathBuf,
    pub cxx: PathBuf,
    pub ar: PathBuf,
}

/// The NDK to compile with; `None` for other systems, when the compiler is chosen already, and when there is no NDK.
pub fn find(vars: &Vars) -> Result<Option<Ndk>, String> {
    let android = &vars.android;
    if vars.target_os != "android" || android.compiler_is_set {
        return Ok(None);
    }
    let api = match &android.api {
        None => DEFAULT_API,
        Some(text) => text.parse().ok().filter(|api| *api >= OLDEST_API).ok_or_else(|| {
            format!("{API}={text} is no API level: it is a number from {OLDEST_API}, for example 28 for Android 9")
        })?,
    };
    let Some((origin, ndk)) = locate(android)? else { return Ok(None) };
    let bin = bin_of(&ndk).ok_or_else(|| {
        format!(
            "{origin} names {}, which is no NDK: toolchains/llvm/prebuilt/*/bin is missing; it must be the folder that \
             contains `toolchains`",
            ndk.display()
        )
    })?;
    let prefix = vars.target.replace("armv7-", "armv7a-");
    // On Windows the compilers are scripts.
    let tool = |name: &str, script: &str| {
        let plain = bin.join(name);
        let with_suffix = bin.join(format!("{name}{script}"));
        if with_suffix.is_file() { with_suffix } else { plain }
    };
    let found = Ndk {
        cc: tool(&format!("{prefix}{api}-clang"), ".cmd"),
        cxx: tool(&format!("{prefix}{api}-clang++"), ".cmd"),
        ar: tool("llvm-ar", ".exe"),
    };
    for program in [&found.cc, &found.cxx, &found.ar] {
        if !program.is_file() {
            return Err(format!(
                "the NDK of {origin} has no {}; it has API levels {}: choose one with {API}",
                program.display(),
                levels_in(&bin, &prefix),
            ));
        }
    }
    Ok(Some(found))
}

/// The folder of the NDK with the variable that led to it.
fn locate(android: &AndroidVars) -> Result<Option<(&'static str, PathBuf)>, String> {
    if let Some((name, dir)) = android.ndk_dirs.first() {
        return Ok(Some((name, dir.clone())));
    }
    let Some((name, sdk)) = android.sdk_dirs.first() else { return Ok(None) };
    let Ok(entries) = fs::read_dir(sdk.join("ndk")) else { return Ok(None) };
    let version = |path: &Path| -> Vec<u32> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('.').map_while(|part| part.parse().ok()).collect()
    };
    let installed = entries.filter_map(|entry| Some(entry.ok()?.path()));
    // As numbers: 27.0 is newer than 9.0.
    let newest = installed.filter(|dir| dir.is_dir()).max_by_key(|dir| version(dir));
    Ok(newest.map(|dir| (*name, dir)))
}

/// The folder with the programs for this machine.
fn bin_of(ndk: &Path) -> Option<PathBuf> {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    let mut folders: Vec<_> = fs::read_dir(ndk.join("toolchains/llvm/prebuilt"))
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|dir| dir.join("bin").is_dir())
        .collect();
    folders.sort();
    let is_ours = |dir: &&PathBuf| {
        dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(system))
    };
    folders.iter().find(is_ours).map(|dir| dir.join("bin"))
}

/// For a message: the API levels that an NDK has compilers for.
fn levels_in(bin: &Path, prefix: &str) -> String {
    let mut levels: Vec<u32> = fs::read_dir(bin)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().to_string_lossy().into_owned();
            name.strip_prefix(prefix)?.split('-').next()?.parse().ok()
        })
        .collect();
    levels.sort_unstable();
    levels.dedup();
    let levels: Vec<_> = levels.iter().map(u32::to_string).collect();
    if levels.is_empty() { "none for this target".to_owned() } else { levels.join(", ") }
}

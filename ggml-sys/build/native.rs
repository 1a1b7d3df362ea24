//! Compiles the patched tree and the overlay into one static library, with the `cc` crate.

use crate::cpu_level::CpuLevel;
use crate::files;
use crate::pin::{sha256, sha256_parts};
use crate::series::Series;
use crate::source::{Copied, write_if_changed};
use crate::vars::Vars;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// First line that the C++ compiler prints about itself; `None` when there is none.
pub fn find_compiler() -> Option<String> {
    let tool = cc::Build::new()
        .cpp(true)
        .cargo_metadata(false)
        .cargo_warnings(false)
        .try_get_compiler()
        .ok()?;
    let output = Command::new(tool.path()).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next()?.trim();
    output.status.success().then(|| line.to_owned())
}

/// Files that are compiled with the same flags.
struct Group {
    name: &'static str,
    cpp: bool,
    files: Vec<PathBuf>,
    flags: Vec<String>,
    defines: Vec<(&'static str, Option<String>)>,
    includes: Vec<PathBuf>,
    /// Changes when any file that the group can read changes.
    inputs: String,
    warnings: bool,
}

pub fn compile(
    compiler: &str,
    vars: &Vars,
    series: &Series,
    level: &CpuLevel,
    tree: &Path,
    copied: &Copied,
) -> Result<(), String> {
    let generated = vars.out_dir.join("generated");
    let models = model_units(&vars.out_dir.join("models"), copied)?;
    let native = vars.manifest_dir.join("native");
    let native_digest = digest_of(&native)?;

    let in_tree = |names: &[&str]| names.iter().map(|name| tree.join(name)).collect::<Vec<_>>();
    let (arch_c, arch_cpp) = files::cpu_arch(&vars.target_arch);
    let mut includes: Vec<PathBuf> = files::INCLUDES.iter().map(|dir| tree.join(dir)).collect();
    includes.extend([generated, native.clone()]);
    let patches =
        series.patches.iter().filter(|patch| patch.enabled).map(|patch| define_name(&patch.id));
    let patch_defines: Vec<_> = patches.collect();

    let group = |name, cpp, files: Vec<PathBuf>| Group {
        name,
        cpp,
        files,
        flags: vec![],
        defines: common_defines(&vars.target_os),
        includes: includes.clone(),
        // The hooks header is the one native file that the tree includes.
        inputs: sha256_parts([
            compiler.as_bytes(),
            copied.digest.as_bytes(),
            &fs::read(native.join("smol-hooks.h")).unwrap_or_default(),
        ]),
        warnings: false,
    };
    let mut cpu_c = group("cpu-c", false, in_tree(&[files::CPU_C, arch_c].concat()));
    let mut cpu_cpp = group("cpu-cpp", true, in_tree(&[files::CPU_CPP, arch_cpp].concat()));
    for group in [&mut cpu_c, &mut cpu_cpp] {
        group.flags.extend(level.flags.iter().cloned());
        group.defines.extend([("GGML_USE_CPU_REPACK", None), ("GGML_USE_LLAMAFILE", None)]);
    }
    let mut overlay =
        group("overlay", true, files::OVERLAY.iter().map(|name| native.join(name)).collect());
    overlay.inputs =
        sha256_parts([compiler.as_bytes(), copied.digest.as_bytes(), native_digest.as_bytes()]);
    overlay.warnings = true;
    overlay.flags.extend(level.flags.iter().cloned());
    overlay.flags.extend(patch_defines.iter().map(|name| format!("-D{name}")));

    let groups = [
        cpu_cpp,
        group("models", true, models),
        group("llama", true, in_tree(files::LLAMA)),
        cpu_c,
        group("base-c", false, in_tree(files::BASE_C)),
        group("base-cpp", true, in_tree(files::BASE_CPP)),
        overlay,
    ];
    let objects = compile_groups(&groups, &vars.out_dir)?;
    let mut library = cc::Build::new();
    library.cpp(true).objects(objects);
    library.try_compile("smol_llama").map_err(|e| format!("cannot make the static library: {e}"))
}

/// Starts all groups at once; the job server of cargo bounds what runs, so that no core idles at a group's end.
fn compile_groups(groups: &[Group], out_dir: &Path) -> Result<Vec<PathBuf>, String> {
    std::thread::scope(|scope| {
        let running: Vec<_> = groups
            .iter()
            .map(|group| (group.name, scope.spawn(move || group.compile(out_dir))))
            .collect();
        let mut objects = Vec::new();
        for (name, thread) in running {
            let made = thread.join().map_err(|_| format!("compiling {name} panicked"))??;
            objects.extend(made);
        }
        Ok(objects)
    })
}

impl Group {
    /// Compiles, unless a run with the same inputs and the same compiler has left its objects.
    fn compile(&self, out_dir: &Path) -> Result<Vec<PathBuf>, String> {
        let objects_dir = out_dir.join("objects").join(self.name);
        let stamp = objects_dir.join("stamp");
        let mut build = cc::Build::new();
        // The GNU dialects, as upstream: GCC contracts to FMA in them and not in the strict ones.
        build.cpp(self.cpp).std(if self.cpp { "gnu++17" } else { "gnu11" });
        build.out_dir(&objects_dir).opt_level(3).debug(false).warnings(self.warnings);
        build.files(&self.files);
        for dir in &self.includes {
            if self.warnings {
                // Upstream's headers are not ours to warn about.
                build.flag("-isystem").flag(dir);
            } else {
                build.include(dir);
            }
        }
        for (name, value) in &self.defines {
            build.define(name, value.as_deref());
        }
        for flag in &self.flags {
            build.flag(flag);
        }
        // Assertion messages name files: keep this machine's folders out of the binary.
        build.flag_if_supported(format!("-ffile-prefix-map={}=.", out_dir.display()));
        if self.warnings {
            build.flag_if_supported("-Wextra").flag_if_supported("-Wno-unused-parameter");
        }
        let tool = build
            .try_get_compiler()
            .map_err(|e| format!("no usable compiler for {}: {e}", self.name))?;
        let key =
            sha256(format!("{}\n{:?}\n{:?}", self.inputs, tool.path(), tool.args()).as_bytes());
        if let Some(objects) = read_stamp(&stamp, &key) {
            return Ok(objects);
        }
        fs::create_dir_all(&objects_dir).map_err(|e| format!("{}: {e}", objects_dir.display()))?;
        let _ = fs::remove_file(&stamp);
        let objects = build.try_compile_intermediates().map_err(|e| {
            format!(
                "compiling {} failed: {e}\nThe compiler's own messages are above; C++17 is needed.",
                self.name
            )
        })?;
        let mut text = key;
        for object in &objects {
            text.push('\n');
            text.push_str(&object.to_string_lossy());
        }
        fs::write(&stamp, text).map_err(|e| format!("{}: {e}", stamp.display()))?;
        Ok(objects)
    }
}

fn read_stamp(stamp: &Path, key: &str) -> Option<Vec<PathBuf>> {
    let text = fs::read_to_string(stamp).ok()?;
    let mut lines = text.lines();
    let objects = |lines: std::str::Lines<'_>| lines.map(PathBuf::from).collect::<Vec<_>>();
    (lines.next()? == key)
        .then(|| objects(lines))
        .filter(|objects| objects.iter().all(|object| object.is_file()))
}

fn common_defines(target_os: &str) -> Vec<(&'static str, Option<String>)> {
    let mut defines = vec![
        ("NDEBUG", None),
        ("GGML_USE_CPU", None),
        ("GGML_SCHED_MAX_COPIES", Some("4".to_owned())),
        ("_XOPEN_SOURCE", Some("600".to_owned())),
    ];
    match target_os {
        "linux" | "android" => defines.push(("_GNU_SOURCE", None)),
        "macos" | "ios" => defines.push(("_DARWIN_C_SOURCE", None)),
        _ => {}
    }
    defines
}

/// `load-hook` -> `SMOL_PATCH_LOAD_HOOK`: tells the overlay what the tree calls.
fn define_name(id: &str) -> String {
    format!("SMOL_PATCH_{}", id.to_uppercase().replace('-', "_"))
}

/// Translation units that include a batch of model files each.
fn model_units(dir: &Path, copied: &Copied) -> Result<Vec<PathBuf>, String> {
    let names: Vec<&String> = copied
        .files
        .keys()
        .filter(|name| name.starts_with(files::MODELS) && name.ends_with(".cpp"))
        .collect();
    let mut units = Vec::new();
    for (number, batch) in names.chunks(files::MODELS_PER_UNIT).enumerate() {
        let path = dir.join(format!("models_{number}.cpp"));
        let text: String = batch
            .iter()
            .map(|name| format!("#include \"{}\"\n", name.trim_start_matches("src/")))
            .collect();
        write_if_changed(&path, text.as_bytes())?;
        units.push(path);
    }
    Ok(units)
}

/// Hash over all files of a folder, recursively, in order.
fn digest_of(dir: &Path) -> Result<String, String> {
    let mut stack = vec![dir.to_owned()];
    let mut files = Vec::new();
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))? {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() { stack.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut text = String::new();
    for file in files {
        let bytes = fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        text.push_str(&format!("{}  {}\n", sha256(&bytes), file.display()));
    }
    Ok(sha256(text.as_bytes()))
}

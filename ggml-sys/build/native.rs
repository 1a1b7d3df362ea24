//! Compiles the patched tree and the overlay into one static library, with the `cc` crate.

mod reuse;
mod tools;

use crate::android::Ndk;
use crate::apple;
use crate::cpu_level::CpuLevel;
use crate::files;
use crate::levels::{self, Names};
use crate::pin::{Pin, sha256, sha256_parts};
use crate::series::Series;
use crate::source::{Copied, is_unit, write_if_changed};
use crate::spelling;
use crate::stdlib;
use crate::symbols;
use crate::vars::Vars;
use reuse::Objects;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// First line that the C++ compiler prints about itself; `None` when there is none.
pub fn find_compiler(vars: &Vars) -> Option<String> {
    let tool = quiet(vars, true).try_get_compiler().ok()?;
    let output = Command::new(tool.path()).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().next()?.trim();
    output.status.success().then(|| line.to_owned())
}

/// Settles with which flags the compilers take each level.
pub fn spell_levels(vars: &Vars, levels: &mut [CpuLevel]) -> Result<(), String> {
    let empty = vars.out_dir.join("probe/empty.cpp");
    write_if_changed(&empty, b"")?;
    let tool = |cpp| {
        quiet(vars, cpp).try_get_compiler().map_err(|e| format!("no usable C or C++ compiler: {e}"))
    };
    let (c, cpp) = (tool(false)?, tool(true)?);
    let target = spelling::Target { arch: &vars.target_arch, os: &vars.target_os };
    for level in levels {
        let compilers: [spelling::Compiler<'_>; 2] = [&|| cpp.to_command(), &|| c.to_command()];
        if let Some(warning) = spelling::choose(level, target, &compilers, &empty)? {
            println!("cargo::warning={warning}");
        }
    }
    Ok(())
}

/// A build that only asks which compiler there is.
fn quiet(vars: &Vars, cpp: bool) -> cc::Build {
    let mut build = new_build(vars.ndk.as_ref(), cpp);
    build.cargo_metadata(false).cargo_warnings(false);
    build
}

fn new_build(ndk: Option<&Ndk>, cpp: bool) -> cc::Build {
    let mut build = cc::Build::new();
    build.cpp(cpp);
    if let Some(ndk) = ndk {
        build.compiler(if cpp { &ndk.cxx } else { &ndk.cc }).archiver(&ndk.ar);
    }
    build
}

/// What all groups are compiled with.
struct Build<'a> {
    vars: &'a Vars,
    copied: &'a Copied,
    /// What earlier runs and other builds have left.
    known: Objects,
}

/// Files that are compiled with the same flags.
struct Group {
    name: String,
    /// The CPU level that these objects are for; `None`: they serve all.
    level: Option<usize>,
    cpp: bool,
    files: Vec<PathBuf>,
    flags: Vec<String>,
    defines: Vec<(&'static str, Option<String>)>,
    includes: Vec<PathBuf>,
    /// Changes when any header that the group can include changes.
    inputs: String,
    warnings: bool,
    ios_version: Option<String>,
    ndk: Option<Ndk>,
}

pub fn compile(
    compiler: &str,
    vars: &Vars,
    pin: &Pin,
    series: &Series,
    levels: &[CpuLevel],
    tree: &Path,
    copied: &Copied,
) -> Result<(), String> {
    let generated = vars.out_dir.join("generated");
    let models = model_units(&vars.out_dir.join("models"), copied)?;
    let native = vars.manifest_dir.join("native");
    let native_headers = digest_of_headers(&native)?;

    let in_tree = |names: &[&str]| names.iter().map(|name| tree.join(name)).collect::<Vec<_>>();
    let in_native = |names: &[&str]| names.iter().map(|name| native.join(name)).collect::<Vec<_>>();
    let (arch_c, arch_cpp) = files::cpu_arch(&vars.target_arch);
    let mut includes: Vec<PathBuf> = files::INCLUDES.iter().map(|dir| tree.join(dir)).collect();
    includes.extend([generated, native.clone()]);

    let group = |name: &str, cpp, files: Vec<PathBuf>| Group {
        name: name.to_owned(),
        level: None,
        cpp,
        files,
        flags: vec![],
        defines: common_defines(&vars.target_os),
        includes: includes.clone(),
        // The hooks header is the one native file that the tree includes.
        inputs: sha256_parts([
            compiler.as_bytes(),
            copied.headers.as_bytes(),
            &fs::read(native.join("smol-hooks.h")).unwrap_or_default(),
        ]),
        warnings: false,
        ios_version: vars.ios_version.clone(),
        ndk: vars.ndk.clone(),
    };
    let overlay = |name: &str, files: &[&str]| Group {
        inputs: sha256_parts([
            compiler.as_bytes(),
            copied.headers.as_bytes(),
            native_headers.as_bytes(),
        ]),
        warnings: true,
        ..group(name, true, in_native(files))
    };

    let kernels = cpp_files_of(&native.join(files::KERNELS))?;
    let mut groups = Vec::new();
    for (index, level) in levels.iter().enumerate() {
        let in_level = |mut group: Group| {
            if levels.len() > 1 {
                group.name = format!("{}-{}", group.name, level.name);
                group.level = Some(index);
            }
            group.flags.extend(level.flags.iter().cloned());
            group.defines.extend([("GGML_USE_CPU_REPACK", None), ("GGML_USE_LLAMAFILE", None)]);
            group
        };
        groups.extend([
            in_level(group("cpu-cpp", true, in_tree(&[files::CPU_CPP, arch_cpp].concat()))),
            in_level(group("cpu-c", false, in_tree(&[files::CPU_C, arch_c].concat()))),
            in_level(overlay("dispatch", files::DISPATCH)),
            in_level(Group {
                // Where products are fused with sums is written in the kernels, so that all levels give the same bits.
                flags: vec!["-ffp-contract=off".to_owned()],
                files: kernels.clone(),
                ..overlay("kernels", &[])
            }),
        ]);
    }
    let mut once = overlay("overlay", files::OVERLAY);
    let patches = series.patches.iter().filter(|patch| patch.enabled);
    once.flags.extend(patches.map(|patch| format!("-D{}", define_name(&patch.id))));
    groups.extend([
        group("models", true, models),
        group("llama", true, in_tree(files::LLAMA)),
        group("base-c", false, in_tree(files::BASE_C)),
        group("base-cpp", true, in_tree(files::BASE_CPP)),
        once,
        overlay("registry", files::REGISTRY),
    ]);
    groups.extend(tools::groups(compiler, vars, pin, tree, copied, group, overlay)?);

    let build = Build { vars, copied, known: Objects::find(&vars.out_dir) };
    let objects = compile_groups(&groups, &build)?;
    let headers = files::LEVEL_HEADERS.iter().map(|name| native.join(name));
    let mut public = String::new();
    for header in headers.chain([tree.join("ggml/include/ggml-cpu.h")]) {
        public += &fs::read_to_string(&header).map_err(|e| format!("{}: {e}", header.display()))?;
    }
    let mut names = Names::new(if levels.len() > 1 { levels.len() } else { 0 });
    for (group, objects) in groups.iter().zip(&objects) {
        for object in objects {
            names.add(symbols_of(object)?, group.level);
        }
    }
    let entries = names.entries(&public)?;
    let switch = vars.out_dir.join("levels/levels.c");
    let apple = matches!(vars.target_os.as_str(), "macos" | "ios");
    let text = levels::source(levels, &entries, &vars.target_arch, apple);
    write_if_changed(&switch, text.as_bytes())?;
    let switch = Group { inputs: native_headers, ..group("levels", false, vec![switch]) };
    let switch_objects = switch.compile(&build)?;
    for object in &switch_objects {
        names.add(symbols_of(object)?, None);
    }

    let mut library = new_build(vars.ndk.as_ref(), true);
    let dir = vars.out_dir.join("library");
    let all = groups.iter().zip(&objects).chain([(&switch, &switch_objects)]);
    for (group, objects) in all {
        let level = group.level.map(|level| (level, levels[level].name.as_str()));
        for (index, object) in objects.iter().enumerate() {
            // Same names in the same order on every machine: they decide the order in the program.
            let stem = group.files[index].file_stem().unwrap_or_default().to_string_lossy();
            let path = dir.join(format!("{}.{index}.{stem}.o", group.name));
            let renamed = symbols::rename(&read(object)?, |name| names.rename(name, level))
                .map_err(|e| format!("{}: {e}", object.display()))?;
            write_if_changed(&path, &renamed)?;
            library.object(path);
        }
    }
    write_names_header(vars, tree, &names)?;
    let tool = library.try_get_compiler().map_err(|e| format!("no usable C++ compiler: {e}"))?;
    let stdlib = stdlib::choose(vars, tool.to_command(), tool.is_like_clang());
    if stdlib.is_some() {
        library.cpp_link_stdlib(None);
    }
    library
        .try_compile("smol_llama")
        .map_err(|e| format!("cannot make the static library: {e}"))?;
    if let Some(stdlib) = stdlib {
        if let Some(folder) = stdlib.folder {
            println!("cargo::rustc-link-search=native={folder}");
        }
        for name in stdlib.libraries {
            println!("cargo::rustc-link-lib={name}");
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn symbols_of(object: &Path) -> Result<Vec<symbols::Symbol>, String> {
    symbols::list(&read(object)?).map_err(|e| format!("{}: {e}", object.display()))
}

/// A header for C and C++ dependents: the functions that the public headers declare, under the names that they have.
fn write_names_header(vars: &Vars, tree: &Path, names: &Names) -> Result<(), String> {
    let mut words = std::collections::BTreeSet::new();
    for dir in ["include", "ggml/include"] {
        let dir = tree.join(dir);
        for entry in fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))? {
            let text = read(&entry.map_err(|e| e.to_string())?.path())?;
            let text = String::from_utf8_lossy(&text).into_owned();
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            words.extend(text.split(|c| !is_word(c)).map(str::to_owned));
        }
    }
    let mut text = String::from(
        "// The names that the functions of llama.h and ggml.h have in this library; include it before those.\n\
         #pragma once\n",
    );
    for name in names.base.iter().filter(|name| words.contains(*name)) {
        let new = symbols::final_name(name);
        if new != *name {
            text.push_str(&format!("#define {name} {new}\n"));
        }
    }
    write_if_changed(&vars.out_dir.join("include/smol-names.h"), text.as_bytes())
}

/// Starts all groups at once; the job server of cargo bounds what runs, so that no core idles at a group's end.
fn compile_groups(groups: &[Group], build: &Build<'_>) -> Result<Vec<Vec<PathBuf>>, String> {
    std::thread::scope(|scope| {
        let running: Vec<_> = groups
            .iter()
            .map(|group| (&group.name, scope.spawn(move || group.compile(build))))
            .collect();
        running
            .into_iter()
            .map(|(name, thread)| {
                thread.join().map_err(|_| format!("compiling {name} panicked"))?
            })
            .collect()
    })
}

impl Group {
    /// Compiles those files of which no run with the same inputs and the same compiler has left the object.
    fn compile(&self, run: &Build<'_>) -> Result<Vec<PathBuf>, String> {
        let out_dir = &run.vars.out_dir;
        let objects_dir = reuse::objects_dir(out_dir, &self.name);
        let mut build = new_build(self.ndk.as_ref(), self.cpp);
        // The GNU dialects, as upstream: GCC contracts to FMA in them and not in the strict ones.
        build.std(if self.cpp { "gnu++17" } else { "gnu11" });
        build.out_dir(&objects_dir).opt_level(3).debug(false).warnings(self.warnings);
        if let Some(version) = &self.ios_version {
            build.env(apple::VARIABLE, version);
        }
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
            // GCC 12 says it of its own headers.
            build.flag_if_supported("-Wno-maybe-uninitialized");
            // A field that is left out is zero, and means so.
            build.flag_if_supported("-Wno-missing-field-initializers");
            // Ours are compiled where they lie.
            if let Some(native) = self.files.first().and_then(|file| file.parent()) {
                build.flag_if_supported(format!("-ffile-prefix-map={}=native", native.display()));
            }
        }
        let tool = build
            .try_get_compiler()
            .map_err(|e| format!("no usable compiler for {}: {e}", self.name))?;
        let keys = self.keys(run, &tool)?;
        let mut objects: Vec<_> =
            keys.iter().map(|key| run.known.take(key, &objects_dir)).collect();
        let missing: Vec<_> =
            (0..objects.len()).filter(|&index| objects[index].is_none()).collect();
        if !missing.is_empty() {
            // What is overwritten is no longer known.
            reuse::write_stamp(&objects_dir, &keys, &objects)?;
            build.files(missing.iter().map(|&index| &self.files[index]));
            let compiled = build.try_compile_intermediates().map_err(|e| {
                format!(
                    "compiling {} failed: {e}\nThe compiler's own messages are above; C++17 is needed.",
                    self.name
                )
            })?;
            for (index, object) in missing.into_iter().zip(compiled) {
                objects[index] = Some(object);
            }
        }
        reuse::write_stamp(&objects_dir, &keys, &objects)?;
        Ok(objects.into_iter().flatten().collect())
    }

    /// A key for each file, of everything that its object depends on. What is compiled does not know where it was.
    fn keys(&self, run: &Build<'_>, tool: &cc::Tool) -> Result<Vec<String>, String> {
        let folders = [(&run.vars.out_dir, "OUT_DIR"), (&run.vars.manifest_dir, "MANIFEST_DIR")];
        let key_of = |file: &PathBuf| {
            let source = source_digest(file, run.copied)?;
            let args = (file, tool.path(), tool.args());
            let mut key = format!("{}\n{source}\n{args:?}", self.inputs);
            for (folder, name) in folders {
                key = key.replace(&*folder.to_string_lossy(), name);
            }
            Ok(sha256(key.as_bytes()))
        };
        self.files.iter().map(key_of).collect()
    }
}

/// Hash of a file, and of the files of the tree that it includes whole, as the units of the models do.
fn source_digest(path: &Path, copied: &Copied) -> Result<String, String> {
    let text = read(path)?;
    let mut parts = vec![sha256(&text)];
    for line in String::from_utf8_lossy(&text).lines() {
        let included = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        if let Some(name) = included.filter(|name| is_unit(name)) {
            let whole = copied.files.iter().filter(|(path, _)| Path::new(path).ends_with(name));
            parts.extend(whole.map(|(_, digest)| digest.clone()));
        }
    }
    Ok(sha256_parts(parts.iter().map(|part| part.as_bytes())))
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

/// The C++ files of a folder, in order.
fn cpp_files_of(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        files.push(entry.map_err(|e| e.to_string())?.path());
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "cpp"));
    files.sort();
    Ok(files)
}

/// Hash over all files of a folder that others include, recursively, in order, wherever it lies.
fn digest_of_headers(root: &Path) -> Result<String, String> {
    let mut stack = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))? {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() { stack.push(path) } else { files.push(path) }
        }
    }
    files.retain(|path| !is_unit(&path.to_string_lossy()));
    files.sort();
    let mut text = String::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        text.push_str(&format!("{}  {}\n", sha256(&read(&file)?), name.display()));
    }
    Ok(sha256(text.as_bytes()))
}

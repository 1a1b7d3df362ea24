//! Fetches the pinned llama.cpp, applies the patch series to a copy, compiles it and reports what was built.

// Cargo reads instructions from standard output.
#![allow(clippy::print_stdout)]

mod android;
mod apple;
mod cpu_level;
mod files;
mod info;
mod levels;
mod native;
mod pin;
mod series;
mod source;
mod spelling;
mod stdlib;
mod symbols;
mod tool_files;
mod vars;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\nggml-sys: {message}\n");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut vars = vars::Vars::read();
    vars.ios_version = apple::deployment_target(&vars)?;
    vars.ndk = android::find(&vars)?;
    // Only these trigger a rebuild; the build script's own sources are tracked by cargo.
    for dir in ["patches", "native"] {
        println!("cargo::rerun-if-changed={dir}");
    }
    for file in ["vendor/pin.toml", "vendor/files.sha256", "vendor/fetch.lock"] {
        println!("cargo::rerun-if-changed={file}");
    }

    let pin = pin::Pin::load(&vars.manifest_dir)?;
    let series = series::Series::load(&vars.manifest_dir, &vars.features)?;
    let mut levels = levels::resolve(&vars)?;

    // Documentation and `cargo check` need no native code, hence no compiler and, unless the bindings are regenerated,
    // no download.
    let compiler = if vars.docs_rs { None } else { native::find_compiler(&vars) };
    if compiler.is_some() {
        native::spell_levels(&vars, &mut levels)?;
    }
    info::write(&vars, &pin, &series, &levels, compiler.as_deref())?;
    if compiler.is_none() {
        if !vars.docs_rs {
            println!(
                "cargo::warning=no C++17 compiler found (looked where the `cc` crate looks; set CXX or install g++ or \
                 clang++): only checking and documentation work, linking will not"
            );
            // An rlib that is really built stops here, with the reason as the missing library's name.
            println!(
                "cargo::rustc-link-lib=static=needs-a-C++17-compiler--set-CXX-or-install-g++-or-clang++"
            );
        }
        if !cfg!(feature = "buildtime-bindgen") {
            return Ok(());
        }
    }

    let tree = vars.out_dir.join("llama.cpp");
    let copied = source::prepare(&vars, &pin, &series, &tree)?;
    export(&tree, &copied);

    #[cfg(feature = "buildtime-bindgen")]
    bindings::generate(&vars, &tree)?;

    match compiler {
        Some(compiler) => native::compile(&compiler, &vars, &pin, &series, &levels, &tree, &copied),
        None => Ok(()),
    }
}

fn export(tree: &Path, copied: &source::Copied) {
    println!("cargo::metadata=root={}", tree.display());
    println!("cargo::metadata=tree_sha256={}", copied.digest);
    println!("cargo::rustc-env=GGML_SYS_TREE={}", tree.display());
}

#[cfg(feature = "buildtime-bindgen")]
mod bindings;

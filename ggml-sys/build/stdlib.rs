//! Which C++ standard library is linked, where the choice of the `cc` crate does not give a program that runs alone.

use crate::vars::Vars;
use std::path::Path;
use std::process::Command;

/// Libraries to link after ours, in order.
#[derive(Debug, PartialEq, Eq)]
pub struct Stdlib {
    /// For `cargo::rustc-link-lib`.
    pub libraries: Vec<&'static str>,
    /// Folder to find them in, when the linker does not know it.
    pub folder: Option<String>,
}

/// The standard library to link instead of the one that `cc` chooses; `None`: its choice is right, or the user's.
///
/// `cc` links `c++_shared` on Android, a file that a device does not have, and the shared `stdc++` with a GCC for musl,
/// where programs are static. With clang and zig on musl it links `c++`, which is static there.
pub fn choose(vars: &Vars, compiler: Command, is_clang: bool) -> Option<Stdlib> {
    if vars.stdlib_is_set {
        return None;
    }
    if vars.target_os == "android" {
        return Some(Stdlib { libraries: vec!["c++_static", "c++abi"], folder: None });
    }
    if vars.target_env != "musl" || is_clang {
        return None;
    }
    let folder = folder_of(compiler, "libstdc++.a")?;
    // Not bundled: a copy inside of our library would meet the copies of other crates.
    Some(Stdlib { libraries: vec!["static:-bundle=stdc++"], folder: Some(folder) })
}

/// Where a GCC has a library.
fn folder_of(mut compiler: Command, library: &str) -> Option<String> {
    let output = compiler.arg(format!("-print-file-name={library}")).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let path = Path::new(text.trim());
    // The bare name comes back when there is none.
    path.is_absolute().then(|| path.parent()?.to_str().map(str::to_owned))?
}

//! Tells the tests what they are compiled for: they run a C compiler for it.

// Cargo reads instructions from standard output.
#![allow(clippy::print_stdout)]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    println!("cargo::rustc-env=SMOL_CAPI_TARGET={target}");
}

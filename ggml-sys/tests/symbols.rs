//! The renaming of symbols in object files, and that it leaves nothing of others' names in the library.
#![allow(dead_code)]

#[path = "../build/symbols.rs"]
mod symbols;

use object::{
    Architecture, BinaryFormat, Endianness, Object as _, ObjectSymbol as _, SymbolFlags,
    SymbolKind, SymbolScope, write,
};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "
#include <stdexcept>
#include <string>
#include <vector>
struct thing { int value; thing(); };
__attribute__((noinline)) inline thing::thing() : value(VALUE) { __asm__ volatile(\"\" : : \"r\"(this) : \"memory\"); }
extern \"C\" int value() { return thing().value; }
template <typename T> T twice(T x) { static T calls = 0; calls++; return x + x + calls - calls; }
extern \"C\" int theirs(int);
extern \"C\" int ours(int x) { return theirs(x) + twice(x); }
extern \"C\" int throws(const std::vector<int> & v) { try { return v.at(7); } catch (std::out_of_range &) { return -1; } }
extern \"C\" int through_throws(void) { return throws({1, 2}); }
extern \"C\" { int data = 5; int tentative; }
";

/// Compiles C++ for this machine, with the compiler that the build script needs too.
fn compile(dir: &Path, source: &str, value: u32) -> PathBuf {
    let (cpp, object) = (dir.join("a.cpp"), dir.join("a.o"));
    std::fs::write(&cpp, source).expect("a source file");
    let mut command = Command::new("c++");
    command
        .args(["-std=c++17", "-O1", "-fPIC", "-c"])
        .arg(format!("-DVALUE={value}"))
        .arg(&cpp)
        .arg("-o")
        .arg(&object);
    assert!(command.status().expect("a C++ compiler").success());
    object
}

/// An object of another system: `ours` and `data` are defined, `local` too but for itself, `theirs` is wanted.
fn foreign(format: BinaryFormat, architecture: Architecture) -> Vec<u8> {
    let mut object = write::Object::new(format, architecture, Endianness::Little);
    let text = object.section_id(write::StandardSection::Text);
    object.append_section_data(text, &[0; 16], 4);
    let data = object.section_id(write::StandardSection::Data);
    object.append_section_data(data, &[0; 16], 4);
    for (name, kind, scope, section) in [
        ("local", SymbolKind::Text, SymbolScope::Compilation, Some(text)),
        ("ours", SymbolKind::Text, SymbolScope::Linkage, Some(text)),
        ("_Z4oursv", SymbolKind::Text, SymbolScope::Linkage, Some(text)),
        ("data", SymbolKind::Data, SymbolScope::Dynamic, Some(data)),
        ("theirs", SymbolKind::Text, SymbolScope::Unknown, None),
    ] {
        let section =
            section.map_or(write::SymbolSection::Undefined, write::SymbolSection::Section);
        let name = name.as_bytes().to_vec();
        let flags = SymbolFlags::None;
        object.add_symbol(write::Symbol {
            name,
            value: 0,
            size: 4,
            kind,
            scope,
            weak: false,
            section,
            flags,
        });
    }
    object.write().expect("an object file")
}

fn names(bytes: &[u8]) -> BTreeSet<(String, bool)> {
    let symbols = symbols::list(bytes).expect("a readable object");
    symbols.into_iter().map(|symbol| (symbol.name, symbol.defined)).collect()
}

fn renamed(bytes: &[u8]) -> Vec<u8> {
    let ours: BTreeSet<String> =
        names(bytes).into_iter().filter(|(_, defined)| *defined).map(|(name, _)| name).collect();
    symbols::rename(bytes, |name| ours.contains(name).then(|| symbols::final_name(name)))
        .expect("renames")
}

#[test]
fn names_tell_c_from_cpp() {
    for (name, new) in [
        ("llama_decode", "smol_llama_decode"),
        ("smol_install", "smol_install"),
        ("_Z3foov", "_Z3foov.smol"),
        ("DW.ref.__gxx_personality_v0", "DW.ref.__gxx_personality_v0.smol"),
    ] {
        assert_eq!(symbols::final_name(name), new);
    }
}

#[test]
fn a_renamed_object_links_and_runs_beside_the_original() {
    let dir = tempfile::tempdir().expect("a folder");
    let before = std::fs::read(compile(dir.path(), SOURCE, 2)).expect("the object");
    let after = renamed(&before);
    for (name, defined) in names(&after) {
        let is_ours = name.starts_with("smol_") || name.ends_with(".smol");
        assert_eq!(is_ours, defined, "{name}");
    }
    assert!(names(&after).contains(&("theirs".to_owned(), false)));
    assert_eq!(names(&before).len(), names(&after).len());

    // The same source once more, with another value in an inline constructor: nothing of the two may be merged.
    let second = dir.path().join("b.o");
    std::fs::write(&second, &after).expect("a file");
    let object = compile(dir.path(), SOURCE, 1);
    let main = dir.path().join("main.cpp");
    let text = "extern \"C\" { int theirs(int x) { return x; } int ours(int); int smol_ours(int);
        int value(), smol_value(); int through_throws(), smol_through_throws();
        extern int data, smol_data, smol_tentative; }
        int main() { data = 1; return ours(7) == 21 && smol_ours(7) == 21 && through_throws() == -1
            && smol_through_throws() == -1 && smol_data == 5 && smol_tentative == 0
            && value() == 1 && smol_value() == 2 ? 0 : 1; }";
    std::fs::write(&main, text).expect("a file");
    let program = dir.path().join("program");
    let objects = [&object, &second];
    let linked = Command::new("c++").arg(&main).args(objects).arg("-o").arg(&program).status();
    assert!(linked.expect("a linker").success());
    assert!(Command::new(&program).status().expect("the program").success());
}

#[test]
fn mach_o_and_other_elf_targets_are_renamed_too() {
    for (format, architecture) in [
        (BinaryFormat::MachO, Architecture::Aarch64),
        (BinaryFormat::MachO, Architecture::X86_64),
        (BinaryFormat::Elf, Architecture::Aarch64),
        (BinaryFormat::Elf, Architecture::Arm),
    ] {
        let bytes = renamed(&foreign(format, architecture));
        let expected =
            [("_Z4oursv.smol", true), ("smol_data", true), ("smol_ours", true), ("theirs", false)];
        let expected = expected.map(|(name, defined)| (name.to_owned(), defined));
        assert_eq!(names(&bytes), BTreeSet::from(expected), "{format:?} {architecture:?}");
        // A second reader agrees, and finds the local name as it was.
        let file = object::File::parse(&*bytes).expect("a valid object");
        let prefix = if format == BinaryFormat::MachO { "_" } else { "" };
        for name in ["local", "smol_ours", "theirs"] {
            let name = format!("{prefix}{name}");
            assert!(file.symbols().any(|symbol| symbol.name() == Ok(&name)), "{format:?}: {name}");
        }
    }
}

#[test]
fn what_is_no_object_is_refused() {
    let cases: [&[u8]; 5] =
        [b"", b"\x7fELF", b"BC\xc0\xde", b"!<arch>\n", &[0xcf, 0xfa, 0xed, 0xfe, 0, 0, 0, 0]];
    for bytes in cases {
        assert!(symbols::list(bytes).is_err(), "{bytes:?}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let object = compile(dir.path(), SOURCE, 1);
    let bytes = std::fs::read(object).expect("the object");
    // Cut anywhere: an error or names, never a panic.
    for length in (0..bytes.len()).step_by(97) {
        let _ = symbols::rename(&bytes[..length], |name| Some(name.to_owned()));
    }
}

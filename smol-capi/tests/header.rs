//! The header is what the crate exports.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = folder.join("include/smolmaxxing.h");
    let generated = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smolmaxxing.h");
    cbindgen::Builder::new()
        .with_config(cbindgen::Config {
            language: cbindgen::Language::C,
            cpp_compat: true,
            documentation_style: cbindgen::DocumentationStyle::C99,
            usize_is_size_t: true,
            line_length: 100,
            no_includes: true,
            sys_includes: ["stdbool.h", "stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
            ..cbindgen::Config::default()
        })
        .with_header(
            "// C API of smolmaxxing: small language models on small devices.\n\
             // Generated from the crate smol-capi, see its README.",
        )
        .with_include_guard("SMOLMAXXING_H")
        .with_src(folder.join("src/status.rs"))
        .with_src(folder.join("src/model.rs"))
        .with_src(folder.join("src/session.rs"))
        .generate()
        .expect("the sources are well-formed")
        .write_to_file(&generated);
    let generated_text = fs::read_to_string(&generated).expect("written above");
    let committed_text = fs::read_to_string(&committed).unwrap_or_default();
    assert!(
        generated_text == committed_text,
        "{} differs from the sources; copy {} there",
        committed.display(),
        generated.display()
    );
}

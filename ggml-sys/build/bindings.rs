//! Regenerates the bindings from the pinned headers and `smol.h` (feature `buildtime-bindgen`).

use crate::symbols::final_name;
use crate::vars::Vars;
use bindgen::callbacks::{ItemInfo, ParseCallbacks};
use std::path::Path;

/// Declarations keep the names of the headers; the linker looks for those of the library.
#[derive(Debug)]
struct LinkNames;

impl ParseCallbacks for LinkNames {
    fn generated_link_name_override(&self, item: ItemInfo<'_>) -> Option<String> {
        Some(final_name(item.name)).filter(|name| name != item.name)
    }
}

pub fn generate(vars: &Vars, tree: &Path) -> Result<(), String> {
    let prefixes = "(smol|llama|ggml|SMOL|LLAMA|GGML)_.*";
    let bindings = bindgen::Builder::default()
        .header(vars.manifest_dir.join("native/smol.h").to_string_lossy())
        .clang_args([format!("-I{}", tree.join("include").display()), format!("-I{}", tree.join("ggml/include").display())])
        .allowlist_function(prefixes)
        .allowlist_type(prefixes)
        .allowlist_var(prefixes)
        // They take a C FILE or a va_list, whose layout differs between systems.
        .blocklist_function("llama_model_load_from_file_ptr|llama_adapter_lora_init_from_file_ptr|ggml_fopen|.*_vlog")
        .blocklist_type("_?IO_.*|FILE|_IO_FILE|__.*")
        .parse_callbacks(Box::new(LinkNames))
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(true)
        .merge_extern_blocks(true)
        .rust_target(bindgen::RustTarget::stable(88, 0).map_err(|e| e.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Rustfmt)
        .generate()
        .map_err(|e| format!("bindgen: {e}; libclang is needed (LIBCLANG_PATH)"))?;
    // bindgen marks overridden names as mangled already, and then Apple's linker misses the underscore.
    let text = bindings.to_string().replace(r#"link_name = "\u{1}"#, r#"link_name = ""#);
    let path = vars.out_dir.join("bindings.rs");
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

//! Broken variants of a model, each one fault away from the good file.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::raw::{Entry, RawGguf, array, kind, string};

/// What has to happen when a broken file is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// An error whose text contains each of these.
    Refused(&'static [&'static str]),
    /// A warning; the model is usable.
    Usable,
}

/// Where the fault lies, and so which check finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// The file's structure: found while reading the header.
    Structure,
    /// A value of the metadata or of a vector: found by checking the model.
    Model,
    /// Something only the architecture's loader knows.
    Loader,
}

/// A kind of broken file.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// A name that is distinct among the faults and fit for a file name.
    pub name: &'static str,
    /// Where the fault lies.
    pub layer: Layer,
    /// What has to happen.
    pub expected: Expected,
    make: Make,
}

#[derive(Debug, Clone, Copy)]
enum Make {
    /// Bytes that don't depend on the model.
    Fixed(fn() -> Vec<u8>),
    /// Some of the model's bytes.
    Cut(fn(&[u8]) -> Vec<u8>),
    /// The model with fields changed.
    Edit(fn(&mut RawGguf<'_>)),
}

impl Fault {
    /// Returns the name under which the file has its fault: `NAME.gguf`, or a shard's name.
    pub fn file_name(&self) -> String {
        let suffix = if self.name == "split_missing" { "-00001-of-00003" } else { "" };
        format!("{}{suffix}.gguf", self.name)
    }

    /// Makes the broken file from a good model of a `llama`-like architecture.
    ///
    /// # Errors
    /// If the model isn't a GGUF file.
    pub fn apply(&self, model: &[u8]) -> Result<Vec<u8>> {
        Ok(match self.make {
            Make::Fixed(make) => make(),
            Make::Cut(cut) => cut(model),
            Make::Edit(edit) => {
                let mut raw = RawGguf::parse(model)?;
                edit(&mut raw);
                raw.to_bytes()
            }
        })
    }
}

/// Writes all broken variants of a model into a folder, each under its [`Fault::file_name`].
///
/// # Errors
/// If the model can't be read or isn't a GGUF file, or a file can't be written.
pub fn write_all(model: &Path, folder: &Path) -> Result<()> {
    let bytes = std::fs::read(model).with_context(|| format!("reading {}", model.display()))?;
    RawGguf::parse(&bytes).with_context(|| format!("{}", model.display()))?;
    ensure!(folder.is_dir(), "{} is not a folder", folder.display());
    for fault in FAULTS {
        let path = folder.join(fault.file_name());
        std::fs::write(&path, fault.apply(&bytes)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Returns the fault with this name.
pub fn by_name(name: &str) -> Option<&'static Fault> {
    FAULTS.iter().find(|fault| fault.name == name)
}

const fn fixed(
    name: &'static str,
    mentions: &'static [&'static str],
    make: fn() -> Vec<u8>,
) -> Fault {
    let expected = Expected::Refused(mentions);
    Fault { name, layer: Layer::Structure, expected, make: Make::Fixed(make) }
}

const fn cut(
    name: &'static str,
    mentions: &'static [&'static str],
    make: fn(&[u8]) -> Vec<u8>,
) -> Fault {
    let expected = Expected::Refused(mentions);
    Fault { name, layer: Layer::Structure, expected, make: Make::Cut(make) }
}

const fn structure(
    name: &'static str,
    mentions: &'static [&'static str],
    edit: fn(&mut RawGguf<'_>),
) -> Fault {
    let expected = Expected::Refused(mentions);
    Fault { name, layer: Layer::Structure, expected, make: Make::Edit(edit) }
}

const fn model(
    name: &'static str,
    mentions: &'static [&'static str],
    edit: fn(&mut RawGguf<'_>),
) -> Fault {
    let expected = Expected::Refused(mentions);
    Fault { name, layer: Layer::Model, expected, make: Make::Edit(edit) }
}

const fn loader(
    name: &'static str,
    mentions: &'static [&'static str],
    edit: fn(&mut RawGguf<'_>),
) -> Fault {
    let expected = Expected::Refused(mentions);
    Fault { name, layer: Layer::Loader, expected, make: Make::Edit(edit) }
}

/// Every kind of broken file.
pub const FAULTS: &[Fault] = &[
    // Not a model, or only a part of one.
    fixed("empty", &["empty"], Vec::new),
    fixed("html", &["HTML"], || b"<!DOCTYPE html><html>Entry not found</html>".to_vec()),
    fixed("json", &["GGUF"], || br#"{"error":"Repository not found"}"#.to_vec()),
    fixed("magic_only", &[], || b"GGUF".to_vec()),
    fixed("hugekey", &[], || header(3, 0, 1, &0xffff_ffff_ffffu64.to_le_bytes())),
    fixed("emptykey", &["key"], || header(3, 0, 1, &[&string(b"")[..], &[0, 0, 0, 0, 1]].concat())),
    fixed("hugecount", &[], || header(3, 0, 1 << 62, &[])),
    fixed("hugetensors", &[], || header(3, 1 << 62, 0, &[])),
    cut("trunc_half", &["missing"], |model| model[..model.len() / 2].to_vec()),
    cut("trunc_1b", &["missing", "1 "], |model| model[..model.len() - 1].to_vec()),
    cut("trunc_header", &[], |model| model[..model.len().min(300)].to_vec()),
    // The header's structure.
    structure("version_1", &["version"], |raw| raw.version = 1),
    structure("version_99", &["version"], |raw| raw.version = 99),
    structure("big_endian", &["endian"], |raw| raw.version = 3u32.swap_bytes()),
    structure("key_dup", &["general.architecture"], |raw| {
        let first = raw.metadata.iter().find(|entry| entry.key == b"general.architecture").cloned();
        raw.metadata.extend(first);
    }),
    structure("key_not_utf8", &[], |raw| {
        raw.metadata.push(Entry { key: vec![0xe6, 0xad], kind: kind::U32, value: vec![0; 4] });
    }),
    structure("value_type_unknown", &["13"], |raw| raw.set("extra.value", 13, vec![0; 4])),
    structure("array_huge", &["extra.array"], |raw| {
        raw.set("extra.array", kind::ARRAY, array(kind::I32, 1 << 61, &[]));
    }),
    structure("array_nested", &["extra.array"], |raw| {
        let inner = array(kind::I32, 1, &[0; 4]);
        raw.set("extra.array", kind::ARRAY, array(kind::ARRAY, 1, &inner));
    }),
    structure("alignment_0", &["alignment"], |raw| raw.set_u32("general.alignment", 0)),
    structure("alignment_3", &["alignment"], |raw| raw.set_u32("general.alignment", 3)),
    structure("dim_zero", &["token_embd.weight"], |raw| dims(raw, |dims| dims[1] = 0)),
    structure("dim_huge", &["token_embd.weight"], |raw| dims(raw, |dims| dims[1] = 1 << 62)),
    structure("dims_5", &["token_embd.weight"], |raw| dims(raw, |dims| dims.extend([1, 1, 1]))),
    structure("row_not_blocks", &["token_embd.weight"], |raw| {
        embedding(raw, |tensor| (tensor.ty, tensor.dims[0]) = (12, 100));
    }),
    structure("type_unknown", &["token_embd.weight", "99"], |raw| embedding(raw, |t| t.ty = 99)),
    structure("type_removed", &["token_embd.weight"], |raw| embedding(raw, |t| t.ty = 4)),
    structure("offset_outside", &["token_embd.weight"], |raw| {
        embedding(raw, |tensor| tensor.offset = 1 << 40);
    }),
    structure("offset_odd", &["token_embd.weight"], |raw| embedding(raw, |t| t.offset += 1)),
    structure("tensor_dup", &["output_norm.weight"], |raw| {
        let name = b"output_norm.weight".to_vec();
        if let Some(tensor) = raw.tensors.iter().find(|tensor| tensor.name != name).cloned() {
            raw.tensors.push(crate::raw::Tensor { name, ..tensor });
        }
    }),
    structure("name_long", &[], |raw| embedding(raw, |tensor| tensor.name = vec![b'a'; 64])),
    // Values that make llama.cpp abort or compute garbage.
    model("block_0", &["block_count"], |raw| arch_u32(raw, "block_count", 0)),
    model("block_513", &["block_count", "512"], |raw| arch_u32(raw, "block_count", 513)),
    model("block_missing", &["block_count"], |raw| {
        let key = format!("{}.block_count", arch(raw));
        raw.remove(&key);
    }),
    model("embedding_0", &["embedding_length"], |raw| arch_u32(raw, "embedding_length", 0)),
    model("head_0", &["head_count"], |raw| arch_u32(raw, "attention.head_count", 0)),
    model("head_kv_3", &["head_count"], |raw| arch_u32(raw, "attention.head_count_kv", 3)),
    model("expert_2048", &["expert_count"], |raw| arch_u32(raw, "expert_count", 2048)),
    model("expert_8_used0", &["expert_used_count"], |raw| {
        arch_u32(raw, "expert_count", 8);
        arch_u32(raw, "expert_used_count", 0);
    }),
    model("expert_8_used9", &["expert_used_count"], |raw| {
        arch_u32(raw, "expert_count", 8);
        arch_u32(raw, "expert_used_count", 9);
    }),
    model("eps_nan", &["layer_norm_rms_epsilon"], |raw| {
        arch_f32(raw, "attention.layer_norm_rms_epsilon", f32::NAN);
    }),
    model("eps_negative", &["layer_norm_rms_epsilon"], |raw| {
        arch_f32(raw, "attention.layer_norm_rms_epsilon", -1.0);
    }),
    model("rope_neg", &["rope.freq_base"], |raw| arch_f32(raw, "rope.freq_base", f32::NAN)),
    model("rope_inf", &["rope.freq_base"], |raw| arch_f32(raw, "rope.freq_base", f32::INFINITY)),
    model("nan_norm", &["output_norm.weight"], |raw| last_norm(raw, f32::NAN)),
    model("inf_norm", &["output_norm.weight"], |raw| last_norm(raw, f32::NEG_INFINITY)),
    model("vocab_dup", &["token"], |raw| {
        tokens(raw, |tokens| {
            let copy = tokens[500.min(tokens.len() / 2)].clone();
            if let Some(last) = tokens.last_mut() {
                *last = copy;
            }
        })
    }),
    model("tokens_missing", &["tokenizer.ggml.tokens"], |raw| raw.remove("tokenizer.ggml.tokens")),
    model("tokens_type", &["tokenizer.ggml.tokens"], |raw| {
        raw.set("tokenizer.ggml.tokens", kind::ARRAY, array(kind::I32, 4, &[0; 16]));
    }),
    model("token_type_short", &["tokenizer.ggml.token_type"], |raw| {
        raw.set("tokenizer.ggml.token_type", kind::ARRAY, array(kind::I32, 4, &[0; 16]));
    }),
    model("arch_type", &["general.architecture"], |raw| raw.set_u32("general.architecture", 1)),
    model("arch_missing", &["general.architecture"], |raw| raw.remove("general.architecture")),
    model("split_missing", &["00002-of-00003", "00003-of-00003"], first_of_three),
    model("split_name", &["-00001-of-00003"], first_of_three),
    // What only the loader of the architecture finds.
    loader("arch_unknown", &["nosucharch"], |raw| {
        raw.set_text("general.architecture", "nosucharch");
    }),
    loader("tensor_missing", &["blk.0.attn_norm.weight"], |raw| {
        // Its bytes stay: a gap in the data would be another fault.
        if let Some(tensor) = raw.tensor_mut("blk.0.attn_norm.weight") {
            tensor.name = b"blk.0.attn_nrom.weight".to_vec();
        }
    }),
    loader("shape_wrong", &["blk.0.attn_"], |raw| {
        if let Some(tensor) = raw.tensor_mut("blk.0.attn_q.weight") {
            // As many elements as before: its bytes stay where they are.
            tensor.dims[0] /= 2;
            tensor.dims[1] *= 2;
        }
    }),
    // A fault that must not make the model useless.
    Fault {
        name: "tmpl_bad",
        layer: Layer::Model,
        expected: Expected::Usable,
        make: Make::Edit(|raw| {
            let template = "{% for m in messages %}{{ m.content ";
            raw.set_text("tokenizer.chat_template", template);
        }),
    },
];

fn header(version: u32, tensors: u64, entries: u64, rest: &[u8]) -> Vec<u8> {
    let counts = [tensors.to_le_bytes(), entries.to_le_bytes()].concat();
    [b"GGUF", &version.to_le_bytes()[..], &counts, rest].concat()
}

fn arch(raw: &RawGguf<'_>) -> String {
    raw.text("general.architecture").unwrap_or("llama").to_owned()
}

fn arch_u32(raw: &mut RawGguf<'_>, key: &str, value: u32) {
    raw.set_u32(&format!("{}.{key}", arch(raw)), value);
}

fn arch_f32(raw: &mut RawGguf<'_>, key: &str, value: f32) {
    raw.set_f32(&format!("{}.{key}", arch(raw)), value);
}

fn first_of_three(raw: &mut RawGguf<'_>) {
    raw.set("split.no", kind::U16, vec![0, 0]);
    raw.set("split.count", kind::U16, vec![3, 0]);
    let tensors = raw.tensors.len() as i32;
    raw.set("split.tensors.count", kind::I32, tensors.to_le_bytes().to_vec());
}

fn embedding(raw: &mut RawGguf<'_>, edit: impl FnOnce(&mut crate::raw::Tensor)) {
    if let Some(tensor) = raw.tensor_mut("token_embd.weight") {
        edit(tensor);
    }
}

fn dims(raw: &mut RawGguf<'_>, edit: impl FnOnce(&mut Vec<u64>)) {
    embedding(raw, |tensor| edit(&mut tensor.dims));
}

fn tokens(raw: &mut RawGguf<'_>, edit: impl FnOnce(&mut Vec<Vec<u8>>)) {
    if let Some(mut tokens) = raw.strings("tokenizer.ggml.tokens") {
        edit(&mut tokens);
        raw.set_strings("tokenizer.ggml.tokens", &tokens);
    }
}

fn last_norm(raw: &mut RawGguf<'_>, value: f32) {
    if let Some(tensor) = raw.tensor_mut("output_norm.weight") {
        let at = tensor.offset as usize;
        raw.data.to_mut()[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::tiny::{self, Arch, TinyOptions};

    #[test]
    fn each_fault_has_a_name_of_its_own_and_changes_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
        let good = std::fs::read(&path).unwrap();
        let mut seen = HashSet::new();
        for fault in FAULTS {
            assert!(seen.insert(fault.name), "{}", fault.name);
            assert!(by_name(fault.name).is_some());
            let bad = fault.apply(&good).unwrap();
            assert!(bad != good, "{}", fault.name);
        }
        assert!(FAULTS[0].apply(b"").is_ok());
        assert!(by_name("block_0").unwrap().apply(b"no model").is_err());
    }

    #[test]
    fn files_are_written_under_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
        let out = folder.path().join("bad");
        assert!(write_all(&path, &out).is_err());
        std::fs::create_dir(&out).unwrap();
        write_all(&path, &out).unwrap();
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), FAULTS.len());
    }
}

//! The tiny models are good models, small, and the same everywhere.

use std::path::Path;

use sha2::{Digest, Sha256};
use smol_gguf::{Depth, Shards, check_file};
use testkit::tiny::{self, Arch, Template, TinyOptions};

fn sha256(path: &Path) -> String {
    let digest = Sha256::digest(std::fs::read(path).unwrap());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_model_passes_the_check_and_is_small() {
    let folder = tempfile::tempdir().unwrap();
    for entry in tiny::all() {
        let model = entry.write_in(folder.path()).unwrap();
        let report = check_file(model.path(), Depth::Full).unwrap();
        let warnings: Vec<String> = report.findings().iter().map(ToString::to_string).collect();
        assert!(report.is_usable(), "{}: {warnings:?}", entry.name);
        let expected = usize::from(entry.options.template == Template::Broken);
        assert_eq!(warnings.len(), expected, "{}: {warnings:?}", entry.name);
        let bytes: u64 = model.files().iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(bytes < 14 << 20, "{}: {bytes} bytes", entry.name);
        assert_eq!(model.files().len(), usize::from(entry.options.shards));
    }
}

#[test]
fn chat_templates_render_every_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let messages = [("system", "be brief"), ("user", "hi"), ("assistant", "yes?"), ("user", "bye")];
    let messages = messages.map(|(role, content)| minijinja::context! { role, content });
    for arch in Arch::ALL {
        tiny::write(&path, arch, &TinyOptions::default()).unwrap();
        let model = smol_gguf::Gguf::open(&path).unwrap();
        let template = model.get_str("tokenizer.chat_template");
        assert_eq!(template.is_none(), arch.key() == "llama");
        let Some(template) = template else { continue };
        let mut environment = minijinja::Environment::new();
        environment.add_function("raise_exception", |message: String| {
            Err::<String, _>(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message))
        });
        let render = |add_generation_prompt: bool| {
            let values = minijinja::context! {
                messages => messages.clone(), add_generation_prompt, bos_token => "<bos>",
            };
            environment.render_str(template, values).unwrap()
        };
        let (text, prompt) = (render(false), render(true));
        assert!(["be brief", "hi", "yes?", "bye"].iter().all(|part| text.contains(part)), "{text}");
        assert!(prompt.len() > text.len() && prompt.starts_with(&text), "{prompt}");
    }
}

#[test]
fn names_are_distinct() {
    let entries = tiny::all();
    let names: std::collections::HashSet<_> = entries.iter().map(|entry| entry.name).collect();
    assert_eq!(names.len(), entries.len());
    assert!(Arch::ALL.iter().all(|arch| names.contains(arch.name())));
}

#[test]
fn bytes_are_the_same_on_every_machine() {
    let folder = tempfile::tempdir().unwrap();
    for (arch, expected) in Arch::ALL.into_iter().zip(HASHES) {
        let path = folder.path().join(arch.name());
        tiny::write(&path, arch, &TinyOptions::default()).unwrap();
        assert_eq!(sha256(&path), expected, "{}", arch.name());
    }
}

/// SHA-256 of the models with default options, in the order of [`Arch::ALL`].
const HASHES: [&str; 10] = [
    "23ba0193b1616310dfb3ff997a9f2c3163a063fb6db36591e8ddb2fe9c067824", // llama
    "584d0b8bbccdea1a1dda39f2e413ef2d9acb2e9c3e8da98a4161206c2feda3cd", // llama-moe
    "8ae105a46765f2ee8663faf7b1bbf4b85e27befafccdd1b019b6b4670c829c5c", // qwen3
    "cfbfaeeb6a06bab83c70f29766002a3f320474bc7404ca149ba9b167a89a4a3f", // qwen35
    "0703929f6b62ac45388575e769f04ff2bb1a7c20de6dee3728b33e89389af0fa", // bailingmoe2
    "92332393e506e6dbe09ab5f0446bfc71b72c4a5253ccb55b51c81e57b9e7d3f5", // bailingmoe3
    "69d41a279274df44cc2431469cb25ae5befe3ac88258f348d26518742b46f15e", // granitehybrid
    "1bba66016ff95f9fcdb0d041d248d53c2dfb6c28d77360d6f6877d828cbfcf1b", // gemma3
    "58581bbaa9ad547bc83e733013f5815b8c59d40b74288ecfb0e479f96c4e234f", // lfm2
    "ff24fb9869305e70c4618b25e6dc56ddcf6069176ab74cb419b243b393e40750", // glm4moe
];

#[test]
fn only_the_seed_changes_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, seed: u64| {
        let path = folder.path().join(name);
        let weights = smol_gguf::TensorType::Q4_K;
        let options = TinyOptions { seed, weights, ..TinyOptions::default() };
        tiny::write(&path, Arch::Lfm2, &options).unwrap();
        sha256(&path)
    };
    assert_eq!(write("a", 1), write("b", 1));
    assert_ne!(write("a", 1), write("c", 2));
}

#[test]
fn shards_hold_what_the_whole_model_holds() {
    let folder = tempfile::tempdir().unwrap();
    let options = TinyOptions::default();
    let whole = tiny::write(&folder.path().join("m.gguf"), Arch::Llama, &options).unwrap();
    let split = TinyOptions { shards: 3, ..options };
    let split = tiny::write(&folder.path().join("s.gguf"), Arch::Llama, &split).unwrap();
    assert!(split.path().ends_with("s-00001-of-00003.gguf"));
    let (whole, split) = (Shards::open(whole.path()).unwrap(), Shards::open(split.path()).unwrap());
    for (file, tensor) in whole.tensors() {
        let (shard, copy) = split.tensor(tensor.name()).unwrap();
        assert_eq!((copy.ty(), copy.shape()), (tensor.ty(), tensor.shape()));
        assert!(shard.data(copy).unwrap() == file.data(tensor).unwrap());
    }
    // The model that was split is gone.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn options_out_of_range_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let usual = TinyOptions::default();
    for options in [
        TinyOptions { vocab: 10, ..usual },
        TinyOptions { layers: Some(1), ..usual },
        TinyOptions { layers: Some(513), ..usual },
        TinyOptions { experts: 9, ..usual },
        TinyOptions { shards: 0, ..usual },
        TinyOptions { shards: 10_000, ..usual },
    ] {
        let error = tiny::write(&folder.path().join("m.gguf"), Arch::LlamaMoe, &options);
        assert!(error.is_err(), "{options:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn layers_and_experts_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let options = TinyOptions { layers: Some(5), experts: 16, ..TinyOptions::default() };
    for arch in Arch::ALL {
        let path = folder.path().join(arch.name());
        tiny::write(&path, arch, &options).unwrap();
        assert!(check_file(&path, Depth::Header).unwrap().is_usable(), "{}", arch.name());
        let model = smol_gguf::Gguf::open(&path).unwrap();
        assert_eq!(model.arch_get("block_count").and_then(|v| v.as_u64()), Some(5));
        let experts = model.arch_get("expert_count").and_then(|v| v.as_u64());
        assert_eq!(experts, arch.has_experts().then_some(16));
    }
}

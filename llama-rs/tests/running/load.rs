//! Loading: every architecture, every mode, every broken file.

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use llama_rs::{ErrorKind, LoadMode, MetadataOverride, Model, SeqId};
use testkit::bad::{Expected, FAULTS};
use testkit::tiny::{self, Arch, TinyOptions};

use crate::models::{
    assert_close, copy_to, last_logits, logits_after, small_context, some_tokens, tiny, tiny_file,
};
use crate::time::computed;

#[test]
fn every_architecture_runs() {
    for arch in Arch::ALL {
        let model = tiny(arch);
        assert_eq!(model.architecture(), arch.key());
        assert_eq!(model.is_recurrent() || model.is_hybrid(), arch.is_recurrent(), "{arch:?}");
        assert!(model.n_layer() >= 2 && model.n_embd() > 0 && model.n_params() > 1000);
        assert!(model.size() > 1000 && !model.description().is_empty());
        assert!(model.has_decoder() && !model.has_encoder());
        let logits = logits_after(&model, &some_tokens(40));
        assert_eq!(logits.len(), model.vocab().len());
        assert!(logits.iter().all(|logit| logit.is_finite()), "{arch:?}");
    }
}

#[test]
fn any_shard_opens_a_split_model() {
    let folder = tempfile::tempdir().unwrap();
    let options = TinyOptions { shards: 3, ..TinyOptions::default() };
    let split = tiny::write(&folder.path().join("m.gguf"), Arch::Llama, &options).unwrap();
    let whole = logits_after(&tiny(Arch::Llama), &some_tokens(20));
    for file in split.files() {
        let model = Model::load(file).unwrap();
        assert_eq!(logits_after(&model, &some_tokens(20)), whole);
    }
    std::fs::remove_file(&split.files()[1]).unwrap();
    for file in [&split.files()[0], &split.files()[2]] {
        let error = Model::load(file).unwrap_err();
        let ErrorKind::MissingShards(missing) = error.kind() else { panic!("{error:?}") };
        assert_eq!(missing, &[split.files()[1].clone()]);
        assert!(error.to_string().contains("00002-of-00003"), "{error}");
    }
}

#[test]
fn broken_files_are_refused_and_the_process_lives() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(tiny_file(Arch::Llama)).unwrap();
    for fault in FAULTS {
        let path = folder.path().join(fault.file_name());
        std::fs::write(&path, fault.apply(&good).unwrap()).unwrap();
        let started = computed();
        let loaded = Model::load(&path);
        assert!(computed() - started < Duration::from_secs(5), "{}", fault.name);
        match fault.expected {
            Expected::Usable => {
                logits_after(&loaded.unwrap(), &some_tokens(3));
            }
            Expected::Refused(mentions) => {
                let error = loaded.expect_err(fault.name);
                let text = error.to_string();
                let place = path.display().to_string();
                assert!(text.starts_with(&place), "{}: {text}", fault.name);
                assert!(mentions.iter().all(|m| text.contains(m)), "{}: {text}", fault.name);
                assert!(!text.contains('\n'), "{}: {text}", fault.name);
            }
        }
    }
}

#[test]
fn paths_that_are_no_file_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Model::load(folder.path()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Io(std::io::ErrorKind::IsADirectory));
    assert!(error.to_string().contains("directory"), "{error}");
    let error = Model::load(folder.path().join("none.gguf")).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Io(std::io::ErrorKind::NotFound));
    assert!(error.to_string().contains("none.gguf"), "{error}");
}

#[test]
fn what_llama_cpp_refuses_carries_its_lines() {
    let folder = tempfile::tempdir().unwrap();
    let good = std::fs::read(tiny_file(Arch::Llama)).unwrap();
    let path = folder.path().join("m.gguf");
    let fault = testkit::bad::by_name("tensor_missing").unwrap();
    std::fs::write(&path, fault.apply(&good).unwrap()).unwrap();
    let error = Model::load(&path).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Load);
    assert!(error.message().contains("blk.0.attn_norm.weight"), "{error}");
    let named = |line: &llama_rs::log::LogLine| line.text.contains("blk.0.attn_norm.weight");
    assert!(error.log().iter().any(named), "{:?}", error.log());
}

#[test]
fn all_load_modes_give_the_same_logits() {
    let path = tiny_file(Arch::Llama);
    let expected = logits_after(&tiny(Arch::Llama), &some_tokens(30));
    for mode in [LoadMode::Read, LoadMode::Mmap, LoadMode::DirectIo, LoadMode::Mlock] {
        let model = Model::builder(&path).load_mode(mode).check_tensors(true).load().unwrap();
        assert_eq!(logits_after(&model, &some_tokens(30)), expected, "{mode:?}");
    }
    let plain = Model::builder(&path).repack(false).load().unwrap();
    assert_close(&logits_after(&plain, &some_tokens(30)), &expected);
}

#[test]
fn progress_rises_to_the_end() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    Model::builder(tiny_file(Arch::Llama))
        .on_progress(move |fraction| {
            sink.lock().unwrap().push(fraction);
            ControlFlow::Continue(())
        })
        .load()
        .unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 5 && seen.is_sorted() && seen.last() == Some(&1.0), "{seen:?}");
}

#[test]
fn the_progress_callback_may_stop_or_panic() {
    let path = tiny_file(Arch::Llama);
    let stopped = Model::builder(&path)
        .on_progress(|fraction| match fraction > 0.3 {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
        .load();
    assert!(stopped.unwrap_err().is_cancelled());
    let panicked = Model::builder(&path).on_progress(|_| panic!("no more")).load();
    let error = panicked.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::CallbackPanicked);
    assert!(error.message().contains("no more"), "{error}");
    Model::load(&path).unwrap();
}

#[test]
fn a_model_in_memory_does_not_need_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy_to(folder.path(), &tiny_file(Arch::Llama));
    let model = Model::builder(&path).load_mode(LoadMode::Read).load().unwrap();
    let expected = logits_after(&model, &some_tokens(30));
    OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert_eq!(logits_after(&model, &some_tokens(30)), expected);
}

#[test]
fn a_mapped_file_that_is_shortened_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = copy_to(folder.path(), &tiny_file(Arch::Llama));
    let model = Model::builder(&path).load_mode(LoadMode::Mmap).load().unwrap();
    let mut context = small_context(&model);
    last_logits(&mut context, SeqId::FIRST, &some_tokens(10));
    OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = context.prefill(SeqId::FIRST, &some_tokens(10)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::FileChanged);
    assert!(error.to_string().contains("copy.gguf"), "{error}");
}

#[test]
fn overrides_reach_llama_cpp_and_are_checked() {
    let path = tiny_file(Arch::Llama);
    let with = |key: &str, value| Model::builder(&path).override_metadata(key, value).load();
    let model = with("llama.rope.freq_base", MetadataOverride::Float(123.0)).unwrap();
    assert_eq!(model.metadata().get_f32("llama.rope.freq_base"), Some(123.0));
    let usual = logits_after(&tiny(Arch::Llama), &some_tokens(30));
    assert_ne!(logits_after(&model, &some_tokens(30)), usual);

    let error = with("llama.block_count", MetadataOverride::Int(0)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Gguf);
    assert!(error.message().contains("block_count"), "{error}");
    let error = with("llama.rope.freq_base", MetadataOverride::Int(1)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn files_that_are_no_language_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adapter.gguf");
    let good = std::fs::read(tiny_file(Arch::Llama)).unwrap();
    let mut raw = testkit::raw::RawGguf::parse(&good).unwrap();
    raw.set_text("general.type", "adapter");
    raw.set_u32("llama.block_count", 0);
    std::fs::write(&path, raw.to_bytes()).unwrap();
    let error = Model::load(&path).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Gguf);
    assert!(error.message().contains("adapter"), "{error}");
}

#[test]
#[cfg(target_os = "linux")]
fn weights_ask_for_huge_pages() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return;
    }
    let path = tiny_file(Arch::Llama);
    let _model = Model::builder(&path).load_mode(LoadMode::Read).load().unwrap();
    let areas = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let asks =
        |line: &str| line.starts_with("VmFlags:") && line.split(' ').any(|flag| flag == "hg");
    assert!(areas.lines().any(asks), "{areas}");
}

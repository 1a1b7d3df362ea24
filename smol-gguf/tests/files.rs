//! Files on disk: atomic writing, split models, files that change.

#![cfg(not(miri))]

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;

use common::Model;
use smol_gguf::{
    Depth, ErrorKind, Gguf, Rewriter, Shards, SplitBy, TensorType, Writer, check, check_file, split,
};

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn write(model: &Model, path: &Path) {
    fs::write(path, model.encode()).unwrap();
}

#[test]
fn opened_and_mapped_files_read_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let model = Model::llama();
    write(&model, &path);
    let opened = Gguf::open(&path).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: the file is in a folder of this test's own.
    let mapped = unsafe { Gguf::open_mapped(&path) }.unwrap();
    assert_eq!(opened.path(), Some(&*path));
    for (tensor, (name, bytes)) in opened.tensors().iter().zip(&model.data) {
        assert_eq!(tensor.name(), name);
        assert_eq!(&*opened.data(tensor).unwrap(), bytes);
        assert_eq!(opened.data_in_memory(tensor), None);
        assert_eq!(mapped.data_in_memory(tensor), Some(&bytes[..]));
        let mut streamed = Vec::new();
        opened.data_reader(tensor).unwrap().read_to_end(&mut streamed).unwrap();
        assert_eq!(&streamed, bytes);
        let mut part = [0; 4];
        opened.read_data(tensor, 4, &mut part).unwrap();
        assert_eq!(part, bytes[4..8]);
        assert!(opened.read_data(tensor, tensor.n_bytes() - 3, &mut part).is_err());
    }
    assert!(check(&opened, Depth::Full).findings().is_empty());
    assert!(check(&mapped, Depth::Full).findings().is_empty());
}

#[test]
fn header_alone_has_no_data_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write(&Model::llama(), &path);
    let header = Gguf::read_header(&path).unwrap();
    let error = header.data(&header.tensors()[0]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::HeaderOnly { .. }));
    let report = check(&header, Depth::Header);
    assert!(report.is_usable());
    assert!(report.findings()[0].to_string().contains("only the header was read"));
}

#[test]
fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.gguf");
    let text = Gguf::open(&missing).unwrap_err().to_string();
    assert!(text.contains("none.gguf"), "{text}");
    let text = Gguf::open(dir.path()).unwrap_err().to_string();
    assert!(text.contains("directory"), "{text}");
    let empty = dir.path().join("empty.gguf");
    fs::write(&empty, "").unwrap();
    let text = Gguf::open(&empty).unwrap_err().to_string();
    assert!(text.ends_with("empty.gguf: the file is empty"), "{text}");
    #[allow(unsafe_code)]
    // SAFETY: the file is in a folder of this test's own.
    let error = unsafe { Gguf::open_mapped(&empty) }.unwrap_err();
    assert!(error.to_string().ends_with("the file is empty"));
    let bad = dir.path().join("bad.gguf");
    write(Model::llama().set("llama.block_count", 0u32), &bad);
    let report = check_file(&bad, Depth::Header).unwrap();
    let text = report.into_result().unwrap_err().to_string();
    assert!(text.ends_with("bad.gguf: `llama.block_count` is 0, allowed is 1 to 512"), "{text}");
}

#[test]
fn file_shortened_while_open_gives_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write(&Model::llama(), &path);
    let gguf = Gguf::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(gguf.data_offset()).unwrap();
    let error = gguf.data(&gguf.tensors()[0]).unwrap_err();
    assert!(error.to_string().contains("m.gguf"), "{error}");
    assert!(!check(&gguf, Depth::Header).is_usable());
    assert!(Rewriter::new(&gguf).write(std::io::sink()).is_err());
}

#[test]
fn failed_write_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let mut writer = Writer::new();
    writer.tensor("a", &[2], TensorType::F32).unwrap();
    let error = writer.write_file(&path, |_| Ok(())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WriteSize { expected: 8, found: 0, .. }));
    assert_eq!(error.path(), Some(&*path));
    assert!(names_in(dir.path()).is_empty());

    writer.write_file(&path, |data| data.write_tensor("a", &[1; 8])).unwrap();
    let before = fs::read(&path).unwrap();
    writer.write_file(&path, |data| data.write_tensor("a", &[1; 7])).unwrap_err();
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(names_in(dir.path()), ["m.gguf"]);

    let nowhere = dir.path().join("no/such/m.gguf");
    let error = writer.write_file(&nowhere, |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("no/such/m.gguf"), "{error}");
}

#[test]
fn file_may_be_rewritten_onto_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    let model = Model::llama();
    write(&model, &path);
    let source = Gguf::open(&path).unwrap();
    let mut plan = Rewriter::new(&source);
    plan.set("general.name", "renamed").sort_by_key(|t| !t.name().starts_with("blk."));
    plan.write_file(&path).unwrap();
    let new = Gguf::open(&path).unwrap();
    assert_eq!(new.get_str("general.name"), Some("renamed"));
    assert!(new.tensors()[0].name().starts_with("blk."));
    for (name, bytes) in &model.data {
        assert_eq!(&*new.data(new.tensor(name).unwrap()).unwrap(), bytes);
    }
}

#[test]
fn split_models_open_by_any_shard_and_name_the_missing() {
    let dir = tempfile::tempdir().unwrap();
    let source = Gguf::from_bytes(Model::llama().encode()).unwrap();
    let paths = split(&source, dir.path().join("big"), SplitBy::Tensors(3)).unwrap();
    assert_eq!(
        names_in(dir.path()),
        (1..=4).map(|i| format!("big-{i:05}-of-00004.gguf")).collect::<Vec<_>>()
    );
    for path in &paths {
        let shards = Shards::open(path).unwrap();
        assert_eq!(shards.len(), 4);
        assert_eq!(shards.metadata().get_u32("llama.block_count"), Some(1));
        let (file, tensor) = shards.tensor("blk.0.ffn_down.weight").unwrap();
        assert!(file.path().unwrap().ends_with("big-00004-of-00004.gguf"));
        assert_eq!(tensor.ty(), TensorType::Q8_0);
        assert!(check_file(path, Depth::Full).unwrap().findings().is_empty());
    }

    fs::remove_file(&paths[1]).unwrap();
    fs::remove_file(&paths[3]).unwrap();
    let error = Shards::open(&paths[2]).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "2 of 4 files of this model are missing: big-00002-of-00004.gguf, big-00004-of-00004.gguf"
        ),
        "{error}"
    );
}

#[test]
fn shards_out_of_place_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = Gguf::from_bytes(Model::llama().encode()).unwrap();
    let paths = split(&source, dir.path().join("m"), SplitBy::Tensors(6)).unwrap();

    let renamed = dir.path().join("model.gguf");
    fs::copy(&paths[0], &renamed).unwrap();
    let text = Shards::open(&renamed).unwrap_err().to_string();
    assert!(text.contains("one of 2 of a split model"), "{text}");
    assert!(text.contains("model-00001-of-00002.gguf, model-00002-of-00002.gguf"), "{text}");

    let second = fs::read(&paths[1]).unwrap();
    fs::copy(&paths[0], &paths[1]).unwrap();
    let text = Shards::open(&paths[0]).unwrap_err().to_string();
    assert!(text.contains("`split.no` is 0, by the file's name it must be 1"), "{text}");
    fs::write(&paths[1], &second).unwrap();

    let edit = |key: &str, value: smol_gguf::Value| {
        let shard = Gguf::from_bytes(second.clone()).unwrap();
        let mut plan = Rewriter::new(&shard);
        plan.set(key, value);
        plan.write_file(&paths[1]).unwrap();
        Shards::open(&paths[0]).unwrap_err().to_string()
    };
    let text = edit("split.no", 1u32.into());
    assert!(text.contains("`split.no` is of type u32, allowed is u16"), "{text}");

    let shard = Gguf::from_bytes(second.clone()).unwrap();
    let mut plan = Rewriter::new(&shard);
    plan.add("output_norm.weight", &[1], TensorType::F32, vec![0; 4]).unwrap();
    plan.write_file(&paths[1]).unwrap();
    let text = Shards::open(&paths[0]).unwrap_err().to_string();
    assert!(text.contains("duplicate tensor `output_norm.weight`"), "{text}");

    let mut plan = Rewriter::new(&shard);
    plan.remove_tensor("blk.0.ffn_down.weight").unwrap();
    plan.write_file(&paths[1]).unwrap();
    let text = Shards::open(&paths[0]).unwrap_err().to_string();
    assert!(text.contains("have 10 tensors, `split.tensors.count` says 11"), "{text}");
}

#[test]
fn failed_split_removes_its_shards() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    write(&Model::llama(), &path);
    let source = Gguf::open(&path).unwrap();
    // The last tensor's data is gone by the time it is copied.
    let len = source.file_len() - 1000;
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
    split(&source, dir.path().join("part"), SplitBy::Tensors(4)).unwrap_err();
    assert_eq!(names_in(dir.path()), ["m.gguf"]);
}

#[test]
fn missing_shard_of_a_lone_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model::llama();
    model.set("split.no", 0u16).set("split.count", 3u16).set("split.tensors.count", 11i32);
    let path = dir.path().join("m-00001-of-00003.gguf");
    write(&model, &path);
    let text = check_file(&path, Depth::Header).unwrap_err().to_string();
    assert!(text.contains("m-00002-of-00003.gguf, m-00003-of-00003.gguf"), "{text}");
}

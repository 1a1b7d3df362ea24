//! Sources that come once, front to back: the same files come out of them.

#![cfg(not(miri))]

mod common;
#[path = "common/mixture.rs"]
mod mixture;

use std::fs;
use std::io::{self, Cursor, Read};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::Model;
use mixture::Mixture;
use smol_gguf::{
    ByteStream, ErrorKind, Gguf, Rewriter, Shards, SplitBy, TensorType, Value, Writer,
};

/// Bytes that come in small pieces, and a count of those that were passed by.
struct Pipe {
    bytes: Cursor<Vec<u8>>,
    piece: usize,
    skipped: Arc<AtomicU64>,
}

impl Pipe {
    fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Cursor::new(bytes), piece: 1000, skipped: Arc::default() }
    }
}

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = buf.len().min(self.piece);
        self.bytes.read(&mut buf[..n])
    }
}

impl ByteStream for Pipe {
    fn skip(&mut self, n: u64) -> io::Result<()> {
        self.skipped.fetch_add(n, Ordering::Relaxed);
        self.bytes.set_position(self.bytes.position() + n);
        Ok(())
    }
}

/// A model with tensors from a few bytes to several megabytes.
fn large() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    for (i, rows) in [3u64, 700, 1, 0, 1400, 5].into_iter().enumerate() {
        writer
            .tensor(format!("blk.{i}.ffn_up_exps.weight"), &[1000, rows], TensorType::F32)
            .unwrap();
        writer.tensor(format!("blk.{i}.ffn_norm.weight"), &[7], TensorType::F16).unwrap();
    }
    let mut data = writer.start(Vec::new()).unwrap();
    let mut number = 0u32;
    while let Some(tensor) = data.next_tensor().cloned() {
        let mut next = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (number >> 24) as u8
        };
        let bytes: Vec<u8> = (0..tensor.n_bytes()).map(|_| next()).collect();
        data.write_tensor(tensor.name(), &bytes).unwrap();
    }
    data.finish().unwrap()
}

/// A file whose experts are at its end, more than 3 MB of them.
fn experts_last() -> Vec<u8> {
    let source = Mixture::Large.gguf();
    let mut plan = Rewriter::new(&source);
    assert!(plan.experts_last());
    plan.write(Vec::new()).unwrap()
}

/// Writes with the same edits from memory, from a file and from a pipe.
fn same_from_everywhere(bytes: &[u8], edit: impl for<'a> Fn(&mut Rewriter<'a>)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (file, new) = (folder.path().join("old.gguf"), folder.path().join("new.gguf"));
    fs::write(&file, bytes).unwrap();
    let write = |source: Gguf| {
        let mut plan = Rewriter::new(&source);
        edit(&mut plan);
        let mut last = 0;
        let told = |done| {
            last = done;
            ControlFlow::Continue(())
        };
        plan.write_file_with(&new, told).unwrap();
        let bytes = fs::read(&new).unwrap();
        assert_eq!(last, bytes.len() as u64);
        bytes
    };
    let source = Gguf::from_bytes(bytes.to_vec()).unwrap();
    let mut plan = Rewriter::new(&source);
    edit(&mut plan);
    let expected = plan.write(Vec::new()).unwrap();
    assert!(write(source.clone()) == expected, "from memory");
    assert!(write(Gguf::open(&file).unwrap()) == expected, "from a file");
    let pipe = Gguf::from_stream("a pipe", Pipe::new(bytes.to_vec())).unwrap();
    assert!(write(pipe) == expected, "from a pipe");
    expected
}

#[test]
fn copies_are_the_same() {
    for bytes in [large(), Model::llama().encode()] {
        assert!(same_from_everywhere(&bytes, |_| {}) == bytes);
    }
}

#[test]
fn any_order_comes_out_of_one_pass() {
    let bytes = large();
    same_from_everywhere(&bytes, |plan| {
        plan.sort_by_key(|tensor| std::cmp::Reverse(tensor.name().to_owned()));
    });
    let last = same_from_everywhere(&bytes, |plan| assert!(plan.experts_last()));
    let last = Gguf::from_bytes(last).unwrap();
    assert_eq!(last.experts_offset().unwrap() % 4096, 0);
}

#[test]
fn edits_combine() {
    let new = same_from_everywhere(&large(), |plan| {
        plan.set("general.name", "x").remove_tensor("blk.1.ffn_up_exps.weight").unwrap();
        plan.add("added", &[2], TensorType::F32, vec![1; 8]).unwrap();
        plan.replace("blk.0.ffn_norm.weight", &[1], TensorType::F32, vec![2; 4]).unwrap();
        let produce = |out: &mut dyn io::Write| Ok(out.write_all(&[3; 4])?);
        plan.add_with("produced", &[1], TensorType::F32, produce).unwrap();
        plan.sort_by_key(|tensor| tensor.name() != "added");
    });
    let new = Gguf::from_bytes(new).unwrap();
    assert_eq!(new.tensors()[0].name(), "added");
    assert_eq!(*new.data(new.tensor("produced").unwrap()).unwrap(), [3; 4]);
}

#[test]
fn what_is_left_out_is_passed_by() {
    let bytes = large();
    let pipe = Pipe::new(bytes.clone());
    let skipped = pipe.skipped.clone();
    let source = Gguf::from_stream("a pipe", pipe).unwrap();
    let mut plan = Rewriter::new(&source);
    plan.remove_tensor("blk.4.ffn_up_exps.weight").unwrap();
    let folder = tempfile::tempdir().unwrap();
    plan.write_file(folder.path().join("new.gguf")).unwrap();
    let skipped = skipped.load(Ordering::Relaxed);
    assert!(skipped > 5_000_000, "{skipped}");
}

/// Every second row, doubled in number of columns: both are told apart by their numbers.
fn every_second(rows: smol_gguf::Rows<'_>, out: &mut dyn io::Write) -> smol_gguf::Result<()> {
    for (number, row) in rows.iter() {
        if number % 2 == 1 {
            out.write_all(row)?;
        }
    }
    Ok(())
}

#[test]
fn rows_are_converted_on_the_way() {
    let bytes = large();
    let name = "blk.4.ffn_up_exps.weight";
    let new = same_from_everywhere(&bytes, |plan| {
        plan.convert(name, &[1000, 700], TensorType::F32, every_second).unwrap();
        // One after the other, and the same bytes for two.
        plan.convert(name, &[1000, 350], TensorType::F32, every_second).unwrap();
        let from = "blk.1.ffn_up_exps.weight";
        plan.add_converted("half", from, &[1000, 350], TensorType::F32, every_second).unwrap();
        let first = |rows: smol_gguf::Rows<'_>, out: &mut dyn io::Write| {
            assert!(rows.len() > 0 && rows.first() < 700);
            Ok(rows.iter().try_for_each(|(_, row)| out.write_all(&row[..2000]))?)
        };
        plan.add_converted("left", from, &[500, 700], TensorType::F32, first).unwrap();
        plan.sort_by_key(|tensor| tensor.name() != "left");
    });
    let (old, new) = (Gguf::from_bytes(bytes).unwrap(), Gguf::from_bytes(new).unwrap());
    let rows = |file: &Gguf, name: &str, len: usize| -> Vec<Vec<u8>> {
        let data = file.data(file.tensor(name).unwrap()).unwrap();
        data.chunks(len).map(<[u8]>::to_vec).collect()
    };
    let chosen = |rows: Vec<Vec<u8>>, step: usize| -> Vec<Vec<u8>> {
        rows.into_iter().skip(step - 1).step_by(step).collect()
    };
    assert!(rows(&new, name, 4000) == chosen(rows(&old, name, 4000), 4));
    let up = rows(&old, "blk.1.ffn_up_exps.weight", 4000);
    assert!(rows(&new, "blk.1.ffn_up_exps.weight", 4000) == up);
    assert!(rows(&new, "half", 4000) == chosen(up.clone(), 2));
    let left: Vec<_> = up.iter().map(|row| row[..2000].to_vec()).collect();
    assert!(rows(&new, "left", 2000) == left);
}

#[test]
fn conversions_that_write_too_little_or_too_much_are_refused() {
    let bytes = large();
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.gguf");
    for rows in [699, 701] {
        for stream in [false, true] {
            let source = match stream {
                true => Gguf::from_stream("a pipe", Pipe::new(bytes.clone())).unwrap(),
                false => Gguf::from_bytes(bytes.clone()).unwrap(),
            };
            let mut plan = Rewriter::new(&source);
            let name = "blk.4.ffn_up_exps.weight";
            plan.convert(name, &[1000, rows], TensorType::F32, every_second).unwrap();
            let error = plan.write_file(&new).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::WriteSize { .. }), "{error}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }
    let source = Gguf::from_bytes(bytes).unwrap();
    let mut plan = Rewriter::new(&source);
    plan.add("x", &[1], TensorType::F32, vec![0; 4]).unwrap();
    let error = plan.add_converted("y", "x", &[1], TensorType::F32, every_second).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoCopy { .. }));
}

#[test]
fn pipes_that_end_early_leave_nothing() {
    let bytes = large();
    let folder = tempfile::tempdir().unwrap();
    for len in [bytes.len() - 100_000, 3_000_000, 100_000] {
        let source = Gguf::from_stream("a pipe", Pipe::new(bytes[..len].to_vec())).unwrap();
        let error = Rewriter::new(&source).write_file(folder.path().join("new")).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("a pipe: truncated: the input ended at byte"), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    // Headers: as from files, whatever the length.
    let small = Model::llama().encode();
    let header = Gguf::from_bytes(small.clone()).unwrap().data_offset() as usize;
    for len in (0..header - 32).step_by(7) {
        let error = Gguf::from_stream("p", Pipe::new(small[..len].to_vec())).unwrap_err();
        let expected = Gguf::from_bytes(small[..len].to_vec()).unwrap_err();
        assert_eq!(error.to_string(), format!("p: {expected}"));
    }
}

#[test]
fn data_that_has_passed_is_an_error() {
    let source = Gguf::from_stream("a pipe", Pipe::new(large())).unwrap();
    assert!(source.is_stream());
    let (first, last) = (&source.tensors()[2], source.tensors().last().unwrap());
    source.data(last).unwrap();
    let error = source.data(first).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::StreamPassed { .. }), "{error}");
    assert!(error.to_string().starts_with("a pipe: byte "), "{error}");
}

#[test]
fn lengths_in_headers_of_pipes_are_not_believed() {
    // A string of a gigabyte that isn't there: no memory is taken for it.
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([0u64, 1, 3].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(b"key");
    bytes.extend(8u32.to_le_bytes());
    bytes.extend((1u64 << 30).to_le_bytes());
    bytes.resize(200_000, b'x');
    let error = Gguf::from_stream("a pipe", Pipe::new(bytes)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::HeaderTruncated { .. }), "{error}");
}

#[test]
fn splits_and_merges_come_back_byte_for_byte() {
    for bytes in [large(), experts_last()] {
        let folder = tempfile::tempdir().unwrap();
        for by in [SplitBy::Tensors(1), SplitBy::Tensors(4), SplitBy::Bytes(3_000_000)] {
            let source = Gguf::from_stream("a pipe", Pipe::new(bytes.clone())).unwrap();
            let plan = Rewriter::new(&source);
            let layout = plan.split_layout(folder.path().join("part"), by).unwrap();
            let mut last = 0;
            let told = |done| {
                last = done;
                ControlFlow::Continue(())
            };
            let paths = plan.write_split(folder.path().join("part"), by, told).unwrap();
            assert!(paths.len() > 1);
            let sizes: Vec<_> = paths
                .iter()
                .map(|path| (path.clone(), fs::metadata(path).unwrap().len()))
                .collect();
            assert_eq!(sizes, layout);
            assert_eq!(last, sizes.iter().map(|(_, len)| len).sum::<u64>());
            // From files, and from pipes.
            let shards = Shards::open(&paths[0]).unwrap();
            assert!(Rewriter::from_shards(&shards).write(Vec::new()).unwrap() == bytes);
            let piped = |path| Gguf::from_stream(path, Pipe::new(fs::read(path).unwrap())).unwrap();
            let shards = Shards::assemble(paths.iter().map(piped).collect()).unwrap();
            let merged = folder.path().join("merged.gguf");
            Rewriter::from_shards(&shards).write_file(&merged).unwrap();
            assert!(fs::read(&merged).unwrap() == bytes);
            for path in paths.iter().chain([&merged]) {
                fs::remove_file(path).unwrap();
            }
        }
    }
}

#[test]
fn a_split_that_is_broken_off_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::from_bytes(large()).unwrap();
    let stop =
        |done| if done > 3_000_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let prefix = folder.path().join("part");
    let error = Rewriter::new(&source).write_split(prefix, SplitBy::Tensors(1), stop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stopped));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn shards_are_assembled_only_when_they_belong_together() {
    let folder = tempfile::tempdir().unwrap();
    let source = Gguf::from_bytes(large()).unwrap();
    let prefix = folder.path().join("part");
    let plan = Rewriter::new(&source);
    let paths =
        plan.write_split(prefix, SplitBy::Tensors(5), |_| ControlFlow::Continue(())).unwrap();
    let files: Vec<_> = paths.iter().map(|path| Gguf::open(path).unwrap()).collect();
    assert_eq!(Shards::count_of(&files[0]).unwrap(), 3);
    assert_eq!(files[0].get("split.count"), Some(&Value::U16(3)));
    let kind = |files: Vec<Gguf>| Shards::assemble(files).unwrap_err().into_kind();
    assert!(matches!(kind(files[..2].to_vec()), ErrorKind::ShardTotal { count: 3, found: 2 }));
    assert!(matches!(kind(Vec::new()), ErrorKind::ShardCount { found: 0 }));
    let swapped = vec![files[0].clone(), files[2].clone(), files[1].clone()];
    assert!(matches!(kind(swapped), ErrorKind::ShardPlace { expected: 1, .. }));
    assert_eq!(Shards::assemble(vec![source.clone()]).unwrap().len(), 1);
}

//! Experts behind everything else: order, alignment, marker, contents.

#[path = "common/mixture.rs"]
mod mixture;

use std::fs;
use std::ops::ControlFlow;

use mixture::{Mixture, data_of, names_in};
use smol_gguf::{
    Array, Depth, EXPERT_ALIGNMENT, EXPERTS_OFFSET_KEY, ErrorKind, ExpertName, Gguf, PADDING_KEY,
    Rewriter, Shards, SplitBy, TensorType, Value, Writer, check, split,
};

fn recut(source: &Gguf) -> Gguf {
    let mut plan = Rewriter::new(source);
    assert!(plan.experts_last());
    Gguf::from_bytes(plan.write(Vec::new()).unwrap()).unwrap()
}

#[test]
fn experts_come_last_in_need_order_and_aligned() {
    for mixture in Mixture::ALL {
        let source = mixture.gguf();
        let new = recut(&source);
        assert_eq!(names_in(&new), mixture.expected_order(), "{mixture:?}");
        let front = new.experts_offset().expect("experts are last");
        assert_eq!(new.get(EXPERTS_OFFSET_KEY), Some(&Value::U64(front)));
        assert_eq!(front % EXPERT_ALIGNMENT, 0);
        // llama.cpp's own tools break files of another alignment.
        assert_eq!(new.alignment(), source.alignment());
        for tensor in new.tensors() {
            let at = new.file_offset(tensor).unwrap();
            let expert = ExpertName::parse(tensor.name()).is_some();
            assert_eq!(at >= front, expert, "{}", tensor.name());
            assert_eq!(data_of(&new, tensor.name()), data_of(&source, tensor.name()));
        }
        // llama.cpp wants tensors without gaps.
        let report = check(&new, Depth::Header);
        let gap = |e: &ErrorKind| matches!(e, ErrorKind::TensorOffset { .. });
        assert!(!report.findings().iter().any(|f| gap(f.error().kind())));
    }
}

#[test]
fn tensors_of_whole_blocks_are_all_aligned() {
    let new = recut(&Mixture::Blocks.gguf());
    let places: Vec<_> = new.experts().map(|(_, t)| new.file_offset(t).unwrap()).collect();
    assert_eq!(places.len(), 6);
    assert!(places.iter().all(|place| place % 4096 == 0), "{places:?}");
}

#[test]
fn metadata_stays_but_for_marker_and_padding() {
    let source = Mixture::Separate.gguf();
    let new = recut(&source);
    let rest = |gguf: &Gguf| -> Vec<_> {
        let added = [PADDING_KEY, EXPERTS_OFFSET_KEY];
        let pairs = gguf.metadata().iter().filter(|(key, _)| !added.contains(key));
        pairs.map(|(key, value)| (key.to_owned(), value.clone())).collect()
    };
    assert_eq!(rest(&new), rest(&source));
    assert!(matches!(new.get(PADDING_KEY), Some(Value::Array(Array::U8(b))) if b.len() < 4096));
}

#[test]
fn again_is_the_same() {
    for mixture in Mixture::ALL {
        let source = mixture.gguf();
        let mut first = Rewriter::new(&source);
        first.experts_last();
        let once = first.write(Vec::new()).unwrap();
        let again = Gguf::from_bytes(once.clone()).unwrap();
        let mut second = Rewriter::new(&again);
        second.experts_last();
        assert!(second.write(Vec::new()).unwrap() == once);
    }
}

#[test]
fn every_alignment_of_the_source_will_do() {
    for alignment in [1, 8, 32, 4096, 1 << 16] {
        let new = recut(&Mixture::Fused.with_alignment(alignment));
        assert_eq!(new.alignment(), u64::from(alignment));
        assert_eq!(new.experts_offset().unwrap() % 4096, 0);
        assert_eq!(new.get_u64(EXPERTS_OFFSET_KEY), new.experts_offset());
    }
}

#[test]
fn nothing_changes_without_experts() {
    let mut writer = Writer::new();
    writer.set("general.architecture", "llama");
    writer.tensor("blk.0.ffn_gate_shexp.weight", &[2], TensorType::F32).unwrap();
    let mut data = writer.start(Vec::new()).unwrap();
    data.write_tensor("blk.0.ffn_gate_shexp.weight", &[1; 8]).unwrap();
    let bytes = data.finish().unwrap();
    let source = Gguf::from_bytes(bytes.clone()).unwrap();
    assert_eq!(source.experts_offset(), None);
    let mut plan = Rewriter::new(&source);
    assert!(!plan.experts_last());
    assert!(plan.write(Vec::new()).unwrap() == bytes);
}

#[test]
fn shards_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let source = Mixture::Separate.gguf();
    let prefix = folder.path().join("part");
    let paths = split(&source, &prefix, SplitBy::Tensors(3)).unwrap();
    assert!(paths.len() > 2);
    let shards = Shards::open(&paths[1]).unwrap();
    let mut plan = Rewriter::from_shards(&shards);
    plan.experts_last();
    let out = folder.path().join("whole.gguf");
    plan.write_file(&out).unwrap();
    let mut whole = Rewriter::new(&source);
    whole.experts_last();
    assert!(fs::read(&out).unwrap() == whole.write(Vec::new()).unwrap());
}

/// The marker never survives an edit that makes it wrong.
#[test]
fn the_marker_is_true_or_gone() {
    let source = recut(&Mixture::Separate.gguf());
    let marked = |plan: &Rewriter<'_>| {
        let new = Gguf::from_bytes(plan.write(Vec::new()).unwrap()).unwrap();
        let marker = new.get_u64(EXPERTS_OFFSET_KEY);
        assert_eq!(marker, new.experts_offset().filter(|_| marker.is_some()));
        assert_eq!(marker.is_some(), new.metadata().contains(PADDING_KEY));
        assert_eq!(marker.unwrap_or(0) % 4096, 0);
        marker.is_some()
    };

    let mut longer = Rewriter::new(&source);
    longer.set("general.name", "a".repeat(20_000));
    assert!(marked(&longer));
    assert!(!marked(
        Rewriter::new(&source).add("last", &[1], TensorType::F32, vec![0; 4]).unwrap()
    ));
    assert!(!marked(Rewriter::new(&source).retain_tensors(|t| !t.name().contains("_exps."))));
    assert!(!marked(
        Rewriter::new(&source).sort_by_key(|t| std::cmp::Reverse(t.name().to_owned()))
    ));
    assert!(marked(Rewriter::new(&source).set(EXPERTS_OFFSET_KEY, "of another type")));

    let folder = tempfile::tempdir().unwrap();
    let paths = split(&source, folder.path().join("part"), SplitBy::Tensors(4)).unwrap();
    for path in paths {
        let shard = Gguf::open(path).unwrap();
        let marker = shard.get_u64(EXPERTS_OFFSET_KEY);
        assert_eq!(marker, shard.experts_offset().filter(|_| marker.is_some()));
    }
}

/// Programs that don't know the marker leave it behind wrong.
#[test]
fn a_wrong_marker_is_a_warning_and_not_used() {
    let source = recut(&Mixture::Fused.gguf());
    let rewritten = |last: bool| {
        let mut writer = Writer::with_metadata(source.metadata().clone());
        writer.set("general.name", "x".repeat(9001));
        let mut tensors: Vec<_> = source.tensors().iter().collect();
        if !last {
            tensors.reverse();
        }
        for tensor in &tensors {
            writer.tensor(tensor.name(), tensor.shape(), tensor.ty()).unwrap();
        }
        let mut data = writer.start(Vec::new()).unwrap();
        for tensor in &tensors {
            data.write_tensor(tensor.name(), &source.data(tensor).unwrap()).unwrap();
        }
        Gguf::from_bytes(data.finish().unwrap()).unwrap()
    };
    let warnings = |gguf: &Gguf| -> Vec<String> {
        let report = check(gguf, Depth::Header);
        report
            .warnings()
            .map(ToString::to_string)
            .filter(|w| w.contains("experts_offset"))
            .collect()
    };
    assert_eq!(warnings(&source), [""; 0]);
    let moved = rewritten(true);
    let place = moved.experts_offset().unwrap();
    assert_ne!(moved.get_u64(EXPERTS_OFFSET_KEY), Some(place));
    assert!(warnings(&moved)[0].contains(&format!("allowed is {place}")), "{:?}", warnings(&moved));
    let mixed = rewritten(false);
    assert_eq!(mixed.experts_offset(), None);
    assert!(warnings(&mixed)[0].contains("no such key"), "{:?}", warnings(&mixed));
}

#[test]
fn progress_is_told_and_breaking_off_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let source = Mixture::Large.gguf();
    let plan = Rewriter::new(&source);
    let len = plan.writer().unwrap().layout().unwrap().1;

    let mut told = Vec::new();
    let go_on = |done| {
        told.push(done);
        ControlFlow::Continue(())
    };
    plan.write_file_with(&out, go_on).unwrap();
    assert!(told.len() > 3, "{told:?}");
    assert!(told.is_sorted() && told.last() == Some(&len), "{told:?}");
    assert!(told.windows(2).all(|pair| pair[1] - pair[0] <= 4 << 20));
    let before = fs::read(&out).unwrap();

    let stop =
        |done| if done > len / 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let error = plan.write_file_with(&out, stop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stopped), "{error}");
    assert!(fs::read(&out).unwrap() == before, "the file that was there stays");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

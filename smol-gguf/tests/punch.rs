//! Freeing experts and putting them back: nothing is lost, and nobody runs what is left.

#[path = "common/mixture.rs"]
mod mixture;

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use mixture::{Mixture, data_of};
use smol_gguf::{
    Depth, ErrorKind, ExpertName, Gguf, Punch, Result, Rewriter, Shards, SplitBy, check_file, split,
};

const BLOCK: u64 = 4096;

/// A model, and a copy with its experts last.
struct Files {
    folder: tempfile::TempDir,
    original: Vec<u8>,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = Self { folder, original: Mixture::Large.bytes(None, 1) };
        fs::write(files.model(), &files.original).unwrap();
        files.write_copy("copy.gguf", 1);
        files
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    fn copy(&self) -> Shards {
        Shards::open(self.folder.path().join("copy.gguf")).unwrap()
    }

    fn write_copy(&self, name: &str, seed: u32) -> PathBuf {
        let path = self.folder.path().join(name);
        let source = Gguf::from_bytes(Mixture::Large.bytes(None, seed)).unwrap();
        let mut plan = Rewriter::new(&source);
        assert!(plan.experts_last());
        plan.write_file(&path).unwrap();
        path
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.model()).unwrap()
    }

    fn is_whole(&self) -> bool {
        self.bytes() == self.original
    }
}

fn go(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// What freed room reads like.
fn zero(mut file: &File, range: Range<u64>) -> io::Result<()> {
    assert_eq!((range.start % BLOCK, range.end % BLOCK), (0, 0));
    file.seek(SeekFrom::Start(range.start))?;
    file.write_all(&vec![0; (range.end - range.start) as usize])
}

fn punch(path: &Path, copy: &Shards) -> Result<u64> {
    let mut punch = Punch::open(path, copy, BLOCK)?;
    let compared = punch.compare(go)?;
    punch.punch(&compared, zero)?;
    assert!(punch.gguf().is_punched());
    Ok(punch.freed_bytes())
}

fn fill(path: &Path, copy: &Shards) -> Result<()> {
    Punch::open(path, copy, BLOCK)?.fill(go)
}

#[test]
fn punched_and_filled_is_the_file_as_it_was() {
    let files = Files::new();
    let copy = files.copy();
    for _ in 0..2 {
        let freed = punch(&files.model(), &copy).unwrap();
        assert!(freed > 14_900_000 && freed < 15_000_036, "{freed}");
        assert!(!files.is_whole());
        fill(&files.model(), &copy).unwrap();
        assert!(files.is_whole());
    }
}

#[test]
fn only_whole_blocks_of_experts_change() {
    let files = Files::new();
    punch(&files.model(), &files.copy()).unwrap();
    let (before, mut after) = (&files.original, files.bytes());
    assert_eq!(&after[..4], b"HOLE");
    after[..4].copy_from_slice(b"GGUF");
    let gguf = Gguf::from_bytes(before.clone()).unwrap();
    let experts: Vec<Range<usize>> = gguf
        .experts()
        .map(|(_, t)| gguf.file_offset(t).unwrap() as usize)
        .zip(gguf.experts().map(|(_, t)| t.n_bytes() as usize))
        .map(|(start, len)| start..start + len)
        .collect();
    let mut records = 0;
    for (index, (before, after)) in before.chunks(4096).zip(after.chunks(4096)).enumerate() {
        let block = index * 4096..index * 4096 + before.len();
        let inside = experts.iter().any(|e| e.start <= block.start && block.end <= e.end);
        let joins =
            experts.iter().any(|e| block.contains(&e.start) || block.contains(&(e.end - 1)));
        if inside {
            records += usize::from(after.iter().any(|&byte| byte != 0));
        } else if !joins {
            assert!(before == after, "{block:?}");
        }
    }
    assert_eq!(records, 1, "all but the record is free");
}

#[test]
fn nobody_takes_it_for_a_model() {
    let files = Files::new();
    punch(&files.model(), &files.copy()).unwrap();
    let path = files.model();
    for error in [
        Gguf::open(&path).unwrap_err(),
        Gguf::read_header(&path).unwrap_err(),
        Shards::open(&path).unwrap_err(),
        check_file(&path, Depth::Header).unwrap_err(),
        Gguf::from_bytes(files.bytes()).unwrap_err(),
    ] {
        assert!(matches!(error.kind(), ErrorKind::Punched), "{error}");
        assert!(error.to_string().contains("--fill"), "{error}");
    }
}

#[test]
fn all_but_experts_stays_readable() {
    let files = Files::new();
    punch(&files.model(), &files.copy()).unwrap();
    let gguf = Gguf::open_punched(files.model()).unwrap();
    assert!(gguf.is_punched());
    let whole = Gguf::from_bytes(files.original.clone()).unwrap();
    assert!(!whole.is_punched());
    assert_eq!(gguf.metadata(), whole.metadata());
    for tensor in gguf.tensors() {
        if ExpertName::parse(tensor.name()).is_none() {
            assert!(data_of(&gguf, tensor.name()) == data_of(&whole, tensor.name()));
        } else {
            let mut buf = [0; 16];
            for error in [
                gguf.data(tensor).unwrap_err(),
                gguf.read_data(tensor, 0, &mut buf).unwrap_err(),
                gguf.data_reader(tensor).unwrap_err(),
            ] {
                assert!(matches!(error.kind(), ErrorKind::Punched), "{error}");
            }
        }
    }
    assert!(Rewriter::new(&gguf).write(io::sink()).is_err());
}

#[test]
fn one_other_byte_anywhere_stops_it() {
    let files = Files::new();
    let copy = files.copy();
    let gguf = Gguf::open(files.model()).unwrap();
    for (_, tensor) in gguf.experts() {
        let start = gguf.file_offset(tensor).unwrap() as usize;
        for offset in [0, tensor.n_bytes() as usize / 2, tensor.n_bytes() as usize - 1] {
            let mut bytes = files.original.clone();
            bytes[start + offset] ^= 1;
            fs::write(files.model(), &bytes).unwrap();
            let error = punch(&files.model(), &copy).unwrap_err().to_string();
            assert!(error.contains(tensor.name()), "{error}");
            assert!(error.contains(&format!("differs from byte {offset} on")), "{error}");
            assert!(files.bytes() == bytes, "nothing is touched");
        }
    }
}

#[test]
fn copies_that_are_none() {
    let files = Files::new();
    let refused = |copy: &Path, words: &str| {
        let error = punch(&files.model(), &Shards::open(copy).unwrap()).unwrap_err().to_string();
        assert!(error.contains("model.gguf") && error.contains(words), "{error}");
        assert!(files.is_whole());
    };
    refused(&files.model(), "the copy is this very file");
    let link = files.folder.path().join("link.gguf");
    fs::hard_link(files.model(), &link).unwrap();
    refused(&link, "the copy is this very file");
    let other = files.folder.path().join("other.gguf");
    fs::write(&other, Mixture::Fused.bytes(None, 1)).unwrap();
    refused(&other, "is missing there");
    let source = files.copy();
    let mut plan = Rewriter::from_shards(&source);
    plan.replace("blk.0.ffn_up_exps.weight", &[2], smol_gguf::TensorType::F32, vec![0; 8]).unwrap();
    plan.write_file(&other).unwrap();
    refused(&other, "of shape [2] there");
    refused(&files.write_copy("other.gguf", 2), "differs from byte 0 on");
    // A copy that is punched itself can't be opened as a copy at all.
    punch(&other, &Shards::from(Gguf::from_bytes(fs::read(&other).unwrap()).unwrap())).unwrap();
    assert!(Shards::open(&other).is_err());
}

#[test]
fn small_experts_and_none() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("model.gguf"), folder.path().join("copy.gguf"));
    for path in [&path, &copy] {
        fs::write(path, Mixture::Separate.bytes(None, 1)).unwrap();
    }
    let copy = Shards::open(copy).unwrap();
    let error = Punch::open(&path, &copy, BLOCK).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NothingToFree { .. }), "{error}");
    let mut plan = Rewriter::from_shards(&copy);
    plan.retain_tensors(|t| ExpertName::parse(t.name()).is_none());
    plan.write_file(&path).unwrap();
    let error = Punch::open(&path, &copy, BLOCK).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoExperts), "{error}");
}

/// Killed after any step, punching and filling go on, and no state in between runs.
#[test]
fn killed_at_any_time() {
    let files = Files::new();
    let copy = files.copy();
    let mut states = Vec::new();
    let mut plan = Punch::open(files.model(), &copy, BLOCK).unwrap();
    let compared = plan.compare(go).unwrap();
    let cut = |range: &Range<u64>| range.start..(range.start + range.end) / 2 / BLOCK * BLOCK;
    plan.punch(&compared, |file, range| {
        states.push(files.bytes());
        zero(file, cut(&range))?;
        states.push(files.bytes()); // freed in part
        zero(file, range)?;
        states.push(files.bytes());
        Ok(())
    })
    .unwrap();
    states.push(files.bytes());
    let last = states.len() - 1;
    // Filling: after each piece.
    let mut filling = Punch::open(files.model(), &copy, BLOCK).unwrap();
    filling
        .fill(|_| {
            let now = files.bytes();
            if states.last() != Some(&now) {
                states.push(now);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(files.is_whole());
    assert!(last > 6 && states.len() > last + 10, "{last} of {}", states.len());
    // The end of filling: all is there but the first bytes.
    let mut late = files.original.clone();
    late[..4].copy_from_slice(b"HOLE");
    states.push(late);

    for (index, state) in states.iter().enumerate() {
        assert_eq!(&state[..4], b"HOLE", "state {index}");
        fs::write(files.model(), state).unwrap();
        punch(&files.model(), &copy).unwrap_or_else(|e| panic!("state {index}: {e}"));
        assert!(files.bytes() == states[last], "state {index}");
        fs::write(files.model(), state).unwrap();
        fill(&files.model(), &copy).unwrap_or_else(|e| panic!("state {index}: {e}"));
        assert!(files.is_whole(), "state {index}");
    }
}

#[test]
fn only_the_very_copy_fills() {
    let files = Files::new();
    punch(&files.model(), &files.copy()).unwrap();
    let punched = files.bytes();
    let other = files.write_copy("other.gguf", 2);
    // The bytes that are left at the borders of blocks tell already.
    let error = fill(&files.model(), &Shards::open(&other).unwrap()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotACopy { .. }), "{error}");

    // Only bytes that were freed are others: the record tells.
    let copy = fs::read(files.folder.path().join("copy.gguf")).unwrap();
    let mut bytes = copy.clone();
    let at = bytes.len() - 2_000_000;
    bytes[at] ^= 2;
    fs::write(&other, bytes).unwrap();
    for act in [fill, |path: &Path, copy: &Shards| punch(path, copy).map(drop)] {
        let error = act(&files.model(), &Shards::open(&other).unwrap()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OtherCopy { .. }), "{error}");
        assert!(error.to_string().contains("copy.gguf"), "{error}");
        assert!(files.bytes() == punched);
    }
}

#[test]
fn whole_files_are_not_filled() {
    let files = Files::new();
    let error = fill(&files.model(), &files.copy()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotPunched), "{error}");
}

#[test]
fn a_file_system_that_cannot_leaves_the_file_as_it_was() {
    let files = Files::new();
    let copy = files.copy();
    let mut punch = Punch::open(files.model(), &copy, BLOCK).unwrap();
    let compared = punch.compare(go).unwrap();
    let error = punch.punch(&compared, |_, _| Err(io::ErrorKind::Unsupported.into())).unwrap_err();
    assert!(error.to_string().contains("model.gguf"), "{error}");
    assert!(files.is_whole());
    // One that fails later leaves what can be filled.
    let calls = Cell::new(0);
    let fails_later = |file: &File, range| {
        calls.set(calls.get() + 1);
        if calls.get() == 2 { Err(io::Error::other("disk on fire")) } else { zero(file, range) }
    };
    assert!(punch.punch(&compared, fails_later).is_err());
    assert!(Gguf::open(files.model()).is_err());
    fill(&files.model(), &copy).unwrap();
    assert!(files.is_whole());
}

#[test]
fn breaking_off() {
    let files = Files::new();
    let copy = files.copy();
    let stop = |done| if done > 5_000_000 { ControlFlow::Break(()) } else { go(done) };
    let error = Punch::open(files.model(), &copy, BLOCK).unwrap().compare(stop).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stopped), "{error}");
    assert!(files.is_whole());
    punch(&files.model(), &copy).unwrap();
    let late = |done| if done > 20_000_000 { ControlFlow::Break(()) } else { go(done) };
    let error = Punch::open(files.model(), &copy, BLOCK).unwrap().fill(late).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Stopped), "{error}");
    assert!(Gguf::open(files.model()).is_err());
    fill(&files.model(), &copy).unwrap();
    assert!(files.is_whole());
}

#[test]
fn files_of_a_split_model_one_by_one() {
    let files = Files::new();
    let whole = Gguf::open(files.model()).unwrap();
    let paths = split(&whole, files.folder.path().join("part"), SplitBy::Tensors(2)).unwrap();
    let before: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let copy = files.copy();
    assert_eq!(Punch::files_of(&paths[1]).unwrap(), paths);
    assert_eq!(Punch::files_of(files.model()).unwrap(), [files.model()]);
    for path in &paths[..2] {
        punch(path, &copy).unwrap();
    }
    assert_eq!(Punch::files_of(&paths[2]).unwrap(), paths);
    assert!(Shards::open(&paths[2]).is_err());
    for path in &paths[..2] {
        fill(path, &copy).unwrap();
    }
    let after: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(after == before);
}

/// Freeing one tensor must never hit another.
#[test]
fn overlapping_tensors_are_refused() {
    let files = Files::new();
    let copy = files.copy();
    let mut bytes = files.original.clone();
    // The offset of `output_norm.weight`, the last tensor, is the last field of the header.
    let gguf = Gguf::from_bytes(bytes.clone()).unwrap();
    let offset = gguf.tensor("output_norm.weight").unwrap().offset().to_le_bytes();
    let at = bytes.windows(8).position(|w| w == offset).unwrap();
    bytes[at..at + 8].copy_from_slice(&gguf.tensors()[2].offset().to_le_bytes());
    fs::write(files.model(), &bytes).unwrap();
    let error = Punch::open(files.model(), &copy, BLOCK).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TensorOffset { .. }), "{error}");
    assert!(files.bytes() == bytes);
}

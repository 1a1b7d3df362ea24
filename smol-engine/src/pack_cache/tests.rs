use super::*;
use crate::io::IoChoice;
use proptest::prelude::*;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn key() -> Key {
    Key {
        model: "abc".into(),
        cpu: "x".into(),
        build: "1".into(),
        layouts: "auto".into(),
        sources: Vec::new(),
    }
}

fn weight(name: &str, bytes: usize) -> Weight {
    Weight {
        name: name.into(),
        layout: "example-8".into(),
        version: 3,
        ty: 10,
        shape: [256, 16, 1, 1],
        bytes: bytes as u64,
    }
}

fn content(index: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + index * 7) as u8).collect()
}

/// Lengths around the alignment, and none.
const LENGTHS: [usize; 5] = [1, 4096, 4097, 0, 10_000];

fn weights() -> impl Iterator<Item = (Weight, Vec<u8>)> {
    let of = |(i, len)| (weight(&format!("blk.{i}.weight"), len), content(i, len));
    LENGTHS.into_iter().enumerate().map(of)
}

fn add_all(writer: &mut Writer<'_>) -> io::Result<()> {
    // In two pieces: a weight may come in parts.
    weights().try_for_each(|(weight, bytes)| {
        writer.add(&weight, |out| {
            let (first, second) = bytes.split_at(bytes.len() / 3);
            out.write_all(first)?;
            out.write_all(second)
        })
    })
}

#[test]
fn a_file_that_is_read_directly_stays_the_one_that_was_opened() {
    let (_temporary, folder, path) = written();
    let file = PackedFile::open(&path, &key()).unwrap();
    let names: Vec<_> = file.weights().map(|weight| weight.name.clone()).collect();
    assert_eq!(names, weights().map(|(weight, _)| weight.name).collect::<Vec<_>>());
    let direct = file.open_direct(IoChoice::Auto).unwrap();
    folder.write(&path, &key(), 20_000, add_all).unwrap();
    direct.check_unchanged().unwrap();
    let (weight, bytes) = weights().nth(4).unwrap();
    let start = file.offset(&weight).unwrap();
    let mut buffer = direct.buffer(bytes.len());
    let range = start..start + bytes.len() as u64;
    assert_eq!(direct.read_range(range, &mut buffer).unwrap(), bytes);
    // Another file is there now, whatever it holds.
    assert!(file.open_direct(IoChoice::Auto).is_err());
    let again = PackedFile::open(&path, &key()).unwrap();
    let direct = again.open_direct(IoChoice::Auto).unwrap();
    fs::remove_file(&path).unwrap();
    direct.check_unchanged().unwrap();
    assert!(again.open_direct(IoChoice::Auto).is_err());
}

fn written() -> (TempDir, Folder, PathBuf) {
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path().join("new"));
    let path = folder.file("a/model.gguf".as_ref(), &key());
    let len = folder.write(&path, &key(), 20_000, add_all).unwrap();
    assert_eq!(len, fs::metadata(&path).unwrap().len());
    (temporary, folder, path)
}

fn names(folder: &Path) -> Vec<String> {
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
#[cfg_attr(miri, ignore)]
fn what_was_written_is_found() {
    let (_temporary, folder, path) = written();
    assert_eq!(names(folder.path()), [path.file_name().unwrap().to_str().unwrap()]);
    let file = PackedFile::open(&path, &key()).unwrap();
    file.verify().unwrap();
    let _prefetch = file.prefetch();
    assert_eq!((file.len(), file.is_empty()), (LENGTHS.len(), false));
    for (weight, bytes) in weights() {
        let found = file.find(&weight).unwrap();
        assert_eq!(found, bytes);
        assert!(bytes.is_empty() || found.as_ptr().addr().is_multiple_of(4096));
        assert_eq!(file.offset(&weight).unwrap() % 4096, 0);
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn another_layout_version_type_or_shape_is_another_weight() {
    let (_temporary, _, path) = written();
    let file = PackedFile::open(&path, &key()).unwrap();
    let whole = weight("blk.0.weight", 1);
    assert!(file.find(&whole).is_some());
    for change in [
        (|w| w.name = "blk.9.weight".into()) as fn(&mut Weight),
        |w| w.layout = "other".into(),
        |w| w.version += 1,
        |w| w.ty = 2,
        |w| w.shape = [16, 256, 1, 1],
        |w| w.bytes = 2,
    ] {
        let mut other = whole.clone();
        change(&mut other);
        assert_eq!(file.find(&other), None, "{other:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore)]
fn files_of_something_else_are_stale() {
    let (_temporary, _, path) = written();
    for (change, words) in [
        ((|key| key.model = "abd".into()) as fn(&mut Key), "the model's file has changed"),
        (|key| key.sources.push(Source::default()), "the model's file has changed"),
        (|key| key.cpu = "y".into(), "it is for another CPU"),
        (|key| key.build = "2".into(), "it is of another version of this program"),
        (|key| key.layouts = "off".into(), "other layouts were chosen"),
    ] {
        let mut other = key();
        change(&mut other);
        let error = PackedFile::open(&path, &other).unwrap_err();
        assert!(matches!(error, Unusable::Stale(what) if what == words), "{error}");
    }
    let error = PackedFile::open(&path.with_extension("none"), &key()).unwrap_err();
    assert!(matches!(error, Unusable::Missing));
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_file_has_a_name_for_model_cpu_and_layouts() {
    let folder = Folder::new("cache");
    let file = |model: &str, key: &Key| folder.file(model.as_ref(), key);
    let first = file("a/model.gguf", &key());
    assert!(first.to_str().unwrap().contains("model-"));
    assert_eq!(first.extension().unwrap(), "smolpack");
    assert_ne!(first, file("b/model.gguf", &key()));
    assert_ne!(first, file("a/model.gguf", &Key { cpu: "y".into(), ..key() }));
    assert_ne!(first, file("a/model.gguf", &Key { layouts: "off".into(), ..key() }));
    // These take the place of the old ones.
    let newer = Key { model: "new".into(), build: "2".into(), ..key() };
    assert_eq!(first, file("a/model.gguf", &newer));
}

#[test]
#[cfg_attr(miri, ignore)]
fn truncation_is_found_wherever_it_is() {
    let (_temporary, _, path) = written();
    let whole = fs::read(&path).unwrap();
    for len in (0..whole.len()).step_by(97).chain(whole.len() - 40..whole.len()) {
        fs::write(&path, &whole[..len]).unwrap();
        let error = PackedFile::open(&path, &key()).unwrap_err();
        assert!(matches!(error, Unusable::Damaged(_)), "{len}: {error}");
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert!(matches!(PackedFile::open(&path, &key()), Err(Unusable::Damaged(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 0 } else { 200 }, ..ProptestConfig::default() })]

    /// In the index it is found at once, in the weights by a check of all bytes, in the gaps it does not matter.
    #[test]
    fn a_flipped_bit_is_found(at in 0.0..1.0_f64, bit in 0..8_u8) {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("x.smolpack");
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes, &key()).unwrap();
        add_all(&mut writer).unwrap();
        writer.finish().unwrap();
        let at = (at * bytes.len() as f64) as usize;
        bytes[at] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        match PackedFile::open(&path, &key()) {
            Err(Unusable::Damaged(_)) => {}
            Err(error) => panic!("{error}"),
            Ok(file) => {
                let whole = weights().all(|(weight, bytes)| file.find(&weight) == Some(&bytes[..]));
                prop_assert_eq!(file.verify().is_ok(), whole);
            }
        }
    }

    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), end in any::<bool>()) {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("x.smolpack");
        let mut file = b"SMOLPACK\x01\0\0\0\0\0\0\0".to_vec();
        file.extend(bytes);
        if end {
            file.extend(b"SMOLPEND");
        }
        fs::write(&path, file).unwrap();
        prop_assert!(matches!(PackedFile::open(&path, &key()), Err(Unusable::Damaged(_))));
    }
}

/// Takes a number of bytes and then is full, as a disk.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        match taken {
            0 if !bytes.is_empty() => Err(io::ErrorKind::StorageFull.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_wherever_it_shows() {
    let write = |room: usize| {
        let mut out = Full(room);
        let mut writer = Writer::new(&mut out, &key())?;
        add_all(&mut writer)?;
        writer.finish()
    };
    let len = write(usize::MAX).unwrap() as usize;
    for room in (0..len).step_by(509).chain([len - 1]) {
        assert_eq!(write(room).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    assert_eq!(write(len).unwrap() as usize, len);
}

#[test]
#[cfg_attr(miri, ignore)]
fn failures_leave_the_old_file_and_nothing_else() {
    let (_temporary, folder, path) = written();
    let before = fs::read(&path).unwrap();
    let failed = folder.write(&path, &key(), 1, |writer| {
        add_all(writer)?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert!(matches!(failed, Err(WriteError::Io(e)) if e.kind() == io::ErrorKind::StorageFull));
    let short = folder
        .write(&path, &key(), 1, |writer| writer.add(&weight("w", 3), |out| out.write_all(b"ab")));
    assert!(matches!(short, Err(WriteError::Io(e)) if e.kind() == io::ErrorKind::InvalidInput));
    let large = folder.write(&path, &key(), u64::MAX, |_| unreachable!());
    assert!(matches!(large, Err(WriteError::NoRoom { .. })));
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(names(folder.path()).len(), 1);
}

#[test]
#[cfg_attr(miri, ignore)]
fn one_of_two_writers_writes() {
    let (_temporary, folder, path) = written();
    let key = key();
    folder
        .write(&path, &key, 1, |writer| {
            let other = folder.write(&path, &key, 1, |_| unreachable!());
            assert!(matches!(other, Err(WriteError::Busy)), "{other:?}");
            // Another model's file is another matter.
            let elsewhere = folder.file("b/model.gguf".as_ref(), &key);
            folder.write(&elsewhere, &key, 1, add_all).unwrap();
            add_all(writer)
        })
        .unwrap();
    assert_eq!(names(folder.path()).len(), 2);
    folder.write(&path, &key, 1, add_all).unwrap();
}

#[test]
#[cfg_attr(miri, ignore)]
fn a_file_in_use_can_be_replaced_and_removed() {
    let (_temporary, folder, path) = written();
    let old = PackedFile::open(&path, &key()).unwrap();
    folder.write(&path, &Key { build: "2".into(), ..key() }, 1, |_| Ok(())).unwrap();
    assert!(matches!(PackedFile::open(&path, &key()), Err(Unusable::Stale(_))));
    folder.clear().unwrap();
    old.verify().unwrap();
}

#[test]
#[cfg_attr(miri, ignore)]
fn the_list_tells_what_is_of_use() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = Folder::new(temporary.path().join("cache"));
    assert_eq!(folder.list("x", "1", false).unwrap(), []);
    assert_eq!(folder.clear().unwrap(), (0, 0));
    let model = temporary.path().join("model.gguf");
    fs::write(&model, "weights").unwrap();
    let key = Key { sources: vec![Source::of(&model).unwrap()], ..key() };
    let path = folder.file(&model, &key);
    let len = folder.write(&path, &key, 1, add_all).unwrap();
    let state = |cpu, build, verify| {
        let files = folder.list(cpu, build, verify).unwrap();
        let [file] = &files[..] else { panic!("{files:?}") };
        assert_eq!((&file.path, file.bytes), (&path, len));
        file.state.clone()
    };
    assert_eq!(state("x", "1", true), CacheState::Current);
    assert!(matches!(state("y", "1", true), CacheState::Stale(_)));
    assert!(matches!(state("x", "2", true), CacheState::Stale(_)));
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[4096 + 4096] ^= 1;
    fs::write(&path, flipped).unwrap();
    assert_eq!(state("x", "1", false), CacheState::Current);
    assert_eq!(state("x", "1", true), CacheState::Damaged("blk.1.weight is damaged".into()));
    fs::write(&path, whole).unwrap();
    fs::write(&model, "other weights").unwrap();
    assert!(matches!(state("x", "1", false), CacheState::Stale(_)));
    fs::write(&path, "SMOL").unwrap();
    let files = folder.list("x", "1", false).unwrap();
    assert!(matches!(files[0].state, CacheState::Damaged(_)));
}

#[test]
#[cfg_attr(miri, ignore)]
fn clearing_takes_what_is_ours() {
    let (_temporary, folder, path) = written();
    let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    put("notes.txt", "keep");
    put("foreign.smolpack", "sixteen bytes or more of something else");
    put(".model-1.smolpack.lock", "");
    let len = fs::metadata(&path).unwrap().len();
    assert_eq!(folder.clear().unwrap(), (1, len));
    assert_eq!(names(folder.path()), ["foreign.smolpack", "notes.txt"]);
}

//! Packed weights that come from the cache: the same bytes and the same logits, and never anything that does not fit.

use std::fs;
use std::path::{Path, PathBuf};

use llama_rs::gguf::TensorType;
use llama_rs::{
    Batch, CacheState, ErrorKind, ExpertPager, LayoutOptions, LoadMode, Model, PackCache,
    PackCacheStatistics, PoolBudget, SeqId, Token, WeightKernel,
};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

struct Place {
    folder: TempDir,
    model: PathBuf,
}

impl Place {
    fn new(arch: Arch, weights: TensorType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        let place = Self { folder, model };
        place.write(arch, weights, 1);
        place
    }

    /// Puts a model under the same name as before.
    fn write(&self, arch: Arch, weights: TensorType, seed: u64) {
        let options = TinyOptions { weights, pure: true, seed, ..TinyOptions::default() };
        tiny::write(&self.model, arch, &options).unwrap();
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn load(&self, cache: impl Into<PackCache>) -> Model {
        Model::builder(&self.model).pack_cache(cache).load().unwrap()
    }

    /// The one file of the cache.
    fn file(&self) -> PathBuf {
        let mut files = fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path());
        let file = files.next().unwrap();
        assert_eq!(files.next(), None);
        file
    }
}

fn fresh(path: &Path) -> Model {
    Model::load(path).unwrap()
}

fn statistics(model: &Model) -> PackCacheStatistics {
    model.pack_cache_statistics().unwrap().clone()
}

fn note(model: &Model) -> String {
    statistics(model).note.unwrap_or_default()
}

/// All logits of a prompt's last token and of some tokens after it.
fn logits(model: &Model) -> Vec<f32> {
    let mut context = model.context().n_ctx(64).threads(2, 2).build().unwrap();
    let mut tokens: Vec<_> = (0..24).map(|n| Token(n * 37 % 600)).collect();
    let (mut all, mut position) = (Vec::new(), 0);
    for _ in 0..3 {
        let batch = Batch::sequence(&tokens, position, SeqId(0));
        position += tokens.len() as i32;
        let row = context.decode(&batch).unwrap().last_logits().unwrap().to_vec();
        tokens = vec![Token(position * 53 % 600)];
        all.extend(row);
    }
    all
}

fn packed(model: &Model) -> usize {
    let is_packed = |kernel: &WeightKernel| !matches!(kernel, WeightKernel::Plain { .. });
    let mut names: Vec<_> =
        model.layouts().iter().filter(|w| is_packed(&w.kernel)).map(|w| &w.name).collect();
    names.sort();
    names.dedup();
    names.len()
}

#[test]
fn cached_weights_are_those_that_are_packed_afresh() {
    for (arch, weights) in [
        (Arch::Llama, TensorType::Q1_0),
        (Arch::Qwen3, TensorType::Q2_0),
        (Arch::Gemma3, TensorType::TQ1_0),
        (Arch::LlamaMoe, TensorType::TQ2_0),
        (Arch::Qwen3, TensorType::Q2_K),
        // Some of llama.cpp's own, where the CPU has them.
        (Arch::Llama, TensorType::Q4_0),
        (Arch::Qwen3, TensorType::Q4_K),
        (Arch::LlamaMoe, TensorType::Q4_0),
    ] {
        let place = Place::new(arch, weights);
        let expected = fresh(&place.model);
        let (weights_packed, expected_logits) = (packed(&expected), logits(&expected));
        let cold = place.load(place.cache());
        let of = |model: &Model| (statistics(model).hits, statistics(model).misses);
        assert_eq!(of(&cold), (0, weights_packed), "{arch:?} {weights:?}");
        assert_eq!(logits(&cold), expected_logits);
        if weights_packed == 0 {
            assert!(!place.cache().exists());
            assert_eq!(note(&cold), "no weight of this model is packed");
            continue;
        }
        assert!(statistics(&cold).written_mb > 0.0);
        // Packed twice, in other memory: all bytes are those of the weights.
        let other = place.folder.path().join("other");
        drop(place.load(other.clone()));
        let twin = other.join(place.file().file_name().unwrap());
        assert!(fs::read(place.file()).unwrap() == fs::read(twin).unwrap(), "{weights:?}");

        let mut cache = PackCache::new(place.cache());
        for verify in [false, true] {
            cache.verify = verify;
            let warm = place.load(cache.clone());
            assert_eq!(of(&warm), (weights_packed, 0), "{arch:?} {weights:?}");
            assert_eq!((statistics(&warm).written_mb, note(&warm)), (0.0, String::new()));
            assert_eq!(warm.layouts(), expected.layouts());
            assert_eq!(logits(&warm), expected_logits, "{arch:?} {weights:?}");
        }
    }
}

#[test]
fn types_of_this_library_are_cached_on_every_cpu() {
    let place = Place::new(Arch::Llama, TensorType::Q2_K);
    assert!(statistics(&place.load(place.cache())).misses > 0);
    let files = PackCache::new(place.cache()).list().unwrap();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert_eq!(file.state, CacheState::Current);
    assert_eq!(file.sources, [place.model.canonicalize().unwrap()]);
    assert_eq!(file.bytes, fs::metadata(place.file()).unwrap().len());
    drop(place.load(place.cache()));
    // What is not packed is mapped from the model's file then.
    let mapped = Model::builder(&place.model).load_mode(LoadMode::Mmap).pack_cache(place.cache());
    let mapped = mapped.load().unwrap();
    assert!(statistics(&mapped).hits > 0);
    assert_eq!(logits(&mapped), logits(&fresh(&place.model)));
    let cleared = PackCache::new(place.cache()).clear().unwrap();
    assert_eq!(cleared, (1, file.bytes));
    // In use all the same.
    assert_eq!(logits(&mapped), logits(&fresh(&place.model)));
}

#[test]
fn a_file_that_has_changed_is_packed_anew() {
    let place = Place::new(Arch::Llama, TensorType::Q2_K);
    drop(place.load(place.cache()));
    place.write(Arch::Llama, TensorType::Q2_K, 2);
    let model = place.load(place.cache());
    assert_eq!(note(&model), "the model's file has changed");
    assert_eq!(statistics(&model).hits, 0);
    assert_eq!(logits(&model), logits(&fresh(&place.model)));
    let warm = place.load(place.cache());
    assert_eq!(statistics(&warm).misses, 0);
    assert_eq!(logits(&warm), logits(&model));
    place.file();
}

#[test]
fn caches_that_are_damaged_are_packed_anew() {
    let place = Place::new(Arch::Qwen3, TensorType::TQ2_0);
    let expected = logits(&place.load(place.cache()));
    let file = place.file();
    let whole = fs::read(&file).unwrap();
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        bytes
    };
    let mut foreign = flip(0);
    foreign.truncate(100);
    let mut verified = PackCache::new(place.cache());
    verified.verify = true;
    for (bytes, verify, words) in [
        (whole[..whole.len() / 2].to_vec(), false, "its end is missing"),
        (Vec::new(), false, "it is too short"),
        (foreign, false, "it is no cache of packed weights"),
        (flip(8), false, "another version of the format"),
        (flip(whole.len() - 60), false, "its index is damaged"),
        (flip(4096 + 10), true, "is damaged"),
    ] {
        fs::write(&file, bytes).unwrap();
        let cache = if verify { verified.clone() } else { place.cache().into() };
        let model = place.load(cache);
        assert!(note(&model).contains(words), "{words}: {}", note(&model));
        assert_eq!(statistics(&model).hits, 0);
        assert_eq!(logits(&model), expected);
        assert!(fs::read(&file).unwrap() == whole, "{words}");
    }
}

#[test]
fn folders_that_cannot_be_written_are_done_without() {
    let place = Place::new(Arch::Llama, TensorType::Q2_K);
    let expected = logits(&fresh(&place.model));
    let no_folder = place.folder.path().join("file");
    fs::write(&no_folder, "").unwrap();
    for cache in [no_folder.clone(), no_folder.join("deeper")] {
        let model = place.load(cache);
        assert!(note(&model).starts_with("not kept: "), "{}", note(&model));
        assert_eq!(logits(&model), expected);
    }
}

#[test]
fn other_layouts_have_another_file() {
    let place = Place::new(Arch::Llama, TensorType::Q2_K);
    drop(place.load(place.cache()));
    let first = place.file();
    let mut layouts = LayoutOptions::default();
    layouts.enabled = false;
    let off = Model::builder(&place.model).layouts(layouts).pack_cache(place.cache()).load();
    let off = off.unwrap();
    assert_ne!(Path::new(&statistics(&off).file), first);
    let builder = || Model::builder(&place.model).pack_cache(place.cache());
    // Neither kind of packing, or all bytes are to be looked at: nothing to do for a cache.
    assert_eq!(builder().repack(false).load().unwrap().pack_cache_statistics(), None);
    assert_eq!(builder().check_tensors(true).load().unwrap().pack_cache_statistics(), None);
    assert_eq!(fresh(&place.model).pack_cache_statistics(), None);
}

#[test]
fn several_loads_at_once_all_succeed() {
    let place = Place::new(Arch::Llama, TensorType::TQ1_0);
    let expected = logits(&fresh(&place.model));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(logits(&place.load(place.cache())), expected));
        }
    });
    let warm = place.load(place.cache());
    assert_eq!(statistics(&warm).misses, 0);
    assert_eq!(logits(&warm), expected);
}

#[test]
fn a_load_that_is_cancelled_keeps_nothing() {
    let place = Place::new(Arch::Llama, TensorType::Q2_K);
    let stop = |_: f32| std::ops::ControlFlow::Break(());
    let stopped = Model::builder(&place.model).pack_cache(place.cache()).on_progress(stop).load();
    assert!(stopped.unwrap_err().is_cancelled());
    assert!(!place.cache().exists());
    // The thread is free of it.
    assert_eq!(fresh(&place.model).pack_cache_statistics(), None);
}

#[test]
fn paged_experts_are_read_packed() {
    let place = Place::new(Arch::LlamaMoe, TensorType::TQ2_0);
    let mut pager = ExpertPager::default();
    pager.budget = PoolBudget::Slots(4);
    let builder = || Model::builder(&place.model).expert_pager(pager.clone());
    let expected = logits(&builder().load().unwrap());
    let load = |verify: bool| {
        let mut cache = PackCache::new(place.cache());
        cache.verify = verify;
        let model = builder().pack_cache(cache).load().unwrap();
        assert_eq!(logits(&model), expected);
        assert!(model.pager_statistics().unwrap().misses > 0);
        *statistics(&model).experts.unwrap()
    };
    let cold = load(false);
    assert!(cold.hits == 0 && cold.misses > 0 && cold.written_mb > 0.0, "{cold:?}");
    let warm = load(false);
    assert_eq!((warm.hits, warm.misses, warm.written_mb), (cold.misses, 0, 0.0));
    // What is resident has a file of its own.
    assert_eq!(fs::read_dir(place.cache()).unwrap().count(), 2);

    let mut bytes = fs::read(&warm.file).unwrap();
    bytes[4096] ^= 1;
    fs::write(&warm.file, bytes).unwrap();
    let again = load(true);
    assert!(again.hits == 0 && again.note.unwrap().contains("is damaged"));
    assert_eq!(load(true).misses, 0);
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_cache_that_is_shortened_ends_the_decode() {
    let place = Place::new(Arch::Llama, TensorType::Q2_K);
    drop(place.load(place.cache()));
    let model = place.load(place.cache());
    let mut context = model.context().n_ctx(64).threads(1, 1).build().unwrap();
    let batch = Batch::sequence(&[Token(5), Token(6)], 0, SeqId(0));
    context.decode(&batch).unwrap();
    fs::File::options().write(true).open(place.file()).unwrap().set_len(4096).unwrap();
    let batch = Batch::sequence(&[Token(7)], 2, SeqId(0));
    let error = context.decode(&batch).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::FileChanged);
    assert!(error.to_string().contains(".smolpack"), "{error}");
}

/// Changes the model's file while it is in use: what was mapped shows it, what was read does not.
#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn what_is_not_packed_is_mapped_from_the_models_file() {
    use llama_rs::gguf::Gguf;
    use std::io::{Seek, SeekFrom, Write};

    let place = Place::new(Arch::Llama, TensorType::Q2_K);
    let options =
        TinyOptions { weights: TensorType::Q2_K, tied: Some(false), ..Default::default() };
    tiny::write(&place.model, Arch::Llama, &options).unwrap();
    let expected = logits(&place.load(place.cache()));
    let load = |mode| {
        let builder = Model::builder(&place.model).load_mode(mode).pack_cache(place.cache());
        let model = builder.load().unwrap();
        assert_eq!(statistics(&model).misses, 0);
        assert_eq!(logits(&model), expected, "{mode:?}");
        model
    };
    let (mapped, read) = (load(LoadMode::Auto), load(LoadMode::Read));
    let gguf = Gguf::open(&place.model).unwrap();
    let table = gguf.tensor("token_embd.weight").unwrap();
    assert!(table.n_bytes() >= 64 << 10, "{} bytes are read", table.n_bytes());
    let mut file = fs::File::options().write(true).open(&place.model).unwrap();
    file.seek(SeekFrom::Start(gguf.file_offset(table).unwrap())).unwrap();
    file.write_all(&vec![0; table.n_bytes() as usize]).unwrap();
    assert!(logits(&mapped) != expected);
    assert!(logits(&read) == expected);

    file.set_len(gguf.data_offset()).unwrap();
    let mut context = mapped.context().n_ctx(64).threads(1, 1).build().unwrap();
    let error = context.decode(&Batch::sequence(&[Token(5)], 0, SeqId(0))).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::FileChanged);
    assert!(error.to_string().contains("model.gguf"), "{error}");
    assert!(logits(&read) == expected);
}

//! Weights that are streamed packed, from the cache.

use super::*;
use llama_rs::{ErrorKind, PackCache, PackCacheStatistics, WeightKernel, WeightUse};
use std::fs;

/// A model, and a folder for its packed weights.
struct Place {
    folder: TempDir,
    model: PathBuf,
}

impl Place {
    fn new(arch: Arch, options: &TinyOptions) -> Self {
        let folder = TempDir::new().unwrap();
        let model = write(&folder, arch, options);
        Self { folder, model }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// The one file of the cache.
    fn file(&self) -> PathBuf {
        let files = fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path());
        let files: Vec<_> = files.collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }

    fn load(&self, cache: impl Into<PackCache>) -> Model {
        self.load_with(cache, WeightStream::default())
    }

    fn load_with(&self, cache: impl Into<PackCache>, stream: WeightStream) -> Model {
        Model::builder(&self.model).pack_cache(cache).weight_stream(stream).load().unwrap()
    }
}

/// What the cache did for streamed weights.
fn streamed(model: &Model) -> PackCacheStatistics {
    *model.pack_cache_statistics().unwrap().streamed.clone().unwrap()
}

/// The matrices that are packed, and how.
fn packed(model: &Model) -> Vec<(String, WeightKernel)> {
    let is_packed = |w: &&llama_rs::WeightLayout| {
        w.used_as == WeightUse::Matrix && !matches!(w.kernel, WeightKernel::Plain { .. })
    };
    let layouts = model.layouts().iter().filter(is_packed);
    let mut all: Vec<_> = layouts.map(|w| (w.name.clone(), w.kernel.clone())).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

#[test]
fn every_architecture_gives_the_logits_of_the_resident_model() {
    for arch in Arch::ALL {
        // Others have the head that their models have.
        let both = matches!(arch, Arch::Llama | Arch::Qwen3);
        let heads: &[Option<bool>] = if both { &[Some(true), Some(false)] } else { &[None] };
        for &tied in heads {
            // Packed by llama.cpp, where the CPU has that.
            let options = TinyOptions { tied, ..of_type(TensorType::Q4_K) };
            let place = Place::new(arch, &options);
            let resident = Model::load(&place.model).unwrap();
            let runs = [(1, 1), (70, 4)];
            let expected = runs.map(|(prompt, threads)| logits(&resident, threads, prompt, 1));
            for pass in ["cold", "warm"] {
                let model = place.load(place.cache());
                assert_eq!(packed(&model), packed(&resident), "{arch:?} {tied:?} {pass}");
                for ((prompt, threads), expected) in runs.iter().zip(&expected) {
                    let found = logits(&model, *threads, *prompt, 1);
                    assert!(found == *expected, "{arch:?} {tied:?} {pass} {prompt} {threads}");
                }
                if packed(&resident).is_empty() {
                    break;
                }
                let statistics = streamed(&model);
                assert!(statistics.hits + statistics.misses > 0);
                assert_eq!(statistics.misses == 0, pass == "warm", "{arch:?} {statistics:?}");
            }
        }
    }
}

#[test]
fn a_prompt_of_several_batches_gives_the_logits_of_the_resident_model() {
    let place = Place::new(Arch::Qwen3, &of_type(TensorType::Q4_K));
    let expected = logits(&Model::load(&place.model).unwrap(), 4, 600, 2);
    for _ in 0..2 {
        assert!(logits(&place.load(place.cache()), 4, 600, 2) == expected);
    }
}

#[test]
fn forms_of_this_library_are_streamed_packed_on_every_cpu() {
    for weights in [TensorType::Q2_K, TensorType::TQ2_0, TensorType::Q1_0] {
        for tied in [true, false] {
            let options = TinyOptions { tied: Some(tied), ..of_type(weights) };
            let place = Place::new(Arch::Llama, &options);
            let resident = Model::load(&place.model).unwrap();
            let expected = logits(&resident, 2, 40, 3);
            drop(place.load(place.cache()));
            // Down to one matrix.
            let load = |path: &Path| Model::builder(path).pack_cache(place.cache());
            let least = least(&place.model, load);
            let model = place.load_with(place.cache(), least.clone());
            let hits = streamed(&model).hits;
            assert_eq!((hits, streamed(&model).misses), (packed(&resident).len(), 0));
            assert!(logits(&model, 2, 40, 3) == expected, "{weights:?} {tied}");
            // Without buffers for what is packed anew there is more in the same memory, and less in the least one.
            let packing = super::least(&place.model, |path| Model::builder(path));
            let (StreamSize::Bytes(least), StreamSize::Bytes(packing)) = (least.zone, packing.zone)
            else {
                panic!()
            };
            assert!(least < packing, "{least} {packing}");
        }
    }
}

#[test]
fn one_file_is_for_all_amounts_of_memory() {
    let place = Place::new(Arch::Llama, &of_type(TensorType::Q2_K));
    let expected = logits(&Model::load(&place.model).unwrap(), 2, 30, 3);
    let with = |resident: u64| {
        let mut stream = WeightStream::default();
        stream.resident = StreamSize::Bytes(resident);
        place.load_with(place.cache(), stream)
    };
    let cold = with(300_000);
    assert!(streamed(&cold).written_mb > 0.0);
    // Those that stay are there at once.
    let all = cold.pack_cache_statistics().unwrap().clone();
    assert!(all.hits > 0 && all.misses == 0 && all.written_mb == 0.0, "{all:?}");
    assert!(logits(&cold, 2, 30, 3) == expected);
    let bytes = fs::read(place.file()).unwrap();
    for resident in [0, 150_000, 500_000] {
        let model = with(resident);
        assert_eq!(streamed(&model).misses, 0);
        // Each is streamed or stays.
        let hits = streamed(&model).hits + model.pack_cache_statistics().unwrap().hits;
        assert_eq!(hits, packed(&model).len(), "{resident}");
        assert!(logits(&model, 2, 30, 3) == expected, "{resident}");
    }
    let whole = Model::builder(&place.model).pack_cache(place.cache()).load().unwrap();
    let statistics = whole.pack_cache_statistics().unwrap();
    assert_eq!((statistics.misses, statistics.written_mb), (0, 0.0));
    assert!(logits(&whole, 2, 30, 3) == expected);
    assert!(fs::read(place.file()).unwrap() == bytes);
    // What a resident load has written is of use too, and what it would not write stays.
    fs::remove_file(place.file()).unwrap();
    drop(Model::builder(&place.model).pack_cache(place.cache()).load().unwrap());
    assert_eq!(streamed(&with(0)).misses, 0);
}

#[test]
fn caches_that_are_damaged_are_made_anew() {
    let place = Place::new(Arch::Qwen3, &of_type(TensorType::TQ2_0));
    let expected = logits(&place.load(place.cache()), 2, 30, 3);
    let file = place.file();
    let whole = fs::read(&file).unwrap();
    let flip = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        bytes
    };
    for (bytes, verify, words) in [
        (whole[..whole.len() / 2].to_vec(), false, "its end is missing"),
        (flip(0), false, "it is no cache of packed weights"),
        (flip(whole.len() - 60), false, "its index is damaged"),
        (flip(4096 + 10), true, "is damaged"),
    ] {
        fs::write(&file, bytes).unwrap();
        let mut cache = PackCache::new(place.cache());
        cache.verify = verify;
        let model = place.load(cache);
        let statistics = streamed(&model);
        assert_eq!(statistics.hits, 0);
        assert!(statistics.note.as_ref().unwrap().contains(words), "{statistics:?}");
        assert!(logits(&model, 2, 30, 3) == expected, "{words}");
        assert!(fs::read(&file).unwrap() == whole, "{words}");
    }
    write(&place.folder, Arch::Qwen3, &TinyOptions { seed: 2, ..of_type(TensorType::TQ2_0) });
    let model = place.load(place.cache());
    assert_eq!(streamed(&model).note.as_deref(), Some("the model's file has changed"));
    let expected = logits(&Model::load(&place.model).unwrap(), 2, 30, 3);
    assert!(logits(&model, 2, 30, 3) == expected);
}

#[test]
fn without_room_for_a_cache_weights_are_packed_as_they_are_read() {
    for weights in [TensorType::Q2_K, TensorType::Q4_K] {
        let place = Place::new(Arch::Llama, &of_type(weights));
        let resident = Model::load(&place.model).unwrap();
        let no_folder = place.folder.path().join("file");
        fs::write(&no_folder, "").unwrap();
        let model = place.load(no_folder);
        assert!(logits(&model, 2, 30, 3) == logits(&resident, 2, 30, 3), "{weights:?}");
        assert_eq!(packed(&model), packed(&resident));
        if !packed(&resident).is_empty() {
            let note = streamed(&model).note.unwrap();
            assert!(note.starts_with("not kept: "), "{note}");
        }
    }
}

#[test]
fn a_file_that_is_replaced_or_removed_stays_in_use() {
    let place = Place::new(Arch::Llama, &of_type(TensorType::Q2_K));
    let expected = logits(&place.load(place.cache()), 2, 30, 3);
    let load = |path: &Path| Model::builder(path).pack_cache(place.cache());
    let stream = least(&place.model, load);
    let model = place.load_with(place.cache(), stream.clone());
    let other = place.folder.path().join("other");
    fs::write(&other, "another one").unwrap();
    fs::rename(&other, place.file()).unwrap();
    assert!(logits(&model, 2, 30, 3) == expected);
    let again = place.load_with(place.cache(), stream);
    assert!(streamed(&again).misses > 0, "the other one was none");
    fs::remove_file(place.file()).unwrap();
    for model in [model, again] {
        assert!(logits(&model, 2, 30, 3) == expected);
    }
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_file_that_is_shortened_ends_the_decode() {
    let place = Place::new(Arch::Llama, &of_type(TensorType::Q2_K));
    drop(place.load(place.cache()));
    let load = |path: &Path| Model::builder(path).pack_cache(place.cache());
    let least = least(&place.model, load);
    let model = place.load_with(place.cache(), least);
    let mut context = model.context().n_ctx(64).threads(1, 1).build().unwrap();
    context.decode(&Batch::sequence(&[Token(5)], 0, SeqId(0))).unwrap();
    fs::File::options().write(true).open(place.file()).unwrap().set_len(4096).unwrap();
    let error = context.decode(&Batch::sequence(&[Token(7)], 1, SeqId(0))).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::FileChanged);
    assert!(error.to_string().contains(".smolpack"), "{error}");
}

#[test]
fn several_loads_at_once_all_succeed() {
    let place = Place::new(Arch::Llama, &of_type(TensorType::TQ2_0));
    let expected = logits(&Model::load(&place.model).unwrap(), 1, 30, 2);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert!(logits(&place.load(place.cache()), 1, 30, 2) == expected));
        }
    });
    let warm = place.load(place.cache());
    assert_eq!(streamed(&warm).misses, 0);
    assert!(logits(&warm, 1, 30, 2) == expected);
}

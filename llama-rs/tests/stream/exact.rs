//! Streamed output equals resident output bit for bit.

use super::*;

#[test]
fn every_architecture_zone_and_head_gives_the_same_logits() {
    for arch in Arch::ALL {
        let mut heads = 0;
        for tied in [true, false] {
            let folder = TempDir::new().unwrap();
            let options = TinyOptions { tied: Some(tied), ..of_type(TensorType::Q4_K) };
            let path = write(&folder, arch, &options);
            // Some architectures know one kind of head only.
            let Ok(resident) = plain(&path).load() else { continue };
            heads += 1;
            // The number of threads decides last bits of attention over long prompts.
            let runs = [(1, 1), (1, 4), (600, 1), (600, 4)];
            let expected = runs.map(|(prompt, threads)| logits(&resident, threads, prompt, 3));
            let least = least(&path, plain);
            let StreamSize::Bytes(floor) = least.zone else { panic!() };
            for stream in [least, zone(floor + floor / 2), WeightStream::default()] {
                let streamed = plain(&path).weight_stream(stream.clone()).load().unwrap();
                for ((prompt, threads), expected) in runs.iter().zip(&expected) {
                    let found = logits(&streamed, *threads, *prompt, 3);
                    assert!(found == *expected, "{arch:?} {tied} {stream:?} {prompt} {threads}");
                }
                let statistics = streamed.stream_statistics().unwrap();
                assert!(statistics.passes > 0 && statistics.bytes_read > 0, "{statistics:?}");
            }
        }
        let both = matches!(arch, Arch::Llama | Arch::Qwen3);
        assert!(heads == 2 || (heads == 1 && !both), "{arch:?}");
    }
}

#[test]
fn all_matrices_are_streamed() {
    let folder = TempDir::new().unwrap();
    for tied in [true, false] {
        let path = write(
            &folder,
            Arch::Llama,
            &TinyOptions { tied: Some(tied), ..of_type(TensorType::F16) },
        );
        let model = plain(&path).weight_stream(WeightStream::default()).load().unwrap();
        let before = model.stream_statistics().unwrap();
        logits(&model, 1, 1, 9);
        let pass = model.stream_statistics().unwrap().since(&before);
        assert_eq!(pass.passes, 10);
        let file = std::fs::metadata(&path).unwrap().len() as f64 / 1e6;
        // Nothing but norms and the tokenizer is left.
        assert!(pass.mb_per_pass > file * 0.6, "{pass:?} of {file} MB");
    }
}

#[test]
fn packed_weights_give_the_same_logits() {
    for weights in [TensorType::Q2_K, TensorType::TQ2_0, TensorType::Q1_0] {
        for tied in [true, false] {
            let folder = TempDir::new().unwrap();
            let path =
                write(&folder, Arch::Llama, &TinyOptions { tied: Some(tied), ..of_type(weights) });
            let load = |path: &Path| Model::builder(path);
            let resident = load(&path).load().unwrap();
            let streamed = load(&path).weight_stream(least(&path, load)).load().unwrap();
            let packed = |model: &Model| {
                let packed = |w: &&llama_rs::WeightLayout| {
                    matches!(w.kernel, llama_rs::WeightKernel::Packed { .. })
                        && w.used_as == llama_rs::WeightUse::Matrix
                };
                model.layouts().iter().filter(packed).count()
            };
            assert!(packed(&resident) > 0);
            assert_eq!(packed(&streamed), packed(&resident), "{weights:?}");
            for (threads, prompt) in [(1, 1), (4, 1), (2, 40)] {
                let found = logits(&streamed, threads, prompt, 8);
                let expected = logits(&resident, threads, prompt, 8);
                assert!(found == expected, "{weights:?} {tied} {threads} {prompt}");
            }
        }
    }
}

#[test]
fn floats_and_other_types_are_streamed_too() {
    for weights in [
        TensorType::F32,
        TensorType::BF16,
        TensorType::F16,
        TensorType::Q8_0,
        TensorType::Q4_0,
        TensorType::IQ4_NL,
    ] {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, Arch::Qwen3, &of_type(weights));
        let resident = plain(&path).load().unwrap();
        let streamed = plain(&path).weight_stream(least(&path, plain)).load().unwrap();
        assert!(logits(&streamed, 2, 30, 8) == logits(&resident, 2, 30, 8), "{weights:?}");
    }
}

#[test]
fn a_part_stays_in_memory() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, &of_type(TensorType::Q8_0));
    let expected = logits(&plain(&path).load().unwrap(), 2, 30, 8);
    let mut read = Vec::new();
    for resident in [0, 600_000, 1_200_000] {
        let mut stream = WeightStream::default();
        stream.resident = StreamSize::Bytes(resident);
        let model = plain(&path).weight_stream(stream).load().unwrap();
        assert!(logits(&model, 2, 30, 8) == expected, "{resident}");
        read.push(model.stream_statistics().unwrap().mb_per_pass);
    }
    assert!(read.is_sorted_by(|more, less| more > less), "{read:?}");
}

#[test]
fn a_split_model_is_streamed_from_all_its_files() {
    let folder = TempDir::new().unwrap();
    let options = TinyOptions { shards: 3, ..TinyOptions::default() };
    let tiny = tiny::write(&folder.path().join("m.gguf"), Arch::Llama, &options).unwrap();
    let resident = plain(tiny.path()).load().unwrap();
    let streamed = plain(tiny.path()).weight_stream(WeightStream::default()).load().unwrap();
    assert!(logits(&streamed, 2, 30, 8) == logits(&resident, 2, 30, 8));
}

#[test]
fn verification_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Gemma3, &of_type(TensorType::Q4_K));
    let resident = plain(&path).load().unwrap();
    let mut stream = WeightStream::default();
    stream.verify = true;
    let streamed = plain(&path).weight_stream(stream).load().unwrap();
    assert!(logits(&streamed, 2, 30, 8) == logits(&resident, 2, 30, 8));
}

#[test]
fn contexts_take_turns() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let models: Vec<_> = [Arch::Llama, Arch::Qwen3]
        .into_iter()
        .zip(&folders)
        .map(|(arch, folder)| {
            let path = write(folder, arch, &of_type(TensorType::Q8_0));
            let expected = logits(&plain(&path).load().unwrap(), 1, 50, 20);
            (plain(&path).weight_stream(least(&path, plain)).load().unwrap(), expected)
        })
        .collect();
    std::thread::scope(|scope| {
        for (model, expected) in models.iter().chain(&models) {
            scope.spawn(move || assert!(logits(model, 2, 50, 20) == *expected));
        }
    });
}

#[test]
fn a_batch_shares_one_pass() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, &of_type(TensorType::F16));
    let model = plain(&path).weight_stream(WeightStream::default()).load().unwrap();
    let before = model.stream_statistics().unwrap();
    let mut context = model.context().n_ctx(1024).build().unwrap();
    let tokens: Vec<_> = (0..500).map(|n| Token(n * 37 % 600)).collect();
    context.decode(&Batch::sequence(&tokens, 0, SeqId(0))).unwrap();
    assert_eq!(model.stream_statistics().unwrap().since(&before).passes, 1);
}

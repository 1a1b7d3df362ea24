//! What is made from a dense model computes what that model computes.

use std::path::{Path, PathBuf};

use nalgebra::DMatrix;
use smol_gguf::{Depth, TensorType, check_file};
use testkit::deep::{DeepOptions, deep};
use testkit::forward::{Forward, mean_loss, tokenize};
use testkit::moe::{MoeArch, MoeOptions, moe};
use testkit::pad::{Widened, pad};
use testkit::quant::{Mix, quantize};
use testkit::source::{Shape, Source};
use testkit::tiny::{self, Arch, TinyOptions};

const TEXT: &str = "The old lighthouse keeper counted the ships every evening, and 12 came back.";

fn dense(folder: &Path) -> PathBuf {
    let path = folder.join("dense.gguf");
    let options = TinyOptions { byte_level: true, ..TinyOptions::default() };
    tiny::write(&path, Arch::Llama, &options).unwrap();
    path
}

fn logits(path: &Path) -> DMatrix<f32> {
    assert!(check_file(path, Depth::Full).unwrap().is_usable(), "{}", path.display());
    let source = Source::open(path).unwrap();
    let tokens = tokenize(&source, TEXT).unwrap();
    Forward::new(&source).unwrap().logits(&tokens).unwrap()
}

/// Returns the largest difference, relative to the deviation of the logits.
fn distance(a: &DMatrix<f32>, b: &DMatrix<f32>) -> f32 {
    assert_eq!(a.shape(), b.shape());
    (a - b).amax() / a.variance().sqrt()
}

#[test]
fn tokens_are_whole_words_where_the_vocabulary_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::open(&dense(folder.path())).unwrap();
    let tokens = source.metadata().get_array("tokenizer.ggml.tokens").unwrap();
    let spelled: Vec<String> = tokenize(&source, "the number was 12\n")
        .unwrap()
        .iter()
        .map(|id| tokens.get(*id as usize).unwrap().as_str().unwrap().to_owned())
        .collect();
    assert_eq!(spelled, ["the", "Ġnumber", "Ġwas", "Ġ", "1", "2", "Ċ"]);
}

#[test]
fn padding_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let input = dense(folder.path());
    let expected = logits(&input);
    let from = Source::open(&input).unwrap().llama_shape().unwrap();
    let to = Shape { hidden: 768, heads: 12, kv_heads: 6, feed_forward: 1024, ..from };
    for noise in [None, Some(3)] {
        let output = folder.path().join("padded.gguf");
        pad(&input, &output, Some(to), noise).unwrap();
        assert_eq!(Source::open(&output).unwrap().llama_shape().unwrap(), to);
        let distance = distance(&expected, &logits(&output));
        assert!(distance < 1e-3, "{distance} with noise {noise:?}");
    }
}

#[test]
fn only_sizes_that_keep_the_function_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::open(&dense(folder.path())).unwrap();
    let from = source.llama_shape().unwrap();
    assert!(Widened::new(&source, from, None).is_ok());
    for to in [
        Shape { hidden: 128, ..from },
        Shape { heads: 6, ..from },
        Shape { head_len: 128, ..from },
        Shape { feed_forward: 256, ..from },
    ] {
        assert!(Widened::new(&source, to, None).is_err(), "{to:?}");
    }
    let output = folder.path().join("out.gguf");
    let qwen = folder.path().join("qwen.gguf");
    tiny::write(&qwen, Arch::Qwen3, &TinyOptions::default()).unwrap();
    let error = pad(&qwen, &output, None, None).unwrap_err().to_string();
    assert!(error.contains("qwen3") && error.contains("qwen.gguf"), "{error}");
    assert!(!output.exists());
}

#[test]
fn additional_layers_add_nothing_and_are_not_empty() {
    let folder = tempfile::tempdir().unwrap();
    let input = dense(folder.path());
    let output = folder.path().join("deep.gguf");
    let mix = Mix { base: TensorType::Q8_0, embedding: Some(TensorType::F16), tied: true };
    let options =
        DeepOptions { hidden: 768, heads: 12, feed_forward: 1024, layers: 7, mix, seed: 5 };
    deep(&input, &output, &options).unwrap();
    // The same weights in the same type, without the additions.
    let reference = folder.path().join("reference.gguf");
    quantize(&input, &reference, mix).unwrap();
    let distance = distance(&logits(&reference), &logits(&output));
    assert!(distance < 1e-3, "{distance}");

    let deep = Source::open(&output).unwrap();
    assert_eq!(deep.llama_shape().unwrap().layers, 7);
    for name in deep.names().into_iter().filter(|name| name.starts_with("blk.0.")) {
        let values = deep.values(name).unwrap();
        let zeros = values.iter().filter(|value| **value == 0.0).count();
        let share = zeros as f32 / values.len() as f32;
        assert!(share < if name.contains("norm") { 0.7 } else { 0.4 }, "{name}: {share}");
    }
}

#[test]
fn quantizing_keeps_the_function_nearly() {
    let folder = tempfile::tempdir().unwrap();
    let input = dense(folder.path());
    let expected = logits(&input);
    let mut before = 0.0;
    for (ty, bound) in [(TensorType::F16, 1e-6), (TensorType::Q8_0, 0.5), (TensorType::Q4_K, 3.0)] {
        let output = folder.path().join("quantized.gguf");
        quantize(&input, &output, Mix { base: ty, embedding: None, tied: true }).unwrap();
        let distance = distance(&expected, &logits(&output));
        assert!((before..=bound).contains(&distance), "{ty}: {distance}");
        before = distance;
    }
}

fn moe_options(arch: MoeArch) -> MoeOptions {
    MoeOptions {
        arch,
        experts: 6,
        used: 2,
        expert_type: TensorType::Q4_K,
        other_type: TensorType::F16,
        shared: 0.5,
        noise: 0.05,
        flips: 0.02,
        seed: 1,
    }
}

#[test]
fn experts_are_the_dense_block_with_noise_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let input = dense(folder.path());
    let source = Source::open(&input).unwrap();
    let text = TEXT.repeat(40);
    for arch in [MoeArch::Llama, MoeArch::Glm4Moe] {
        let output = folder.path().join("moe.gguf");
        let stats = moe(&input, &text, &output, &moe_options(arch)).unwrap();
        assert!(stats.layers >= 2 && stats.reuse > 0.0 && stats.most_popular < 1.0, "{stats}");
        let report = check_file(&output, Depth::Full).unwrap();
        assert!(report.is_usable(), "{:?}", report.findings());
        let mixture = Source::open(&output).unwrap();
        assert_eq!(mixture.dims("blk.1.ffn_gate_inp.weight").unwrap(), [256, 6]);
        let dense = source.values("blk.1.ffn_up.weight").unwrap();
        let experts = mixture.values("blk.1.ffn_up_exps.weight").unwrap();
        let experts: Vec<&[f32]> = experts.chunks_exact(dense.len()).collect();
        assert_eq!(experts.len(), 6);
        for (index, expert) in experts.iter().enumerate() {
            let error = dense.iter().zip(*expert).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
            let power = dense.iter().map(|a| a * a).sum::<f32>();
            assert!(error / power < 0.02, "expert {index}: {}", error / power);
            assert!(experts[..index].iter().all(|other| other != expert));
        }
    }
}

#[test]
fn the_shared_expert_and_the_router_share_the_output() {
    let folder = tempfile::tempdir().unwrap();
    let input = dense(folder.path());
    let source = Source::open(&input).unwrap();
    let output = folder.path().join("moe.gguf");
    moe(&input, &TEXT.repeat(40), &output, &moe_options(MoeArch::Glm4Moe)).unwrap();
    let mixture = Source::open(&output).unwrap();
    let scale = mixture.metadata().get_f32("glm4moe.expert_weights_scale");
    assert_eq!(scale, Some(0.5));
    let dense = source.rows("blk.1.ffn_down.weight", 3..4).unwrap();
    let shared = mixture.rows("blk.1.ffn_down_shexp.weight", 3..4).unwrap();
    assert!(dense.iter().zip(&shared).all(|(a, b)| (a / 2.0 - b).abs() < 1e-3));
    assert!(mixture.has("blk.0.ffn_up.weight") && !mixture.has("blk.0.ffn_up_exps.weight"));
    // Pairs of rotated features: neighbours in one architecture, half a head apart in the other.
    let row =
        |source: &Source, row: usize| source.rows("blk.0.attn_q.weight", row..row + 1).unwrap();
    for (old, new) in [(0, 0), (1, 32), (2, 1), (63, 63), (64, 64), (67, 97)] {
        assert_eq!(row(&source, old), row(&mixture, new), "{old} {new}");
    }
}

#[test]
fn a_text_that_is_too_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let input = dense(folder.path());
    let output = folder.path().join("moe.gguf");
    let error = moe(&input, TEXT, &output, &moe_options(MoeArch::Llama)).unwrap_err();
    assert!(error.to_string().contains("384"), "{error}");
    assert!(!output.exists());
}

#[test]
fn loss_is_that_of_an_even_guess_for_equal_logits() {
    let logits = DMatrix::from_element(3, 8, 0.5);
    assert!((mean_loss(&logits, &[1, 2, 3]) - 8f64.ln()).abs() < 1e-6);
}

//! Odd but legal models, which must pass.

mod common;

use common::{Model, errors, warnings};
use smol_gguf::{Depth, Gguf, TensorType, check};

#[track_caller]
fn accepts(model: &Model) -> Vec<String> {
    let report = model.check();
    assert!(report.is_usable(), "{:?}", errors(&report));
    warnings(&report)
}

#[test]
fn plain_model_has_no_findings() {
    assert_eq!(accepts(&Model::llama()), [""; 0]);
}

#[test]
fn values_for_each_layer() {
    let mut model = Model::with_arch("nemotron_h");
    model.set("nemotron_h.block_count", 4u32);
    model.set("nemotron_h.attention.head_count", vec![0u32, 4, 0, 8]);
    model.set("nemotron_h.attention.head_count_kv", vec![0i32, 2, 0, 2]);
    model.set("nemotron_h.feed_forward_length", vec![0u32, 0, 128, 0]);
    model.f32("output_norm.weight", &[64]);
    assert_eq!(accepts(&model), [""; 0]);
    let mut model = Model::with_arch("lfm2");
    model.set("lfm2.block_count", 2u32).set("lfm2.shortconv.l_cache", 3u32);
    model.set("lfm2.attention.head_count_kv", vec![0u32, 2]);
    model.f32("output_norm.weight", &[64]);
    assert_eq!(accepts(&model), [""; 0]);
}

#[test]
fn models_without_attention() {
    let mut mamba = Model::with_arch("mamba");
    mamba.remove("mamba.attention.head_count").remove("mamba.attention.head_count_kv");
    mamba.set("mamba.feed_forward_length", 0u32);
    mamba.remove("mamba.rope.freq_base").f32("blk.0.ssm_norm.weight", &[64]);
    assert_eq!(accepts(&mamba), [""; 0]);
    let mut rwkv = Model::with_arch("rwkv7");
    rwkv.set("rwkv7.attention.head_count", 0u32).remove("rwkv7.attention.head_count_kv");
    rwkv.set("rwkv7.wkv.head_size", 32u32).set("rwkv7.rope.freq_base", 0f32);
    rwkv.f32("output_norm.weight", &[64]);
    assert_eq!(accepts(&rwkv), [""; 0]);
    // A hybrid family's groups may be unused.
    let mut plamo = Model::with_arch("plamo2");
    plamo.set("plamo2.ssm.inner_size", 128u32).set("plamo2.ssm.time_step_rank", 4u32);
    plamo.set("plamo2.ssm.group_count", 0u32).f32("blk.0.ssm_norm.weight", &[128]);
    assert_eq!(accepts(&plamo), [""; 0]);
    let mut dense = Model::with_arch("granitehybrid");
    dense.set("granitehybrid.ssm.group_count", 0u32).f32("output_norm.weight", &[64]);
    assert_eq!(accepts(&dense), [""; 0]);
}

#[test]
fn special_values() {
    let mut model = Model::llama();
    // "No such token", and one that padding often has.
    model.set("tokenizer.ggml.seperator_token_id", u32::MAX);
    model.set("tokenizer.ggml.padding_token_id", 6u32);
    // Zero is "unset" for these.
    model.set("llama.rope.scaling.factor", 0f32).set("llama.logit_scale", 0f32);
    model.set("llama.expert_count", 0u32).set("llama.expert_used_count", 0u32);
    // Limits that are off.
    model.set("llama.activation_sparsity_scale", vec![f32::NEG_INFINITY, 1.5]);
    model.set("llama.unknown", -1i64).set("vendor.nan", f32::NAN);
    let found = accepts(&model);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("padding_token_id` is 6"), "{found:?}");
}

#[test]
fn empty_tokens_and_tokens_that_are_not_text() {
    let mut model = Model::llama();
    let tokens = [&b"<unk>"[..], b"<s>", b"</s>", b"", b"", b"\xff\xfe"];
    model.set("tokenizer.ggml.tokens", tokens.iter().collect::<smol_gguf::StringArray>());
    assert_eq!(accepts(&model), [""; 0]);
}

#[test]
fn switched_off_factors() {
    let mut model = Model::llama();
    model.f32("rope_freqs.weight", &[8]).f32("blk.0.attn_sinks.weight", &[4]);
    model.data_of("rope_freqs.weight")[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let off = f32::NEG_INFINITY.to_le_bytes();
    model.data_of("blk.0.attn_sinks.weight")[..4].copy_from_slice(&off);
    assert_eq!(accepts(&model), [""; 0]);
}

#[test]
fn vocabulary_only() {
    let mut model = Model::with_arch("llama");
    for key in ["context_length", "embedding_length", "block_count"] {
        model.remove(&format!("llama.{key}"));
    }
    assert_eq!(accepts(&model), [""; 0]);
}

#[test]
fn companions_of_models() {
    for general_type in ["adapter", "mmproj", "imatrix"] {
        let mut writer = smol_gguf::Writer::new();
        writer.set("general.type", general_type).set("general.architecture", "llama");
        writer.tensor("w.lora_a", &[4, 2], TensorType::F32).unwrap();
        let mut data = writer.start(Vec::new()).unwrap();
        data.write_tensor("w.lora_a", &[0; 32]).unwrap();
        let gguf = Gguf::from_bytes(data.finish().unwrap()).unwrap();
        let report = check(&gguf, Depth::Full);
        assert!(report.is_usable(), "{:?}", errors(&report));
        assert!(warnings(&report)[0].contains(general_type));
    }
}

#[test]
fn models_without_a_vocabulary() {
    let mut model = Model::llama();
    model.set("tokenizer.ggml.model", "none").remove("tokenizer.ggml.tokens");
    model.set("llama.vocab_size", 6u32);
    assert_eq!(accepts(&model), [""; 0]);
}

#[test]
fn every_tensor_type_is_read_and_scanned() {
    let mut model = Model::llama();
    for &ty in TensorType::ALL {
        model.tensor(&format!("extra.{ty}"), &[256, 2], ty);
    }
    assert_eq!(accepts(&model), [""; 0]);
}

//! Models with valid headers that llama.cpp would abort, crash or compute garbage on.

mod common;

use common::{Model, Raw, errors, warnings};
use smol_gguf::{Array, Depth, Gguf, TensorType, Value, check};

/// The model with one key changed must give exactly one error, with these words.
#[track_caller]
fn refuses(key: &str, value: impl Into<Value>, words: &[&str]) {
    refuses_model(Model::llama().set(key, value), words);
}

#[track_caller]
fn refuses_model(model: &Model, words: &[&str]) {
    let report = model.check();
    let found = errors(&report);
    assert_eq!(found.len(), 1, "{found:?}");
    for word in words {
        assert!(found[0].contains(word), "{found:?} lacks {word:?}");
    }
    assert!(!found[0].contains('\n'));
    assert!(!report.is_usable());
    assert!(report.into_result().is_err());
}

#[test]
fn counts_out_of_range() {
    refuses("llama.block_count", 0u32, &["`llama.block_count` is 0, allowed is 1 to 512"]);
    refuses("llama.block_count", 513u32, &["`llama.block_count` is 513, allowed is 1 to 512"]);
    refuses("llama.block_count", u32::MAX, &["llama.block_count", "512"]);
    refuses("llama.nextn_predict_layers", 2u32, &["llama.nextn_predict_layers", "0 to 1"]);
    refuses("llama.context_length", 0u32, &["llama.context_length` is 0"]);
    refuses("llama.context_length", u32::MAX, &["llama.context_length", "1 to 2147483647"]);
    refuses("llama.embedding_length", 0u32, &["llama.embedding_length` is 0"]);
    refuses("llama.embedding_length", 1u32 << 30, &["llama.embedding_length", "1 to 1048576"]);
    refuses("llama.feed_forward_length", u32::MAX, &["llama.feed_forward_length", "67108864"]);
    let mut none = Model::llama();
    none.set("tokenizer.ggml.model", "none").set("llama.vocab_size", u32::MAX);
    refuses_model(&none, &["llama.vocab_size", "0 to 16777216"]);
}

#[test]
fn missing_and_mistyped_keys() {
    refuses_model(Model::llama().remove("llama.block_count"), &["`llama.block_count` is missing"]);
    refuses_model(Model::llama().remove("general.architecture"), &["`general.architecture`"]);
    refuses("general.architecture", 1u32, &["general.architecture", "type u32", "allowed is str"]);
    refuses("llama.block_count", 1i32, &["llama.block_count", "type i32", "allowed is u32"]);
    refuses("llama.block_count", "1", &["llama.block_count", "type str"]);
    refuses("llama.rope.freq_base", 10000f64, &["llama.rope.freq_base", "type f64"]);
    refuses("llama.rope.freq_base", 10000u32, &["llama.rope.freq_base", "type u32"]);
}

#[test]
fn experts() {
    refuses("llama.expert_count", 8u32, &["llama.expert_used_count` is 0", "1 to 8"]);
    refuses("llama.expert_count", 2048u32, &["llama.expert_count` is 2048", "0 to 1024"]);
    refuses("llama.expert_used_count", 2u32, &["llama.expert_used_count` is 2", "0 without"]);
    let with = |used: u32, groups: u32, groups_used: u32| {
        let mut model = Model::llama();
        model.set("llama.expert_count", 8u32).set("llama.expert_used_count", used);
        model.set("llama.expert_group_count", groups);
        model.set("llama.expert_group_used_count", groups_used);
        model
    };
    assert!(with(2, 0, 0).check().is_usable());
    assert!(with(8, 4, 2).check().is_usable());
    refuses_model(&with(9, 0, 0), &["expert_used_count` is 9", "1 to 8"]);
    refuses_model(&with(2, 8, 1), &["expert_group_count` is 8", "0 to 7"]);
    refuses_model(&with(2, 3, 1), &["expert_group_count` is 3", "a divisor of 8"]);
    refuses_model(&with(2, 4, 0), &["expert_group_used_count` is 0", "1 to 3"]);
    refuses_model(&with(2, 4, 4), &["expert_group_used_count` is 4", "1 to 3"]);
}

#[test]
fn heads() {
    let heads = "llama.attention.head_count";
    let heads_kv = "llama.attention.head_count_kv";
    refuses(heads, 0u32, &["head_count` is 0", "1 to 65536"]);
    refuses(heads, 6u32, &["llama.embedding_length` is 64", "a multiple of the 6 heads"]);
    refuses(heads_kv, 3u32, &["head_count_kv` is 3", "a divisor of the 4 heads of layer 0"]);
    refuses(heads_kv, 8u32, &["head_count_kv` is 8"]);
    refuses(heads_kv, vec![2u32, 2], &["head_count_kv` has 2 elements, allowed is 1"]);
    refuses(heads_kv, vec![2f32], &["head_count_kv` is of type [f32]"]);
    refuses("llama.attention.key_length", 0u32, &["key_length` is 0"]);
    refuses("llama.attention.value_length", 8u32, &["value_length` is 8", "16"]);
    refuses("llama.rope.dimension_count", 8u32, &["rope.dimension_count` is 8", "16"]);
}

#[test]
fn names_out_of_a_fixed_set() {
    refuses("llama.rope.scaling.type", "magic", &["rope.scaling.type` is magic", "yarn"]);
    refuses("llama.classifier.activation", "relu", &["classifier.activation` is relu", "gelu"]);
}

#[test]
fn float_hyperparameters() {
    let eps = "llama.attention.layer_norm_rms_epsilon";
    refuses(eps, f32::NAN, &[eps, "is NaN, allowed is 0 to 1"]);
    refuses(eps, -1e-5f32, &[eps, "0 to 1"]);
    refuses(eps, f32::INFINITY, &[eps, "is inf"]);
    for bad in [f32::NAN, f32::INFINITY, 0.0, -10000.0] {
        refuses("llama.rope.freq_base", bad, &["llama.rope.freq_base", "above 0"]);
    }
    refuses("llama.rope.scaling.factor", f32::NAN, &["rope.scaling.factor", "NaN"]);
    refuses("llama.rope.scaling.factor", -2f32, &["rope.scaling.factor", "-2"]);
    refuses("llama.logit_scale", f32::NAN, &["llama.logit_scale"]);
    refuses("llama.residual_scale", f32::INFINITY, &["llama.residual_scale", "inf"]);
    refuses("llama.something.new", f32::NAN, &["llama.something.new", "NaN"]);
    refuses("llama.something.list", vec![0.5f32, f32::NAN], &["llama.something.list", "NaN"]);
}

#[test]
fn division_by_zero_in_special_layers() {
    let mut rwkv = Model::with_arch("rwkv7");
    rwkv.set("rwkv7.wkv.head_size", 0u32).f32("output_norm.weight", &[64]);
    refuses_model(&rwkv, &["`rwkv7.wkv.head_size` is 0"]);
    refuses_model(rwkv.set("rwkv7.wkv.head_size", 48u32), &["a divisor of 64"]);

    let mut hybrid = Model::with_arch("granitehybrid");
    hybrid.set("granitehybrid.ssm.inner_size", 128u32);
    hybrid.set("granitehybrid.ssm.time_step_rank", 8u32);
    hybrid.set("granitehybrid.ssm.group_count", 0u32).f32("blk.0.ssm_norm.weight", &[128]);
    refuses_model(&hybrid, &["`granitehybrid.ssm.group_count` is 0"]);
    hybrid.set("granitehybrid.ssm.group_count", 1u32);
    refuses_model(
        hybrid.clone().set("granitehybrid.ssm.time_step_rank", 0u32),
        &["time_step_rank` is 0"],
    );
    refuses_model(hybrid.set("granitehybrid.ssm.time_step_rank", 9u32), &["a divisor of 128"]);

    let mut qwen = Model::with_arch("qwen35");
    qwen.set("qwen35.full_attention_interval", 0u32).f32("output_norm.weight", &[64]);
    refuses_model(&qwen, &["full_attention_interval` is 0"]);
}

#[test]
fn relations_that_single_architectures_assert() {
    let family = |arch: &str, pairs: &[(&str, u32)]| {
        let mut model = Model::with_arch(arch);
        model.f32("output_norm.weight", &[64]);
        for (suffix, n) in pairs {
            model.set(&format!("{arch}.{suffix}"), *n);
        }
        model
    };
    let gemma = [("block_count", 4), ("attention.shared_kv_layers", 3)];
    refuses_model(&family("gemma4", &gemma), &["shared_kv_layers` is 3, allowed is 0 to 2"]);
    refuses_model(&family("gemma4", &[]), &["`gemma4.block_count` is 1, allowed is 2"]);
    refuses_model(&family("glm4moe", &[]), &["`glm4moe.expert_count` is missing"]);
    refuses_model(&family("jamba", &[("ssm.inner_size", 64)]), &["allowed is 128, which is 2 *"]);
    refuses_model(&family("nanbeige", &[("num_loops", 513)]), &["num_loops` is 513", "1 to 512"]);
    refuses_model(&family("gemma-embedding", &[("dense_2_feat_in", 7)]), &["allowed is 64"]);
    let experts = [("expert_count", 4), ("expert_used_count", 2), ("expert_gating_func", 0)];
    refuses_model(&family("bailingmoe2", &experts), &["expert_gating_func` is 0", "1 to 4"]);
    assert!(family("qwen3moe", &experts).check().is_usable());
    for n in [0, 3, 18] {
        let text = format!("rope.dimension_count` is {n}, allowed is an even number from 2 to 16");
        refuses_model(&family("gemma3", &[("rope.dimension_count", n)]), &[&text]);
    }
    assert!(family("gemma3", &[("rope.dimension_count", 8)]).check().is_usable());
    assert!(family("mamba", &[("rope.dimension_count", 0)]).check().is_usable());

    let mut qwen = family("qwen35", &[]);
    qwen.set("qwen35.rope.dimension_sections", vec![0i32, 0, 0, 4]);
    refuses_model(&qwen, &["dimension_sections` is [0, 0, 0, 4]", "first three"]);
    qwen.set("qwen35.rope.dimension_sections", vec![2i32, 1, 1, 0]).f32("blk.0.ssm_a", &[4]);
    for (suffix, n) in
        [("inner_size", 60u32), ("time_step_rank", 4), ("group_count", 2), ("state_size", 16)]
    {
        qwen.set(&format!("qwen35.ssm.{suffix}"), n);
    }
    refuses_model(&qwen, &["inner_size` is 60, allowed is 64, which is"]);
    assert!(qwen.set("qwen35.ssm.inner_size", 64u32).check().is_usable());

    let compressed = [
        ("attention.key_length_mla", 24),
        ("attention.value_length_mla", 16),
        ("attention.kv_lora_rank", 32),
        ("rope.dimension_count", 8),
    ];
    let mut deepseek = family("deepseek2", &compressed);
    refuses_model(&deepseek, &["`deepseek2.attention.key_length` is missing, allowed is 40"]);
    refuses_model(
        deepseek.set("deepseek2.attention.key_length", 24u32),
        &["key_length` is 24, allowed is 40"],
    );
    assert!(deepseek.set("deepseek2.attention.key_length", 40u32).check().is_usable());

    let mut ling = family("bailingmoe3", &[]);
    refuses_model(ling.set("bailingmoe3.kda.safe_gate", false), &["kda.safe_gate` is false"]);
}

#[test]
fn vocabulary() {
    let tokens = "tokenizer.ggml.tokens";
    let mut duplicate = common::TOKENS.to_vec();
    duplicate[5] = "a";
    refuses(tokens, duplicate, &["token `a` has two ids, 3 and 5"]);
    // A zero byte ends a token for llama.cpp.
    refuses(tokens, vec!["<unk>", "<s>", "</s>", "a\0x", "b", "a"], &["3 and 5"]);
    refuses(tokens, vec![1i32], &[tokens, "type [i32]", "[str]"]);
    refuses(tokens, "a", &[tokens, "type str"]);
    refuses_model(Model::llama().remove(tokens), &[tokens, "missing"]);
    refuses("tokenizer.ggml.scores", vec![0f32; 5], &["scores` has 5 elements", "6, one for each"]);
    refuses("tokenizer.ggml.scores", vec![0f64; 6], &["scores", "type [f64]"]);
    refuses("tokenizer.ggml.token_type", vec![1i32; 2], &["token_type` has 2 elements"]);
    refuses("tokenizer.ggml.token_type", vec![1u32; 6], &["token_type", "type [u32]"]);
    refuses("tokenizer.ggml.merges", vec![1u8], &["merges", "type [u8]"]);
    let mut nan = vec![0f32; 6];
    nan[4] = f32::NAN;
    refuses("tokenizer.ggml.scores", nan, &["scores", "NaN for token 4"]);
}

#[test]
fn special_tokens() {
    let eos = "tokenizer.ggml.eos_token_id";
    refuses(eos, 6u32, &["eos_token_id` is 6, allowed is 0 to 5"]);
    refuses(eos, 2i32, &["eos_token_id` is of type i32"]);
    // The start token of these tokenizers has no usable default.
    let mut gemma = Model::llama();
    gemma.set("tokenizer.ggml.model", "gemma4").remove("tokenizer.ggml.bos_token_id");
    refuses_model(&gemma, &["bos_token_id` is missing", "adds it"]);
    let mut glm = Model::llama();
    glm.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "glm4");
    glm.remove("tokenizer.ggml.bos_token_id");
    assert!(glm.check().is_usable());
    refuses_model(glm.set("tokenizer.ggml.add_bos_token", true), &["bos_token_id` is missing"]);
    let mut bert = Model::llama();
    bert.set("tokenizer.ggml.model", "bert");
    refuses_model(&bert, &["seperator_token_id` is missing"]);
}

#[test]
fn damaged_charsmap() {
    let mut t5 = Model::llama();
    t5.set("tokenizer.ggml.model", "t5");
    let key = "tokenizer.ggml.precompiled_charsmap";
    assert!(t5.clone().set(key, vec![0u8, 0, 0, 0, 0]).check().is_usable());
    refuses_model(t5.clone().set(key, vec![8u8, 0, 0, 0, 0]), &[key, "more than 12"]);
    refuses_model(t5.clone().set(key, vec![0u8]), &[key, "1 elements"]);
    refuses_model(t5.set(key, vec![0u32]), &[key, "type [u32]"]);
}

#[test]
fn numbers_in_vectors() {
    let mut model = Model::llama();
    model.data_of("output_norm.weight")[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    refuses_model(&model, &["`output_norm.weight` is NaN at element 2"]);
    let report = check(&Gguf::from_bytes(model.encode()).unwrap(), Depth::Header);
    assert!(!report.is_usable(), "vectors are checked at any depth");

    let mut model = Model::llama();
    let last = 4 * 63;
    model.data_of("blk.0.attn_norm.weight")[last..]
        .copy_from_slice(&f32::NEG_INFINITY.to_le_bytes());
    refuses_model(&model, &["`blk.0.attn_norm.weight` is -inf at element 63"]);

    for (ty, bytes) in [(TensorType::F16, [0x00, 0x7e]), (TensorType::BF16, [0x80, 0x7f])] {
        let mut model = Model::llama();
        model.tensor("blk.0.scale", &[4], ty);
        model.data_of("blk.0.scale")[2..4].copy_from_slice(&bytes);
        refuses_model(&model, &["`blk.0.scale`", "at element 1"]);
    }
}

#[test]
fn numbers_in_matrices_at_full_depth() {
    let mut model = Model::llama();
    // The scale of the last of 256 blocks of 18 bytes.
    model.data_of("blk.0.ffn_gate.weight")[255 * 18..][..2].copy_from_slice(&[0x00, 0x7c]);
    refuses_model(&model, &["`blk.0.ffn_gate.weight` has the scale inf in block 255"]);
    let report = check(&Gguf::from_bytes(model.encode()).unwrap(), Depth::Header);
    assert!(report.is_usable(), "matrices are left for the full depth");

    let mut model = Model::llama();
    model.data_of("blk.0.ffn_up.weight")[..2].copy_from_slice(&[0xff, 0xff]);
    refuses_model(&model, &["`blk.0.ffn_up.weight` is NaN at element 0"]);
}

#[test]
fn types_that_are_not_computed_with() {
    let mut model = Model::llama();
    model.tensor("blk.0.post_ffw_norm.weight", &[64], TensorType::Q8_0);
    refuses_model(&model, &["`blk.0.post_ffw_norm.weight` has type q8_0, allowed is f32"]);
    let mut model = Model::llama();
    model.tensor("blk.0.attn_q.bias", &[64], TensorType::F16);
    refuses_model(&model, &["`blk.0.attn_q.bias` has type f16"]);
    let mut model = Model::llama();
    model.tensor("output.weight", &[64, 6], TensorType::F64);
    refuses_model(&model, &["`output.weight` has type f64"]);
}

#[test]
fn data_outside_of_the_file() {
    let bytes = Model::llama().encode();
    let whole = Gguf::from_bytes(bytes.clone()).unwrap();
    let end = whole.tensors().last().map(|t| whole.data_offset() + t.offset() + t.n_bytes());
    let end = end.unwrap() as usize;
    for missing in [1, 100, end - whole.data_offset() as usize] {
        let cut = Gguf::from_bytes(&bytes[..end - missing]).unwrap();
        let report = check(&cut, Depth::Full);
        let found = errors(&report);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&format!("{missing} bytes are missing")), "{found:?}");
        let last = cut.tensors().last().unwrap();
        assert!(cut.data(last).unwrap_err().to_string().contains("missing"));
    }
    // Padding after the last tensor may be missing.
    assert!(check(&Gguf::from_bytes(&bytes[..end]).unwrap(), Depth::Full).is_usable());
}

#[test]
fn misplaced_data() {
    for (first, second) in [(0, 0), (0, 16), (0, 64), (32, 64), (0, u64::MAX - 31)] {
        let raw = Raw::new(3, 2, 1)
            .str("general.type")
            .u32(8)
            .str("adapter")
            .tensor("a", &[2], 0, first)
            .tensor("b", &[2], 0, second)
            .pad(256);
        let report = check(&Gguf::from_bytes(raw.0).unwrap(), Depth::Header);
        let found = errors(&report);
        assert!(found[0].contains("starts at offset"), "{found:?}");
    }
}

#[test]
fn empty_dimension() {
    let raw = Raw::new(3, 1, 1).str("general.type").u32(8).str("adapter");
    let raw = raw.tensor("w", &[576, 0], 0, 0).pad(0);
    let report = check(&Gguf::from_bytes(raw.0).unwrap(), Depth::Header);
    assert!(errors(&report)[0].contains("`w` of shape [576, 0] has a dimension of 0"));
}

#[test]
fn encoder_with_a_vocabulary() {
    let mut clip = Model::llama();
    clip.set("general.architecture", "clip");
    refuses_model(&clip, &["not a language model", "clip"]);
    clip.remove("tokenizer.ggml.model");
    let report = clip.check();
    assert!(report.is_usable());
    assert_eq!(warnings(&report).len(), 1);
}

#[test]
fn broken_chat_template_is_a_warning() {
    let mut model = Model::llama();
    model.set("tokenizer.chat_template", "{% for m in messages %}{{ m.content ");
    let report = model.check();
    assert!(report.is_usable());
    let found = warnings(&report);
    assert_eq!(found, ["`tokenizer.chat_template` has an unclosed `{{` at byte 23"]);
    assert_eq!(report.into_result().unwrap().len(), 1);
}

#[test]
fn arrays_of_any_type_are_named() {
    for (array, name) in [
        (Array::from(vec![0u8]), "[u8]"),
        (Array::from(vec![true]), "[bool]"),
        (Array::from(vec![0i64]), "[i64]"),
    ] {
        refuses("tokenizer.ggml.tokens", array, &["tokenizer.ggml.tokens", name]);
    }
}

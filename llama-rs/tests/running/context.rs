//! Building contexts: what is refused, and with which numbers.

use std::time::Duration;

use llama_rs::machine::Cpu;
use llama_rs::{ErrorKind, FlashAttention, KvType, SeqId};
use testkit::tiny::Arch;

use crate::models::{assert_close, assert_within, last_logits, logits_after, some_tokens, tiny};
use crate::time::computed;

#[test]
fn values_out_of_range_name_the_range() {
    let model = tiny(Arch::Llama);
    let builder = || model.context().n_ctx(256);
    let logical = Cpu::probe().logical.len();
    let refused = [
        (builder().threads(999, 1), logical.to_string()),
        (builder().threads(1, 999), logical.to_string()),
        (builder().threads(0, 1), "1 to".into()),
        (builder().n_batch(0), "1 to".into()),
        (builder().n_ubatch(0), "1 to".into()),
        (builder().n_ctx(0), "1 to".into()),
        (builder().n_ctx(u32::MAX), "1 to".into()),
        (builder().n_seq_max(0), "1 to 256".into()),
        (builder().n_seq_max(257), "1 to 256".into()),
        (builder().n_seq_max(8).n_batch(4), "n_batch".into()),
        (
            builder().kv_type(KvType::F16, KvType::Q8_0).flash_attention(FlashAttention::Off),
            "flash attention".into(),
        ),
    ];
    for (builder, mention) in refused {
        let error = builder.clone().build().expect_err(&format!("{builder:?}"));
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains(&mention), "{error} doesn't mention {mention}");
    }
}

#[test]
fn a_context_beyond_memory_is_refused_at_once() {
    let model = tiny(Arch::Llama);
    let started = computed();
    let error = model.context().n_ctx(2_000_000_000).build().unwrap_err();
    assert!(computed() - started < Duration::from_secs(1));
    let ErrorKind::OutOfMemory { needed: Some(needed), available: Some(available) } = error.kind()
    else {
        panic!("{error:?}");
    };
    assert!(needed > available);
    assert!(error.message().contains("2000000000") && error.message().contains("would fit"));
}

#[test]
fn the_estimate_is_what_the_cache_takes() {
    let model = tiny(Arch::Llama);
    let context = model.context().n_ctx(1024).threads(1, 1).build().unwrap();
    let heads = model.metadata().get_u32("llama.attention.head_count").unwrap();
    let kv_heads = model.metadata().get_u32("llama.attention.head_count_kv").unwrap_or(heads);
    let head = model.n_embd() as u64 / u64::from(heads);
    let token = 2 * 2 * head * u64::from(kv_heads) * model.n_layer() as u64;
    assert_eq!(context.memory_estimate().kv_cache, 1024 * token);
}

#[test]
fn cache_types_change_little() {
    let model = tiny(Arch::Llama);
    let expected = logits_after(&model, &some_tokens(50));
    for ty in [KvType::F32, KvType::Bf16, KvType::Q8_0] {
        let builder = model.context().n_ctx(512).threads(1, 1).kv_type(ty, ty);
        let mut context = builder.build().unwrap();
        assert_within(&last_logits(&mut context, SeqId::FIRST, &some_tokens(50)), &expected, 0.1);
    }
    for ty in KvType::ALL {
        assert_eq!(KvType::from_name(ty.as_str()), Some(ty));
        model.context().n_ctx(256).threads(1, 1).kv_type(ty, ty).build().unwrap();
    }
    let without = model.context().n_ctx(512).flash_attention(FlashAttention::Off).threads(1, 1);
    let mut context = without.build().unwrap();
    assert_close(&last_logits(&mut context, SeqId::FIRST, &some_tokens(50)), &expected);
}

#[test]
fn a_context_keeps_its_model_alive() {
    let model = tiny(Arch::Llama);
    let mut context = model.context().n_ctx(300).n_batch(64).n_ubatch(32).build().unwrap();
    drop(model);
    assert_eq!((context.n_ctx(), context.n_batch(), context.n_ubatch()), (512, 64, 32));
    assert_eq!((context.n_seq_max(), context.n_ctx_seq()), (1, 512));
    let logits = last_logits(&mut context, SeqId::FIRST, &some_tokens(100));
    assert_eq!(logits.len(), context.model().vocab().len());
}

#[test]
fn batches_may_have_their_own_threads() {
    let model = tiny(Arch::Llama);
    let two = Cpu::probe().logical.len().min(2) as u32;
    let mut context = model.context().n_ctx(256).threads(1, two).build().unwrap();
    assert_eq!(context.threads(), (1, two as usize));
    let tokens = some_tokens(20);
    let logits = last_logits(&mut context, SeqId::FIRST, &tokens);
    assert_close(&logits, &logits_after(&model, &tokens));
    last_logits(&mut context, SeqId::FIRST, &tokens[..1]);
}

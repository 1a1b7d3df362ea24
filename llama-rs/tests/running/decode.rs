//! Evaluating tokens.

use std::ops::ControlFlow;

use llama_rs::{Batch, ErrorKind, SeqId, Token};
use testkit::tiny::Arch;

use crate::models::{assert_close, last_logits, logits_after, small_context, some_tokens, tiny};

#[test]
fn token_by_token_gives_what_a_prefill_gives() {
    for arch in Arch::ALL {
        let model = tiny(arch);
        let tokens = some_tokens(12);
        let expected = logits_after(&model, &tokens);
        let mut context = small_context(&model);
        for (position, token) in tokens.iter().enumerate() {
            let batch = Batch::sequence(&[*token], position as i32, SeqId::FIRST);
            let outputs = context.decode(&batch).unwrap();
            assert_eq!(outputs.len(), 1);
        }
        let logits = context.outputs().last_logits().unwrap();
        assert_close(logits, &expected);
    }
}

#[test]
fn prefill_goes_in_chunks_of_a_batch() {
    let model = tiny(Arch::Llama);
    let tokens = some_tokens(100);
    let mut context = model.context().n_ctx(512).n_batch(16).threads(1, 1).build().unwrap();
    let mut seen = Vec::new();
    let outputs = context
        .prefill_with(SeqId::FIRST, &tokens, |done, all| {
            seen.push((done, all));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_close(outputs.last_logits().unwrap(), &logits_after(&model, &tokens));
    assert_eq!(outputs.len(), 100 % 16);
    assert_eq!(seen, [16, 32, 48, 64, 80, 96, 100].map(|done| (done, 100)));
    assert_eq!(context.kv().pos_range(SeqId::FIRST).unwrap(), Some(0..=99));
}

#[test]
fn only_tokens_that_were_asked_have_logits() {
    let model = tiny(Arch::Llama);
    let mut context = small_context(&model);
    assert!(context.outputs().is_empty() && context.outputs().last_logits().is_none());
    let mut batch = Batch::new();
    for (position, token) in some_tokens(6).into_iter().enumerate() {
        batch.push(token, position as i32, SeqId::FIRST, position % 2 == 1);
    }
    let outputs = context.decode(&batch).unwrap();
    for index in 0..6 {
        assert_eq!(outputs.logits(index).is_some(), index % 2 == 1, "{index}");
    }
    assert!(outputs.logits(6).is_none() && outputs.logits(usize::MAX).is_none());
    assert!(outputs.embedding(1).is_none() && outputs.sequence_embedding(SeqId::FIRST).is_none());
    let third = outputs.logits(3).unwrap().to_vec();
    assert_close(&third, &logits_after(&model, &some_tokens(4)));
    assert_eq!(outputs.last_logits(), outputs.logits(5));
}

#[test]
fn sequences_do_not_see_each_other() {
    for (arch, unified) in [(Arch::Llama, false), (Arch::Llama, true), (Arch::Qwen35, false)] {
        let model = tiny(arch);
        let builder = model.context().n_ctx(1024).n_seq_max(2).kv_unified(unified).threads(1, 1);
        let mut context = builder.build().unwrap();
        let (one, other) = (some_tokens(9), some_tokens(21)[9..].to_vec());
        let mut batch = Batch::new();
        batch.extend(&one, 0, SeqId(0));
        batch.extend(&other, 0, SeqId(1));
        batch.want_all();
        let outputs = context.decode(&batch).unwrap();
        assert_close(outputs.logits(8).unwrap(), &logits_after(&model, &one));
        assert_close(outputs.logits(20).unwrap(), &logits_after(&model, &other));
    }
}

#[test]
fn wrong_batches_are_refused_before_llama_cpp_sees_them() {
    let model = tiny(Arch::Llama);
    let mut context = model.context().n_ctx(256).n_batch(8).threads(1, 1).build().unwrap();
    context.prefill(SeqId::FIRST, &some_tokens(5)).unwrap();
    let n_vocab = model.vocab().len() as i32;
    let one = |token, position, seq| {
        let mut batch = Batch::new();
        batch.push(Token(token), position, SeqId(seq), true);
        batch
    };
    let mut homeless = Batch::new();
    homeless.push_shared(Token(1), 5, &[], true);
    let mut gap = one(1, 5, 0);
    gap.push(Token(1), 7, SeqId(0), true);
    let refused = [
        (Batch::new(), "empty"),
        (one(-1, 5, 0), "vocabulary"),
        (one(n_vocab, 5, 0), "vocabulary"),
        (one(1, 5, 1), "sequence 1"),
        (one(1, 5, -1), "sequence -1"),
        (one(1, 5, i32::MAX), "sequence"),
        (one(1, 6, 0), "position 5"),
        (one(1, 4, 0), "position 5"),
        (one(1, -1, 0), "position 5"),
        (one(1, i32::MAX, 0), "position 5"),
        (gap, "position 6"),
        (homeless, "no sequence"),
        (Batch::sequence(&some_tokens(9), 5, SeqId(0)), "at most 8"),
    ];
    for (batch, mention) in refused {
        let error = context.decode(&batch).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains(mention), "{error} doesn't mention {mention}");
        assert!(context.outputs().is_empty());
    }
    let mut shared = Batch::new();
    shared.push_shared(Token(1), 5, &[SeqId(0), SeqId(0)], true);
    assert_eq!(context.decode(&shared).unwrap_err().kind(), &ErrorKind::Unsupported);
    assert!(context.prefill(SeqId::FIRST, &[]).is_err());
    assert!(context.prefill(SeqId(3), &some_tokens(1)).is_err());
    // Nothing of that was kept.
    assert_eq!(context.kv().pos_range(SeqId::FIRST).unwrap(), Some(0..=4));
    let logits = last_logits(&mut context, SeqId::FIRST, &some_tokens(6)[5..]);
    assert_close(&logits, &logits_after(&model, &some_tokens(6)));
}

#[test]
fn a_prompt_that_is_too_long_tells_both_counts() {
    let model = tiny(Arch::Llama);
    let mut context = model.context().n_ctx(256).threads(1, 1).build().unwrap();
    let error = context.prefill(SeqId::FIRST, &some_tokens(300)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PromptTooLong { prompt: 300, n_ctx: 256 });
    assert!(error.message().contains("300") && error.message().contains("256"), "{error}");
    context.prefill(SeqId::FIRST, &some_tokens(250)).unwrap();
    let error = context.prefill(SeqId::FIRST, &some_tokens(7)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::ContextFull { needed: 257, n_ctx: 256 });
    context.prefill(SeqId::FIRST, &some_tokens(6)).unwrap();
}

#[test]
fn a_full_context_is_an_error_and_stays_usable() {
    let model = tiny(Arch::Llama);
    let builder = model.context().n_ctx(256).n_seq_max(2).kv_unified(true).threads(1, 1);
    let mut context = builder.build().unwrap();
    context.prefill(SeqId(0), &some_tokens(200)).unwrap();
    let error = context.prefill(SeqId(1), &some_tokens(100)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ContextFull { .. }), "{error:?}");
    assert_eq!(context.kv().pos_range(SeqId(1)).unwrap(), None);
    assert_eq!(context.kv().pos_range(SeqId(0)).unwrap(), Some(0..=199));
    context.prefill(SeqId(1), &some_tokens(56)).unwrap();
}

#[test]
fn tokens_can_be_shared_in_a_unified_cache() {
    let model = tiny(Arch::Llama);
    let builder = model.context().n_ctx(256).n_seq_max(3).kv_unified(true).threads(1, 1);
    let mut context = builder.build().unwrap();
    let tokens = some_tokens(8);
    let mut batch = Batch::new();
    for (position, token) in tokens.iter().enumerate() {
        batch.push_shared(*token, position as i32, &[SeqId(0), SeqId(2)], false);
    }
    context.decode(&batch).unwrap();
    let next = some_tokens(9)[8..].to_vec();
    let one = last_logits(&mut context, SeqId(0), &next);
    let other = last_logits(&mut context, SeqId(2), &next);
    assert_close(&one, &other);
    assert_close(&one, &logits_after(&model, &some_tokens(9)));
    let mut twice = Batch::new();
    twice.push_shared(Token(1), 9, &[SeqId(0), SeqId(0)], true);
    assert_eq!(context.decode(&twice).unwrap_err().kind(), &ErrorKind::InvalidArgument);
}

//! Operations on a context's memory.

use llama_rs::{ErrorKind, SeqId};
use testkit::tiny::Arch;

use crate::models::{assert_close, last_logits, logits_after, small_context, some_tokens, tiny};

const FIRST: SeqId = SeqId::FIRST;

#[test]
fn a_removed_tail_leaves_no_trace() {
    let model = tiny(Arch::Llama);
    let mut context = small_context(&model);
    last_logits(&mut context, FIRST, &some_tokens(30));
    assert!(context.kv().remove(FIRST, 10..).unwrap());
    assert_eq!(context.kv().pos_range(FIRST).unwrap(), Some(0..=9));
    let logits = last_logits(&mut context, FIRST, &some_tokens(12)[10..]);
    assert_close(&logits, &logits_after(&model, &some_tokens(12)));
    assert!(context.kv().remove(FIRST, 100..).unwrap());
    assert!(context.kv().remove(FIRST, 5..5).unwrap());
    assert!(context.kv().remove(FIRST, ..).unwrap());
    assert_eq!(context.kv().pos_range(FIRST).unwrap(), None);
}

#[test]
fn recurrent_memory_goes_as_a_whole_or_not_at_all() {
    for arch in [Arch::Qwen35, Arch::GraniteHybrid, Arch::Lfm2, Arch::BailingMoe3] {
        let model = tiny(arch);
        let mut context = small_context(&model);
        last_logits(&mut context, FIRST, &some_tokens(20));
        let expected = logits_after(&model, &some_tokens(21));
        for range in [10..20, 0..5, 3..7] {
            assert!(!context.kv().remove(FIRST, range).unwrap(), "{arch:?}");
        }
        // The refusals changed nothing.
        let logits = last_logits(&mut context, FIRST, &some_tokens(21)[20..]);
        assert_close(&logits, &expected);
        assert!(context.kv().remove(FIRST, ..).unwrap());
        let logits = last_logits(&mut context, FIRST, &some_tokens(21));
        assert_close(&logits, &expected);
    }
}

#[test]
fn a_sliding_window_cannot_go_back_beyond_itself() {
    let model = tiny(Arch::Gemma3);
    let window = model.sliding_window().unwrap();
    let tokens = some_tokens(window * 3 + 700);
    let n_ctx = tokens.len() as u32 + 300;
    let builder = model.context().n_ctx(n_ctx).n_batch(64).n_ubatch(64).threads(1, 1);
    let mut small = builder.clone().build().unwrap();
    last_logits(&mut small, FIRST, &tokens);
    let last = tokens.len() as i32 - 1;
    // Where the window was overwritten, going back would give wrong answers quietly.
    assert!(!small.kv().remove(FIRST, 5..).unwrap());
    assert_eq!(small.kv().pos_range(FIRST).unwrap().map(|range| *range.end()), Some(last));
    assert!(small.kv().remove(FIRST, last..).unwrap());

    let mut full = builder.swa_full(true).build().unwrap();
    last_logits(&mut full, FIRST, &tokens);
    assert!(full.kv().remove(FIRST, 5..).unwrap());
    let logits = last_logits(&mut full, FIRST, &some_tokens(9)[5..]);
    assert_close(&logits, &logits_after(&model, &some_tokens(9)));
}

#[test]
fn copies_continue_on_their_own() {
    for (arch, unified) in
        [(Arch::Llama, true), (Arch::Llama, false), (Arch::Qwen35, false), (Arch::Gemma3, false)]
    {
        let model = tiny(arch);
        let builder = model.context().n_ctx(1024).n_seq_max(3).kv_unified(unified).threads(1, 1);
        let mut context = builder.build().unwrap();
        last_logits(&mut context, SeqId(0), &some_tokens(15));
        last_logits(&mut context, SeqId(2), &some_tokens(4));
        context.kv().copy(SeqId(0), SeqId(2), ..).unwrap();
        let next = &some_tokens(16)[15..];
        let copied = last_logits(&mut context, SeqId(2), next);
        let original = last_logits(&mut context, SeqId(0), next);
        assert_close(&copied, &original);
        assert_close(&copied, &logits_after(&model, &some_tokens(16)));
        let part = context.kv().copy(SeqId(0), SeqId(1), 2..5);
        if unified {
            part.unwrap();
            assert_eq!(context.kv().pos_range(SeqId(1)).unwrap(), Some(2..=4));
        } else {
            assert_eq!(part.unwrap_err().kind(), &ErrorKind::Unsupported);
        }
    }
}

#[test]
fn keep_empties_the_others() {
    for unified in [true, false] {
        let model = tiny(Arch::Llama);
        let builder = model.context().n_ctx(1024).n_seq_max(3).kv_unified(unified).threads(1, 1);
        let mut context = builder.build().unwrap();
        for seq in 0..3 {
            last_logits(&mut context, SeqId(seq), &some_tokens(5 + seq as usize));
        }
        context.kv().keep(SeqId(1)).unwrap();
        let ranges = [0, 1, 2].map(|seq| context.kv().pos_range(SeqId(seq)).unwrap());
        assert_eq!(ranges, [None, Some(0..=5), None], "unified {unified}");
        context.kv().clear().unwrap();
        assert_eq!(context.kv().pos_range(SeqId(1)).unwrap(), None);
    }
}

#[test]
fn shifted_tokens_count_from_their_new_place() {
    let model = tiny(Arch::Llama);
    let mut context = small_context(&model);
    assert!(context.kv().can_shift());
    // Drop the first ten and move the rest to the front, as a long chat does.
    last_logits(&mut context, FIRST, &some_tokens(40));
    assert!(context.kv().remove(FIRST, ..10).unwrap());
    context.kv().shift(FIRST, 10.., -10).unwrap();
    assert_eq!(context.kv().pos_range(FIRST).unwrap(), Some(0..=29));
    let shifted = last_logits(&mut context, FIRST, &some_tokens(41)[40..]);
    assert!(shifted.iter().all(|logit| logit.is_finite()));
    assert_eq!(context.kv().pos_range(FIRST).unwrap(), Some(0..=30));

    // A first layer's keys depend on nothing but token and position, so that shifting alone is exact up to rounding:
    // positions are relative, all tokens moved together give the same answer.
    let mut moved = small_context(&model);
    last_logits(&mut moved, FIRST, &some_tokens(40));
    moved.kv().shift(FIRST, .., 100).unwrap();
    assert_eq!(moved.kv().pos_range(FIRST).unwrap(), Some(100..=139));
    let logits = last_logits(&mut moved, FIRST, &some_tokens(41)[40..]);
    assert_close(&logits, &logits_after(&model, &some_tokens(41)));

    moved.kv().divide(FIRST, .., 2).unwrap();
    assert_eq!(moved.kv().pos_range(FIRST).unwrap(), Some(50..=70));
    last_logits(&mut moved, FIRST, &some_tokens(1));
}

#[test]
fn impossible_operations_are_errors() {
    let model = tiny(Arch::Llama);
    let mut context = small_context(&model);
    last_logits(&mut context, FIRST, &some_tokens(5));
    let mut kv = context.kv();
    let invalid = [
        kv.remove(SeqId(1), ..).map(drop),
        kv.remove(SeqId(-1), ..).map(drop),
        kv.remove(FIRST, -3..).map(drop),
        kv.pos_range(SeqId(256)).map(drop),
        kv.copy(FIRST, SeqId(9), ..),
        kv.copy(SeqId(9), FIRST, ..),
        kv.keep(SeqId(9)),
        kv.shift(SeqId(9), .., 1),
        kv.shift(FIRST, .., i32::MAX),
        kv.divide(FIRST, .., 0),
        kv.divide(FIRST, .., -2),
    ];
    for outcome in invalid {
        assert_eq!(outcome.unwrap_err().kind(), &ErrorKind::InvalidArgument);
    }
    let model = tiny(Arch::Gemma3);
    let mut context = small_context(&model);
    if !context.kv().can_shift() {
        let error = context.kv().shift(FIRST, .., 1).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unsupported);
    }
}

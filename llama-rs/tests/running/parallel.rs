//! Several contexts and models at once.

use std::thread;

use llama_rs::SeqId;
use testkit::tiny::Arch;

use crate::models::{last_logits, logits_after, small_context, some_tokens, tiny};

#[test]
fn contexts_of_one_model_run_in_parallel() {
    let model = tiny(Arch::Llama);
    let expected: Vec<_> = (1..=4).map(|n| logits_after(&model, &some_tokens(n * 9))).collect();
    for _ in 0..5 {
        thread::scope(|scope| {
            for (n, expected) in (1..=4).zip(&expected) {
                let model = model.clone();
                scope.spawn(move || {
                    assert_eq!(&logits_after(&model, &some_tokens(n * 9)), expected)
                });
            }
        });
    }
}

#[test]
fn different_models_run_in_parallel() {
    let models = [Arch::Llama, Arch::Qwen3, Arch::Gemma3, Arch::Qwen35].map(tiny);
    let expected = models.each_ref().map(|model| logits_after(model, &some_tokens(25)));
    thread::scope(|scope| {
        for (model, expected) in models.iter().zip(&expected) {
            scope.spawn(move || {
                for _ in 0..5 {
                    assert_eq!(&logits_after(model, &some_tokens(25)), expected);
                }
            });
        }
    });
}

#[test]
fn models_load_in_parallel() {
    let expected = logits_after(&tiny(Arch::Llama), &some_tokens(5));
    thread::scope(|scope| {
        for _ in 0..4 {
            let expected = &expected;
            scope.spawn(move || {
                assert_eq!(&logits_after(&tiny(Arch::Llama), &some_tokens(5)), expected);
            });
        }
    });
}

#[test]
fn a_context_moves_between_threads() {
    let model = tiny(Arch::Llama);
    let mut context = small_context(&model);
    last_logits(&mut context, SeqId::FIRST, &some_tokens(10));
    let moved = thread::spawn(move || {
        let logits = last_logits(&mut context, SeqId::FIRST, &some_tokens(12)[10..]);
        (context, logits)
    });
    let (context, logits) = moved.join().unwrap();
    let mut straight = small_context(&model);
    last_logits(&mut straight, SeqId::FIRST, &some_tokens(10));
    assert_eq!(logits, last_logits(&mut straight, SeqId::FIRST, &some_tokens(12)[10..]));
    drop(context);
}

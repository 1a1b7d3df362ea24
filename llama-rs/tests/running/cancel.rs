//! Stopping work.

use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use llama_rs::{Batch, CancelToken, Model, SeqId};
use testkit::tiny::{self, Arch, TinyOptions};

use crate::models::{
    assert_close, last_logits, logits_after, small_context, some_tokens, tiny, tiny_file,
};
use crate::time::computed;

const FIRST: SeqId = SeqId::FIRST;
const LATENCY: Duration = Duration::from_millis(500);

/// Runs `work` and cancels it after a while. Returns what it returned, and how long it has computed after that: less
/// where other programs had the core, as it can have computed no longer than the time that passed before.
fn cancelled<R>(token: &CancelToken, delay: Duration, work: impl FnOnce() -> R) -> (R, Duration) {
    thread::scope(|scope| {
        let (start, before) = (Instant::now(), computed());
        let canceller = scope.spawn(move || {
            thread::sleep(delay);
            let passed = start.elapsed();
            token.cancel();
            passed
        });
        let returned = work();
        let time = computed() - before;
        (returned, time.saturating_sub(canceller.join().unwrap()))
    })
}

/// A model that takes seconds for a long prompt.
fn slow_model(folder: &std::path::Path, arch: Arch) -> Model {
    let options = TinyOptions { layers: Some(24), ..TinyOptions::default() };
    let path = folder.join(arch.name()).with_extension("gguf");
    tiny::write(&path, arch, &options).unwrap();
    Model::load(path).unwrap()
}

#[test]
fn loading_stops_before_and_within() {
    let path = tiny_file(Arch::Llama);
    let token = CancelToken::new();
    token.cancel();
    assert!(Model::builder(&path).cancel(&token).load().unwrap_err().is_cancelled());
    token.reset();
    let within = token.clone();
    let started = computed();
    let loaded = Model::builder(&path)
        .cancel(&token)
        .on_progress(move |fraction| {
            if fraction > 0.2 {
                within.cancel();
            }
            ControlFlow::Continue(())
        })
        .load();
    assert!(loaded.unwrap_err().is_cancelled());
    assert!(computed() - started < LATENCY * 4);
}

#[test]
fn prefill_stops_within_a_batch_and_takes_the_tokens_back() {
    let folder = tempfile::tempdir().unwrap();
    for arch in [Arch::Llama, Arch::GraniteHybrid] {
        let model = slow_model(folder.path(), arch);
        let token = CancelToken::new();
        let builder = model.context().n_ctx(32768).n_batch(4096).threads(1, 1).cancel(&token);
        let mut context = builder.build().unwrap();
        last_logits(&mut context, FIRST, &some_tokens(10));
        let (result, latency) = cancelled(&token, Duration::from_millis(100), || {
            context.prefill(FIRST, &some_tokens(32_000))
        });
        let error = result.unwrap_err();
        assert!(error.is_cancelled(), "{error:?}");
        assert!(latency < LATENCY, "{latency:?}");

        let kept = context.kv().pos_range(FIRST).unwrap().map(|range| *range.end());
        token.reset();
        if kept.is_none() {
            // Recurrent memory cannot go back; it is empty, and the message tells.
            assert!(arch.is_recurrent() && error.message().contains("empty"), "{error}");
            last_logits(&mut context, FIRST, &some_tokens(10));
        } else {
            assert_eq!(kept, Some(9));
        }
        let logits = last_logits(&mut context, FIRST, &some_tokens(12)[10..]);
        assert_close(&logits, &logits_after(&model, &some_tokens(12)));
    }
}

#[test]
fn decode_stops_too() {
    let folder = tempfile::tempdir().unwrap();
    let model = slow_model(folder.path(), Arch::Llama);
    let token = CancelToken::new();
    let mut context = model.context().n_ctx(8192).n_batch(8000).threads(1, 1).build().unwrap();
    context.set_cancel_token(Some(token.clone()));
    assert!(context.cancel_token().is_some_and(|other| other.same_as(&token)));
    let batch = Batch::sequence(&some_tokens(8000), 0, FIRST);
    let (result, latency) =
        cancelled(&token, Duration::from_millis(50), || context.decode(&batch).map(drop));
    let error = result.unwrap_err();
    assert!(error.is_cancelled() && latency < LATENCY, "{latency:?} {error:?}");
    assert_eq!(context.kv().pos_range(FIRST).unwrap(), None);
    assert!(context.outputs().is_empty());
    // Still cancelled: nothing is computed.
    assert!(context.prefill(FIRST, &some_tokens(1)).unwrap_err().is_cancelled());
    context.set_cancel_token(None);
    context.prefill(FIRST, &some_tokens(1)).unwrap();
}

#[test]
fn the_progress_of_a_prefill_can_stop_it() {
    let model = tiny(Arch::Llama);
    let mut context = model.context().n_ctx(512).n_batch(16).threads(1, 1).build().unwrap();
    let outcome = context.prefill_with(FIRST, &some_tokens(100), |done, _| match done >= 48 {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    assert!(outcome.unwrap_err().is_cancelled());
    assert_eq!(context.kv().pos_range(FIRST).unwrap(), None);
}

#[test]
fn a_token_does_not_stop_a_pending_shift_halfway() {
    let model = tiny(Arch::Llama);
    let mut context = small_context(&model);
    last_logits(&mut context, FIRST, &some_tokens(40));
    context.kv().shift(FIRST, .., 60).unwrap();
    let token = CancelToken::new();
    context.set_cancel_token(Some(token.clone()));
    token.cancel();
    assert!(context.prefill(FIRST, &some_tokens(1)).unwrap_err().is_cancelled());
    token.reset();
    let logits = last_logits(&mut context, FIRST, &some_tokens(41)[40..]);
    assert_close(&logits, &logits_after(&model, &some_tokens(41)));
}

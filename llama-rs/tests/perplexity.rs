//! Perplexity over a tiny model, against the definition.

mod common;

use std::ops::ControlFlow;

use common::model;
use llama_rs::perplexity::{PerplexityOptions, perplexity};
use llama_rs::sampler::log_softmax;
use llama_rs::{Batch, ErrorKind, Model, SeqId};
use testkit::tiny::Arch;

const CHUNK: usize = 48;

fn text() -> String {
    (0..400)
        .map(|i| format!("The {i}th house stood by the river, and its windows were open. "))
        .collect()
}

/// One token at a time, one sequence, no cleverness.
fn naive(model: &Model, text: &str, chunks: usize) -> (f64, f64, usize) {
    let vocab = model.vocab();
    let tokens = vocab.tokenize(text, true).unwrap();
    let mut context = model.context().n_ctx(256).threads(1, 1).build().unwrap();
    let (mut nll, mut bits, mut bytes, mut count) = (0.0, 0.0, 0, 0);
    for chunk in tokens.chunks_exact(CHUNK).take(chunks) {
        context.kv().clear().unwrap();
        for (position, pair) in chunk.windows(2).enumerate() {
            let bos = vocab.bos().filter(|_| vocab.add_bos() && position == 0);
            let mut batch = Batch::new();
            batch.push(bos.unwrap_or(pair[0]), position as i32, SeqId::FIRST, true);
            let outputs = context.decode(&batch).unwrap();
            if position >= CHUNK / 2 {
                let log_prob = log_softmax(outputs.logits(0).unwrap(), pair[1]).unwrap();
                nll -= log_prob;
                bits -= log_prob / std::f64::consts::LN_2;
                bytes += vocab.token_bytes(pair[1], false).unwrap().len();
                count += 1;
            }
        }
    }
    ((nll / f64::from(count)).exp(), bits / bytes as f64, count as usize)
}

#[test]
fn agrees_with_the_definition() {
    for arch in [Arch::Llama, Arch::Qwen3, Arch::Gemma3, Arch::Qwen35] {
        let model = model(arch);
        let options = PerplexityOptions {
            chunk: CHUNK,
            max_chunks: Some(5),
            threads: Some(2),
            ..PerplexityOptions::default()
        };
        let (expected, bits, count) = naive(&model, &text(), 5);
        // Several chunks at once, one at a time, and a chunk in several batches.
        for (n_seq, n_batch) in [(4, 4 * CHUNK as u32), (1, CHUNK as u32), (1, 20)] {
            let mut context = model
                .context()
                .n_ctx(1024)
                .n_batch(n_batch)
                .n_seq_max(n_seq)
                .kv_unified(false)
                .threads(1, 1)
                .build()
                .unwrap();
            let mut seen = Vec::new();
            let result = perplexity(&mut context, &text(), &options, |progress| {
                seen.push((progress.chunk, progress.chunks));
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(result.scored_tokens, count);
            assert_eq!(result.chunks, 5);
            let off = (result.perplexity / expected - 1.0).abs();
            assert!(off < 2e-3, "{arch:?} {n_seq}: {} {expected}", result.perplexity);
            assert!((result.bits_per_byte / bits - 1.0).abs() < 2e-3);
            assert!(result.stderr > 0.0 && result.stderr < result.perplexity);
            assert_eq!(seen, [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]);
        }
    }
}

#[test]
fn the_suggested_context_fits() {
    let model = model(Arch::Llama);
    let options = PerplexityOptions { chunk: 128, ..Default::default() };
    let mut context = options.context(&model).unwrap().threads(1, 1).build().unwrap();
    assert!(context.n_seq_max() >= 16 && context.n_ctx_seq() >= 128);
    let result =
        perplexity(&mut context, &text(), &options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(result.chunks, result.tokens / 128);

    let few = PerplexityOptions { chunks_at_once: Some(3), ..options };
    let context = few.context(&model).unwrap().threads(1, 1).build().unwrap();
    assert_eq!((context.n_batch(), context.n_seq_max()), (3 * 128, 3));
    let planned = few.planned();
    assert_eq!(
        (planned.n_ctx, planned.n_batch, planned.n_outputs),
        (Some(384), Some(384), Some(192))
    );

    let options = PerplexityOptions { max_chunks: Some(2), one_by_one: true, ..options };
    let mut context = options.context(&model).unwrap().threads(1, 1).build().unwrap();
    assert_eq!((context.n_batch(), context.n_seq_max()), (1, 1));
    let one_by_one =
        perplexity(&mut context, &text(), &options, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(one_by_one.chunks, 2);
    assert_eq!(one_by_one.scored_tokens * result.chunks, result.scored_tokens * 2);
}

#[test]
fn too_little_text_and_cancellation_are_errors() {
    let model = model(Arch::Llama);
    let options = PerplexityOptions { chunk: 64, ..Default::default() };
    let mut context = options.context(&model).unwrap().threads(1, 1).build().unwrap();
    let error =
        perplexity(&mut context, "too short", &options, |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    assert!(error.message().contains("two chunks of 64"), "{error}");
    let error =
        perplexity(&mut context, &text(), &options, |_| ControlFlow::Break(())).unwrap_err();
    assert!(error.is_cancelled());
    let large = PerplexityOptions { chunk: 100_000, ..Default::default() };
    let error =
        perplexity(&mut context, &text(), &large, |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
}

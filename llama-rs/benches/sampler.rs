//! Sampling a token: this crate's sampler beside llama.cpp's chain, with the same settings.
//!
//! Run with `cargo bench -p llama-rs --bench sampler`.

mod upstream_chain;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use llama_rs::Token;
use llama_rs::sampler::SamplerBuilder;
use upstream_chain::{Chain, Settings, history, logits};

fn sampler(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sample");
    for n_vocab in [65_672, 151_669, 248_320] {
        let settings = Settings::usual(n_vocab);
        let logits = logits(n_vocab, 1);
        let history = history(settings.last_n, &logits);

        let mut ours = settings.ours();
        for &token in &history {
            ours.accept(Token(token)).expect("the token is in the vocabulary");
        }
        group.bench_function(BenchmarkId::new("one pass", n_vocab), |bencher| {
            bencher.iter(|| ours.sample(black_box(&logits)).expect("the logits are finite"));
        });

        let mut upstream = Chain::new(&settings);
        history.iter().for_each(|&token| upstream.accept(token));
        group.bench_function(BenchmarkId::new("llama.cpp chain", n_vocab), |bencher| {
            bencher.iter(|| upstream.sample(black_box(&logits)));
        });

        let mut greedy =
            SamplerBuilder::greedy().build_for_vocab(n_vocab).expect("the settings are in range");
        group.bench_function(BenchmarkId::new("greedy", n_vocab), |bencher| {
            bencher.iter(|| greedy.sample(black_box(&logits)).expect("the logits are finite"));
        });
    }
    group.finish();
}

criterion_group!(benches, sampler);
criterion_main!(benches);

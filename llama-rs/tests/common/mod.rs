//! Tiny models for the tests.

#![allow(dead_code, reason = "each test uses a part")]

pub mod time;

use llama_rs::Model;
use llama_rs::generation::{Answer, GenerateOptions};
use llama_rs::sampler::SamplerBuilder;
use llama_rs::session::{Prompt, Session};
use testkit::tiny::{self, Arch, TinyOptions};

/// A tiny model with random weights.
pub fn model(arch: Arch) -> Model {
    model_with(arch, &TinyOptions::default())
}

/// A tiny model with options.
pub fn model_with(arch: Arch, options: &TinyOptions) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let tiny = tiny::write(&folder.path().join("tiny.gguf"), arch, options).unwrap();
    // Read, not mapped: the folder goes away.
    Model::builder(tiny.path()).load_mode(llama_rs::LoadMode::Read).load().unwrap()
}

/// A greedy session with room for `n_ctx` tokens.
pub fn session(model: &Model, n_ctx: u32) -> Session {
    session_with(model, n_ctx, SamplerBuilder::greedy())
}

/// A session with a sampler of choice.
pub fn session_with(model: &Model, n_ctx: u32, sampler: SamplerBuilder) -> Session {
    let context = model.context().n_ctx(n_ctx).n_batch(64).threads(1, 1).build().unwrap();
    Session::new(context, sampler.build(model).unwrap()).unwrap()
}

/// `n` tokens, without an end in between.
pub fn tokens(n: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(n), ignore_eog: true, ..GenerateOptions::default() }
}

/// The whole answer.
pub fn answer(
    session: &mut Session,
    prompt: impl Into<Prompt>,
    options: &GenerateOptions,
) -> Answer {
    session.generate(prompt, options).unwrap().complete().unwrap()
}

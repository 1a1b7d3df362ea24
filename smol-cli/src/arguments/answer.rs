//! What commands share that let a model answer one prompt.

use super::load::{bits_per_weight, load_model};
use super::{ComputeArgs, LayoutArgs, MemoryArgs, PromptArgs, SamplingArgs};
use crate::cli::Global;
use crate::failure::notice;
use crate::model::ModelArg;
use anyhow::Result;
use smolmaxxing::chat::Message;
use smolmaxxing::generation::{GenerateOptions, Generation};
use smolmaxxing::sampler::SamplerBuilder;
use smolmaxxing::session::{ChatOptions, Session};
use smolmaxxing::{CancelToken, Model, ModelBuilder};
use std::path::Path;

/// A model, a prompt, and how it is answered.
#[derive(Debug, clap::Args)]
pub struct AnswerArgs {
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    layouts: LayoutArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    /// Most tokens of the answer [default: until its end, or until the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    pub tokens: Option<usize>,
    /// Complete the text as it is, without the model's chat template
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    pub compute: ComputeArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
}

impl AnswerArgs {
    /// Loads the model; `with` adds what only one command wants.
    pub fn load(
        &self,
        path: &Path,
        global: &Global,
        cancel: &CancelToken,
        with: impl FnOnce(ModelBuilder) -> ModelBuilder,
    ) -> smolmaxxing::Result<Model> {
        load_model(path, cancel, |model| {
            let model = with(model.layouts(self.layouts.options(global)));
            self.memory.apply(model).planned_context(self.compute.planned())
        })
    }

    /// Returns how tokens are chosen.
    pub fn sampler(&self, model: &Model) -> SamplerBuilder {
        self.sampling.builder(bits_per_weight(model))
    }

    /// Begins to answer the prompt.
    pub fn answer<'s>(
        &self,
        session: &'s mut Session,
        prompt: String,
        generate: GenerateOptions,
    ) -> Result<Generation<'s>> {
        if self.raw {
            return Ok(session.generate(prompt, &generate)?);
        }
        if let Some(warning) = session.chat_template().warning() {
            notice(warning);
        }
        let options = ChatOptions { generate, ..ChatOptions::default() };
        Ok(session.chat(&[Message::user(prompt)], &options)?)
    }
}

//! A conversation of two turns: the second reuses what the first has computed.
//!
//!     cargo run --release -p smolmaxxing --example chat -- MODEL
#![allow(clippy::print_stdout)]

use smolmaxxing::chat::Message;
use smolmaxxing::{ChatOptions, GenerateOptions, Model, Result, SamplerBuilder, Session};

fn main() -> Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: chat MODEL");
        std::process::exit(2);
    };
    let model = Model::load(path)?;
    let sampler = SamplerBuilder::new().temp(0.7).seed(1).build(&model)?;
    let mut session = Session::new(model.context().n_ctx(2048).build()?, sampler)?;
    let generate = GenerateOptions { max_tokens: Some(64), ..GenerateOptions::default() };
    let options = ChatOptions { generate, ..ChatOptions::default() };

    let mut messages = vec![Message::system("Answer in one sentence.")];
    for question in ["What is the capital of France?", "And of Italy?"] {
        messages.push(Message::user(question));
        let answer = session.chat(&messages, &options)?.complete()?;
        println!("> {question}\n{}", answer.text.trim());
        println!(
            "[{} of {} prompt tokens reused]",
            answer.stats.reused_tokens, answer.stats.prompt_tokens
        );
        messages.push(Message::assistant(answer.text));
    }
    Ok(())
}

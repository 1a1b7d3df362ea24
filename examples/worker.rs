//! A model on a thread of its own, as servers and user interfaces need it.
//!
//!     cargo run --release -p smolmaxxing --example worker -- MODEL

use smolmaxxing::chat::Message;
use smolmaxxing::worker::Worker;
use smolmaxxing::{ChatOptions, GenerateOptions, Model, SamplerBuilder, Session};

fn main() -> smolmaxxing::Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: worker MODEL.gguf");
        std::process::exit(2);
    };
    let model = Model::load(path)?;
    let context = model.context().n_ctx(2048).build()?;
    let session = Session::new(context, SamplerBuilder::new().build(&model)?)?;
    let worker = Worker::spawn(session)?;

    // Both requests are accepted at once, and answered one after the other.
    let generate = GenerateOptions { max_tokens: Some(48), ..GenerateOptions::default() };
    let options = ChatOptions { generate, ..ChatOptions::default() };
    let questions = ["Name three colours.", "What is the capital of France?"];
    let streams =
        questions.map(|question| worker.chat(vec![Message::user(question)], options.clone()));
    for (question, stream) in questions.into_iter().zip(streams) {
        let mut stream = stream?;
        let answer = stream
            .by_ref()
            .map(|piece| Ok(piece?.text))
            .collect::<smolmaxxing::Result<String>>()?;
        // Dropping a stream before its end would cancel its answer.
        eprintln!("{question}\n  {answer}");
    }
    worker.join()?;
    Ok(())
}

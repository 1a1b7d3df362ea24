//! Stops an answer from another thread after a moment; the session stays usable.
//!
//!     cargo run --release -p smolmaxxing --example cancellation -- MODEL
#![allow(clippy::print_stdout)]

use smolmaxxing::{CancelToken, GenerateOptions, Model, Result, SamplerBuilder, Session};
use std::thread;
use std::time::Duration;

fn main() -> Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: cancellation MODEL");
        std::process::exit(2);
    };
    let model = Model::load(path)?;
    let sampler = SamplerBuilder::greedy().build(&model)?;
    let mut session = Session::new(model.context().n_ctx(1024).build()?, sampler)?;

    let cancel = CancelToken::new();
    let stopper = cancel.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        stopper.cancel();
    });
    let options = GenerateOptions { cancel: Some(cancel), ..GenerateOptions::default() };
    let answer = session.generate("Once upon a time", &options)?.complete()?;
    println!("{}\n[stopped: {}]", answer.text, answer.finish.as_str());

    let options = GenerateOptions { max_tokens: Some(8), ..GenerateOptions::default() };
    println!("and again: {}", session.generate("Once upon a time", &options)?.collect_text()?);
    Ok(())
}

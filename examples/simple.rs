//! Completes a text.
//!
//!     cargo run --release -p smolmaxxing --example simple -- MODEL "The capital of France is"
#![allow(clippy::print_stdout)]

use smolmaxxing::{GenerateOptions, Model, Result, SamplerBuilder, Session};
use std::io::Write;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: simple MODEL PROMPT");
        std::process::exit(2);
    };
    let model = Model::load(path)?;
    let sampler = SamplerBuilder::greedy().build(&model)?;
    let mut session = Session::new(model.context().n_ctx(1024).build()?, sampler)?;

    let options = GenerateOptions { max_tokens: Some(32), ..GenerateOptions::default() };
    let mut answer = session.generate(prompt.as_str(), &options)?;
    print!("{prompt}");
    for piece in &mut answer {
        print!("{}", piece?.text);
        let _ = std::io::stdout().flush();
    }
    let stats = answer.stats();
    println!("\n[{} tokens, {:.1} tokens/s]", stats.generated_tokens, stats.generation_tps());
    Ok(())
}

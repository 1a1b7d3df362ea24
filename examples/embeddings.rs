//! Compares texts by the cosine of their embeddings.
//!
//!     cargo run --release -p smolmaxxing --example embeddings -- MODEL
#![allow(clippy::print_stdout)]

use smolmaxxing::{Embedder, Model, Pooling, Result};

fn main() -> Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: embeddings MODEL");
        std::process::exit(2);
    };
    let texts = [
        "The cat sleeps on the sofa.",
        "A kitten naps on the couch.",
        "Interest rates rose again.",
    ];
    let mut embedder = Embedder::new(&Model::load(path)?, Pooling::Mean)?.normalize(true);
    let embeddings = embedder.embed(&texts)?;
    for (text, embedding) in texts.iter().zip(&embeddings) {
        let cosine: f32 = embeddings[0].iter().zip(embedding).map(|(a, b)| a * b).sum();
        println!("{cosine:.3}  {text}");
    }
    Ok(())
}

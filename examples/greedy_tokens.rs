//! Prints greedy tokens and a hash of all logits, for comparison with `ci/stock_tokens.cpp`.
//!
//!     cargo run --release -p smolmaxxing --example greedy_tokens -- MODEL N THREADS PROMPT [plain]
//!
//! `plain`: without packed layouts.
#![allow(clippy::print_stdout)]

use smolmaxxing::{Batch, LayoutOptions, Model, Result, SeqId, Token};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (4 | 5, [path, n, threads, prompt, how @ ..]) = (arguments.len(), &arguments[..]) else {
        eprintln!("usage: greedy_tokens MODEL N THREADS PROMPT [plain]");
        std::process::exit(2);
    };
    let n: usize = n.parse().expect("N is a number");
    let threads: u32 = threads.parse().expect("THREADS is a number");

    let mut layouts = LayoutOptions::default();
    layouts.enabled = !how.iter().any(|how| how == "plain");
    let model = Model::builder(path).layouts(layouts).load()?;
    let mut context = model.context().n_ctx(512).n_batch(512).threads(threads, threads).build()?;
    let tokens = model.vocab().tokenize(prompt, true)?;
    let mut batch = Batch::sequence(&tokens, 0, SeqId(0));
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for position in (tokens.len() as i32..).take(n) {
        let outputs = context.decode(&batch)?;
        let logits = outputs.last_logits().expect("the last token of a sequence has logits");
        let mut best = 0;
        for (token, logit) in logits.iter().enumerate() {
            if *logit > logits[best] {
                best = token;
            }
            hash = (hash ^ u64::from(logit.to_bits())).wrapping_mul(0x100_0000_01b3);
        }
        print!("{best} ");
        batch = Batch::sequence(&[Token(best as i32)], position, SeqId(0));
    }
    println!("{hash:016x}");
    Ok(())
}

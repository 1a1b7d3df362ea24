use llama_rs::{Batch, Context};

fn twice(context: &mut Context, batch: &Batch) -> f32 {
    let first = context.decode(batch).unwrap();
    let second = context.decode(batch).unwrap();
    first.logits(0).unwrap()[0] + second.logits(0).unwrap()[0]
}

fn main() {}

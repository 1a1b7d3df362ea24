use llama_rs::{Context, SeqId, Token};

fn stale(context: &mut Context, tokens: &[Token]) -> f32 {
    let logits = context.prefill(SeqId::FIRST, tokens).unwrap().last_logits().unwrap();
    context.kv().clear().unwrap();
    logits[0]
}

fn main() {}

use llama_rs::{Context, Kv};

fn memory(mut context: Context) -> Kv<'static> {
    context.kv()
}

fn main() {}

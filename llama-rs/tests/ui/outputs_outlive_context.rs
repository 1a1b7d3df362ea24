use llama_rs::{Context, Outputs};

fn last(context: Context) -> Outputs<'static> {
    context.outputs()
}

fn main() {}

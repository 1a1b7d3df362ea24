use llama_rs::{Context, Outputs};

fn last(mut context: Context) -> Outputs<'static> {
    context.outputs()
}

fn main() {}

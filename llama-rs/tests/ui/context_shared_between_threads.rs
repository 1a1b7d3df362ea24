use llama_rs::Context;

fn share(context: &Context) {
    std::thread::scope(|scope| {
        scope.spawn(|| context.outputs().len());
    });
}

fn main() {}

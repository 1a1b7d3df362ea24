use llama_rs::Outputs;

fn send(outputs: Outputs<'_>) {
    std::thread::scope(|scope| {
        scope.spawn(move || outputs.len());
    });
}

fn main() {}

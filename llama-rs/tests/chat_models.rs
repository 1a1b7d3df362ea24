//! The chat template inside the real default model, where it has been pulled.

use std::path::PathBuf;

use llama_rs::Model;
use llama_rs::chat::{ChatTemplate, Message, RenderOptions};

/// The model in the user's cache, if `smol pull smollm2-135m` has run.
fn pulled(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    let models = std::fs::read_dir(cache.join("smolmaxxing").join("models")).ok()?;
    models.flatten().map(|entry| entry.path()).find(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(name) && file.ends_with(".gguf")
    })
}

#[test]
fn smollm2_renders_chatml_with_its_system_message() {
    let Some(path) = pulled("smollm2-135m") else {
        eprintln!("smollm2-135m has not been pulled: nothing to check");
        return;
    };
    let model = Model::load(path).unwrap();
    let template = ChatTemplate::for_model(&model);
    assert_eq!(template.warning(), None);
    let options = RenderOptions::default();
    let text = template.render(&[Message::user("Hi")], &options).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let turns = [
        Message::system("Be brief."),
        Message::user("Hi"),
        Message::assistant("Hello!"),
        Message::user("2+2?"),
    ];
    let text = template.render(&turns, &options).unwrap();
    assert_eq!(text, ChatTemplate::chatml().render(&turns, &options).unwrap());
    // Special tokens are read as such, and none is doubled.
    let vocab = model.vocab();
    let tokens = template.tokenize(&vocab, &turns, &options).unwrap();
    let starts =
        tokens.iter().filter(|&&token| vocab.text(token).as_deref() == Some("<|im_start|>"));
    assert_eq!(starts.count(), 5);
    assert_eq!(vocab.detokenize(&tokens, true).unwrap(), text.as_bytes());
}

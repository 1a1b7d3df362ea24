//! Text to tokens and back.

use llama_rs::{ErrorKind, Token, TokenizeOptions};
use testkit::tiny::Arch;

use crate::models::tiny;

#[test]
fn text_survives_tokenizing() {
    for arch in [Arch::Llama, Arch::Qwen3] {
        let vocab = tiny(arch).vocab();
        for text in ["Hello, world", "Grüße 你好 🦀", "tab\there", "nul\0inside", ""] {
            let tokens = vocab.tokenize_with(text, TokenizeOptions::PIECE).unwrap();
            let bytes = vocab.detokenize(&tokens, false).unwrap();
            let back = String::from_utf8(bytes).unwrap();
            // Vocabularies that merge by score begin a text with a space.
            assert_eq!(back.strip_prefix(' ').unwrap_or(&back), text, "{arch:?}");
        }
    }
}

#[test]
fn long_texts_take_more_than_one_buffer() {
    let vocab = tiny(Arch::Qwen3).vocab();
    let text = "\u{1}\u{2}\u{3}é".repeat(5000);
    let tokens = vocab.tokenize(&text, false).unwrap();
    assert!(tokens.len() > text.len() / 2 + 8, "{} tokens", tokens.len());
    assert_eq!(vocab.detokenize(&tokens, false).unwrap(), text.as_bytes());
}

#[test]
fn special_tokens_are_read_only_when_asked() {
    let vocab = tiny(Arch::Qwen3).vocab();
    let special = vocab.eos().or(vocab.eot()).unwrap();
    let text = vocab.text(special).unwrap();
    let parsed = vocab.tokenize_with(&text, TokenizeOptions::TEMPLATE).unwrap();
    assert_eq!(parsed, [special]);
    assert!(!vocab.tokenize(&text, false).unwrap().contains(&special));
    assert!(vocab.is_eog(special) && vocab.eog_tokens().contains(&special));
    assert!(vocab.attributes(special).unwrap().is_control());
    assert!(vocab.token_bytes(special, false).unwrap().is_empty());
    assert_eq!(vocab.token_bytes(special, true).unwrap(), text.as_bytes());
}

#[test]
fn tokens_outside_the_vocabulary_are_no_trap() {
    let vocab = tiny(Arch::Llama).vocab();
    for id in [-1, i32::MIN, i32::MAX, vocab.len() as i32, 99_999_999] {
        let token = Token(id);
        let error = vocab.token_bytes(token, true).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
        assert!(error.message().contains(&vocab.len().to_string()), "{error}");
        assert_eq!(vocab.text(token), None);
        assert_eq!(vocab.score(token), None);
        assert_eq!(vocab.attributes(token), None);
        assert!(!vocab.is_eog(token));
    }
}

#[test]
fn a_vocabulary_outlives_its_model() {
    let vocab = tiny(Arch::Llama).vocab();
    assert!(vocab.len() >= 700 && vocab.has_tokenizer() && !vocab.is_empty());
    assert!(!vocab.tokenize("still here", true).unwrap().is_empty());
    let first = vocab.tokenize("x", true).unwrap()[0];
    assert_eq!(vocab.add_bos(), vocab.bos() == Some(first));
}

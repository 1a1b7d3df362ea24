//! Grammars and JSON schemas over tiny models, which would write nonsense without them.

mod common;

use common::{answer, model, model_with, session_with};
use llama_rs::generation::{Finish, GenerateOptions};
use llama_rs::grammar::Grammar;
use llama_rs::sampler::SamplerBuilder;
use llama_rs::{ErrorKind, Model, Token};
use testkit::tiny::{Arch, TinyOptions};

fn constrained(model: &Model, grammar: &Grammar, seed: u64, max_tokens: usize) -> (String, Finish) {
    let sampler = SamplerBuilder::new().temp(2.0).seed(seed).grammar(grammar.clone());
    let mut session = session_with(model, 1024, sampler);
    let options = GenerateOptions { max_tokens: Some(max_tokens), ..GenerateOptions::default() };
    let answer = answer(&mut session, "Answer:", &options);
    (answer.text, answer.finish)
}

#[test]
fn gbnf_decides_what_is_written() {
    let grammar = Grammar::gbnf("root ::= (\"yes\" | \"no\") \", \" [0-9]{2,4} \"!\"").unwrap();
    for arch in [Arch::Llama, Arch::Qwen3, Arch::Gemma3] {
        let model = model(arch);
        for seed in 0..4 {
            let (text, finish) = constrained(&model, &grammar, seed, 64);
            let digits = text
                .strip_prefix("yes, ")
                .or(text.strip_prefix("no, "))
                .and_then(|rest| rest.strip_suffix('!'))
                .unwrap_or_else(|| panic!("{arch:?}: {text:?} {finish}"));
            assert!((2..=4).contains(&digits.len()), "{text:?}");
            assert!(digits.bytes().all(|b| b.is_ascii_digit()), "{text:?}");
            assert!(matches!(finish, Finish::Grammar | Finish::Eos), "{finish}");
        }
    }
}

#[test]
fn characters_of_several_bytes_are_followed() {
    let grammar = Grammar::gbnf("root ::= \"日本\" [ä-ü]{3} \"😀\"").unwrap();
    let model = model(Arch::Qwen3);
    let (text, _) = constrained(&model, &grammar, 1, 64);
    assert!(text.starts_with("日本") && text.ends_with('😀'), "{text:?}");
    assert_eq!(text.chars().count(), 6);
}

#[test]
fn a_session_starts_its_grammar_again_for_each_answer() {
    let model = model(Arch::Llama);
    let grammar = Grammar::gbnf("root ::= \"a\" \"b\" \"c\"").unwrap();
    let mut session = session_with(&model, 256, SamplerBuilder::greedy().grammar(grammar));
    for _ in 0..3 {
        let answer = answer(&mut session, "x", &GenerateOptions::default());
        assert_eq!((answer.text.as_str(), answer.finish), ("abc", Finish::Grammar));
    }
}

#[test]
fn any_json_is_json() {
    let model = model(Arch::Qwen3);
    let mut complete = 0;
    for seed in 0..6 {
        let (text, finish) = constrained(&model, &Grammar::json(), seed, 300);
        if finish != Finish::Length {
            serde_json::from_str::<serde_json::Value>(&text)
                .unwrap_or_else(|e| panic!("{text}: {e}"));
            complete += 1;
        }
    }
    assert!(complete > 0);
}

#[test]
fn a_grammar_without_a_way_on_is_an_error() {
    let model = model(Arch::Llama);
    let grammar = Grammar::gbnf("root ::= \"a\"").unwrap();
    let mut sampler = SamplerBuilder::greedy().top_k(1).grammar(grammar);
    for id in 0..model.vocab().len() as i32 {
        let bytes = model.vocab().token_bytes(Token(id), false).unwrap();
        if bytes == b"a" {
            sampler = sampler.logit_bias(Token(id), f32::NEG_INFINITY);
        }
    }
    let mut session = session_with(&model, 256, sampler);
    let mut generation = session.generate("x", &GenerateOptions::default()).unwrap();
    let error = generation.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Grammar);
    assert!(error.message().contains("leaves no token"), "{error}");
    assert!(generation.next().is_none() && generation.finish_reason().is_none());
}

#[test]
fn accepting_what_the_grammar_forbids_is_an_error() {
    let model = model(Arch::Llama);
    let grammar = Grammar::gbnf("root ::= \"a\" \"b\"").unwrap();
    let mut sampler = SamplerBuilder::greedy().grammar(grammar).build(&model).unwrap();
    let token = |text: &str| {
        (0..model.vocab().len() as i32)
            .map(Token)
            .find(|&t| model.vocab().token_bytes(t, false).unwrap() == text.as_bytes())
            .unwrap()
    };
    let end = model.vocab().eos().unwrap();
    for _ in 0..2 {
        // An end before its time would abort the process in llama.cpp.
        for wrong in [token("b"), end] {
            assert_eq!(sampler.accept(wrong).unwrap_err().kind(), &ErrorKind::Grammar);
        }
        sampler.accept(token("a")).unwrap();
        sampler.accept(token("b")).unwrap();
        assert_eq!(sampler.accept(token("a")).unwrap_err().kind(), &ErrorKind::Grammar);
        sampler.accept(end).unwrap();
        sampler.reset().unwrap();
    }
}

#[test]
fn tokens_in_grammars_are_looked_up() {
    let model = model(Arch::Qwen3);
    let grammar = Grammar::gbnf("root ::= <|im_start|> \"a\"").unwrap();
    assert!(SamplerBuilder::new().grammar(grammar).build(&model).is_ok());
    let missing = Grammar::gbnf("root ::= <|no_such_token|>").unwrap();
    let error = SamplerBuilder::new().grammar(missing).build(&model).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Grammar);
    let error = SamplerBuilder::new().grammar(Grammar::json()).build_for_vocab(9).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
}

#[cfg(feature = "json-schema")]
mod schema {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn schemas_decide_what_is_written() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "maxLength": 12 },
                "age": { "type": "integer", "minimum": 0, "maximum": 99 },
                "kind": { "enum": ["cat", "dog"] },
            },
            "required": ["name", "age", "kind"],
            "additionalProperties": false,
        });
        let grammar = Grammar::json_schema(&schema).unwrap();
        for arch in [Arch::Llama, Arch::Qwen3, Arch::Gemma3] {
            let model = model(arch);
            for seed in 0..4 {
                let (text, finish) = constrained(&model, &grammar, seed, 200);
                let value: Value = serde_json::from_str(&text)
                    .unwrap_or_else(|e| panic!("{arch:?} {finish}: {text}: {e}"));
                assert!(value["name"].as_str().unwrap().chars().count() <= 12);
                assert!((0..=99).contains(&value["age"].as_i64().unwrap()));
                assert!(["cat", "dog"].contains(&value["kind"].as_str().unwrap()));
                assert_eq!(value.as_object().unwrap().len(), 3);
                assert!(matches!(finish, Finish::Grammar | Finish::Eos), "{finish}");
            }
        }
    }

    #[test]
    fn a_large_vocabulary_is_quick() {
        let options = TinyOptions { vocab: 49_152, ..TinyOptions::default() };
        let model = model_with(Arch::Qwen3, &options);
        let grammar = Grammar::json_schema(&json!({ "enum": ["yes", "no"] })).unwrap();
        let started = common::time::computed();
        let (text, finish) = constrained(&model, &grammar, 1, 20);
        assert!(text == "\"yes\"" || text == "\"no\"", "{text} {finish}");
        assert!((common::time::computed() - started).as_secs() < 15);
    }
}

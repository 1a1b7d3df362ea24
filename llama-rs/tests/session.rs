//! Sessions over tiny models of every architecture.

mod common;

use common::{answer, model, session, session_with, tokens};
use llama_rs::chat::{ChatTemplate, Message};
use llama_rs::generation::{Finish, GenerateOptions};
use llama_rs::loops::LoopOptions;
use llama_rs::sampler::SamplerBuilder;
use llama_rs::session::{ChatOptions, Session};
use llama_rs::{CancelToken, ErrorKind, Model, Token};
use testkit::tiny::Arch;

const PROMPT: &str = "The old man walked to the river and";

fn prompt(model: &Model, n: usize) -> Vec<Token> {
    let text = "Once there was a small house by the sea. ".repeat(n);
    let mut tokens = model.vocab().tokenize(&text, true).unwrap();
    tokens.truncate(n);
    assert_eq!(tokens.len(), n);
    tokens
}

#[test]
fn every_architecture_gives_the_same_answer_again() {
    for arch in Arch::ALL {
        let model = model(arch);
        let mut first = session(&model, 256);
        let expected = answer(&mut first, PROMPT, &tokens(24));
        assert_eq!(expected.finish, Finish::Length, "{arch:?}");
        assert_eq!(expected.stats.generated_tokens, 24);
        assert_eq!(expected.stats.reused_tokens, 0);
        let ids = first.tokens().to_vec();
        // Again in the same session: all but the last token of the prompt can be reused, if the memory allows it.
        let again = answer(&mut first, PROMPT, &tokens(24));
        assert_eq!(again.text, expected.text, "{arch:?}");
        assert_eq!(first.tokens(), ids, "{arch:?}");
        let reused = again.stats.reused_tokens;
        if arch.is_recurrent() {
            assert_eq!(reused, 0, "{arch:?}");
        } else {
            assert_eq!(reused, again.stats.prompt_tokens - 1, "{arch:?}");
        }
    }
}

#[test]
fn a_longer_prompt_is_evaluated_from_where_it_differs() {
    for arch in Arch::ALL {
        let model = model(arch);
        let text = prompt(&model, 60);
        let mut session = session(&model, 256);
        let first = answer(&mut session, &text[..40], &tokens(0));
        assert_eq!((first.stats.reused_tokens, first.finish), (0, Finish::Length));
        // An extension goes on where the prompt ended, in every kind of memory.
        let second = answer(&mut session, &text[..], &tokens(16));
        assert_eq!(second.stats.reused_tokens, 40, "{arch:?}");
        let ids = session.tokens().to_vec();
        let mut fresh = common::session(&model, 256);
        answer(&mut fresh, &text[..], &tokens(16));
        assert_eq!(fresh.tokens(), ids, "{arch:?}");
        // A change in the middle.
        let mut changed = text.clone();
        changed[30] = Token(if text[30] == Token(300) { 301 } else { 300 });
        let third = answer(&mut session, &changed[..], &tokens(8));
        assert_eq!(third.stats.reused_tokens, if arch.is_recurrent() { 0 } else { 30 }, "{arch:?}");
        let mut fresh = common::session(&model, 256);
        answer(&mut fresh, &changed[..], &tokens(8));
        assert_eq!(fresh.tokens(), session.tokens(), "{arch:?}");
    }
}

#[test]
fn an_answer_can_be_continued() {
    for arch in [Arch::Llama, Arch::Qwen35, Arch::Gemma3, Arch::GraniteHybrid] {
        let model = model(arch);
        let mut whole = session(&model, 256);
        answer(&mut whole, PROMPT, &tokens(20));
        let mut parts = session(&model, 256);
        answer(&mut parts, PROMPT, &tokens(9));
        let so_far = parts.tokens().to_vec();
        let rest = answer(&mut parts, so_far, &tokens(11));
        assert_eq!(parts.tokens(), whole.tokens(), "{arch:?}");
        // Only the last sampled token had to be evaluated.
        assert_eq!(rest.stats.reused_tokens, rest.stats.prompt_tokens - 1, "{arch:?}");
    }
}

#[test]
fn dropping_an_answer_leaves_the_session_consistent() {
    for arch in Arch::ALL {
        let model = model(arch);
        let mut session = session(&model, 256);
        let mut generation = session.generate(PROMPT, &tokens(50)).unwrap();
        for _ in 0..5 {
            generation.next().unwrap().unwrap();
        }
        drop(generation);
        let mut fresh = common::session(&model, 256);
        let expected = answer(&mut fresh, PROMPT, &tokens(12));
        assert_eq!(answer(&mut session, PROMPT, &tokens(12)).text, expected.text, "{arch:?}");
        assert_eq!(session.tokens(), fresh.tokens(), "{arch:?}");
    }
}

#[test]
fn stop_strings_end_the_answer_before_them() {
    let model = model(Arch::Qwen3);
    let mut session = session(&model, 256);
    let full = answer(&mut session, PROMPT, &tokens(40)).text;
    // A stop string from the middle of the answer, over several tokens.
    let middle: String = full.chars().skip(full.chars().count() / 2).take(6).collect();
    let options =
        GenerateOptions { stop: vec!["never there".into(), middle.clone()], ..tokens(40) };
    let stopped = answer(&mut session, PROMPT, &options);
    assert_eq!(stopped.finish, Finish::Stop(1));
    assert_eq!(stopped.text, full[..full.find(&middle).unwrap()]);
    assert!(stopped.stats.generated_tokens < 40);
    let empty = GenerateOptions { stop: vec![String::new()], ..tokens(4) };
    let error = session.generate(PROMPT, &empty).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn pieces_add_up_to_the_text_of_the_tokens() {
    let model = model(Arch::Llama);
    let mut session =
        session_with(&model, 256, SamplerBuilder::new().temp(5.0).top_k(0).top_p(1.0).seed(3));
    let mut text = String::new();
    let mut bytes = Vec::new();
    let options = GenerateOptions { logprobs: true, ..tokens(200) };
    for piece in session.generate(PROMPT, &options).unwrap() {
        let piece = piece.unwrap();
        text.push_str(&piece.text);
        bytes.extend(model.vocab().token_bytes(piece.token.unwrap(), false).unwrap());
        let logprob = piece.logprob.unwrap();
        assert!(logprob < 0.0 && logprob.is_finite());
    }
    assert_eq!(text, String::from_utf8_lossy(&bytes));
}

#[test]
fn a_prompt_longer_than_the_context_names_both_counts() {
    let model = model(Arch::Llama);
    let mut session = session(&model, 256);
    let n_ctx = session.context().n_ctx_seq();
    answer(&mut session, PROMPT, &tokens(4));
    let before = session.tokens().to_vec();
    let error = session.generate(prompt(&model, n_ctx + 1), &tokens(4)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PromptTooLong { prompt: n_ctx + 1, n_ctx });
    assert!(error.message().contains(&format!("{} tokens", n_ctx + 1)), "{error}");
    // Nothing was lost.
    assert_eq!(session.tokens(), before);
    let exact = answer(&mut session, prompt(&model, n_ctx), &tokens(4));
    assert_eq!((exact.finish, exact.stats.generated_tokens), (Finish::Length, 1));
}

#[test]
fn a_full_context_ends_the_answer() {
    let model = model(Arch::Qwen3);
    let mut session = session(&model, 256);
    let n_ctx = session.context().n_ctx_seq();
    let full = answer(&mut session, prompt(&model, n_ctx - 5), &tokens(1000));
    assert_eq!((full.finish, full.stats.generated_tokens), (Finish::Length, 6));
    // The session goes on.
    assert_eq!(answer(&mut session, PROMPT, &tokens(3)).stats.generated_tokens, 3);
}

#[test]
fn bad_prompts_are_errors() {
    let model = model(Arch::Llama);
    let mut session = session(&model, 256);
    for bad in [vec![], vec![Token(-1)], vec![Token(1), Token(99_999_999)]] {
        let error = session.generate(bad, &tokens(1)).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    }
    let other = SamplerBuilder::greedy().build_for_vocab(5).unwrap();
    assert_eq!(session.set_sampler(other).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert!(answer(&mut session, PROMPT, &tokens(2)).stats.generated_tokens == 2);
}

#[test]
fn cancelling_ends_the_answer_and_keeps_the_session() {
    for arch in [Arch::Llama, Arch::Qwen35] {
        let model = model(arch);
        let mut session = session(&model, 256);
        let cancel = CancelToken::new();
        let options = GenerateOptions { cancel: Some(cancel.clone()), ..tokens(100) };
        let mut generation = session.generate(PROMPT, &options).unwrap();
        for _ in 0..3 {
            generation.next().unwrap().unwrap();
        }
        cancel.cancel();
        let rest: Vec<_> = generation.by_ref().collect();
        assert!(rest.len() <= 1, "at most the text that was held back");
        assert_eq!(generation.finish_reason(), Some(Finish::Cancelled));
        drop(generation);
        // Cancelled before the prompt.
        let early = answer(&mut session, PROMPT, &options);
        assert_eq!((early.finish, early.text.as_str()), (Finish::Cancelled, ""));
        assert!(session.context().cancel_token().is_none(), "the option is gone with the answer");
        cancel.reset();
        let mut fresh = common::session(&model, 256);
        let expected = answer(&mut fresh, PROMPT, &tokens(10));
        assert_eq!(answer(&mut session, PROMPT, &tokens(10)).text, expected.text, "{arch:?}");
    }
}

#[test]
fn cancelling_during_the_prompt_is_seen() {
    let model = model(Arch::Llama);
    let mut session = session(&model, 4096);
    let text = prompt(&model, 4000);
    let cancel = CancelToken::new();
    let options = GenerateOptions { cancel: Some(cancel.clone()), ..tokens(1) };
    let finish = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            cancel.cancel();
        });
        answer(&mut session, text.clone(), &options).finish
    });
    assert_eq!(finish, Finish::Cancelled);
    let mut fresh = common::session(&model, 4096);
    let expected = answer(&mut fresh, PROMPT, &tokens(8));
    assert_eq!(answer(&mut session, PROMPT, &tokens(8)).text, expected.text);
}

#[test]
fn loops_are_found() {
    let model = model(Arch::Llama);
    // Banning all but two tokens makes any model repeat itself.
    let mut sampler = SamplerBuilder::greedy();
    for id in 0..model.vocab().len() as i32 {
        if id != 400 {
            sampler = sampler.logit_bias(Token(id), f32::NEG_INFINITY);
        }
    }
    let mut session = session_with(&model, 512, sampler);
    let options = GenerateOptions { loop_detector: Some(LoopOptions::default()), ..tokens(300) };
    let answer = answer(&mut session, PROMPT, &options);
    assert!(
        matches!(answer.finish, Finish::Loop(found) if found.period == 1),
        "{:?}",
        answer.finish
    );
    assert_eq!(answer.stats.generated_tokens, LoopOptions::default().min_tokens);
    assert_eq!(answer.finish.to_string(), "loop");
}

#[test]
fn saved_sessions_go_on_as_if_nothing_happened() {
    for arch in Arch::ALL {
        let model = model(arch);
        let mut first = session(&model, 256);
        answer(&mut first, PROMPT, &tokens(10));
        let mut saved = Vec::new();
        first.save(&mut saved).unwrap();
        let so_far = first.tokens().to_vec();
        let expected = answer(&mut first, so_far.clone(), &tokens(10)).text;
        let mut second = session(&model, 256);
        let loaded = second.load(&saved[..]).unwrap();
        assert_eq!(loaded, so_far.len() - 1, "the last sampled token is not in memory");
        let resumed = answer(&mut second, so_far, &tokens(10));
        assert_eq!(resumed.text, expected, "{arch:?}");
        assert_eq!(resumed.stats.reused_tokens, loaded, "{arch:?}");
    }
}

#[test]
fn damaged_sessions_are_refused_and_leave_an_empty_one() {
    let model = model(Arch::Llama);
    let mut source = session(&model, 256);
    assert_eq!(source.save(Vec::new()).unwrap_err().kind(), &ErrorKind::State);
    answer(&mut source, PROMPT, &tokens(6));
    let mut saved = Vec::new();
    source.save(&mut saved).unwrap();
    let mut target = session(&model, 256);
    let expected = answer(&mut target, PROMPT, &tokens(6)).text;
    let mut refuse = |bytes: &[u8], what: &str| {
        answer(&mut target, PROMPT, &tokens(2));
        let error = target.load(bytes).expect_err(what);
        assert_eq!(error.kind(), &ErrorKind::State, "{what}: {error}");
        assert!(target.tokens().is_empty(), "{what}");
        assert_eq!(answer(&mut target, PROMPT, &tokens(6)).text, expected, "{what}");
    };
    for cut in [0, 4, 8, 11, 20, 27, 30, 60, 100, saved.len() / 2, saved.len() - 1] {
        refuse(&saved[..cut], &format!("cut at {cut}"));
    }
    for at in [0, 8, 12, 19, 20, 28, 33, 90, saved.len() / 2, saved.len() - 1] {
        let mut bytes = saved.clone();
        bytes[at] ^= 0x40;
        refuse(&bytes, &format!("byte {at} changed"));
    }
    let other = common::model(Arch::Qwen3);
    let error = session(&other, 256).load(&saved[..]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::State);
}

#[test]
fn chats_reuse_the_turns_before() {
    for arch in [Arch::Qwen3, Arch::Qwen35, Arch::Gemma3, Arch::GraniteHybrid, Arch::BailingMoe2] {
        let model = model(arch);
        let mut session = session(&model, 1024);
        assert!(session.chat_template().warning().is_none(), "{arch:?}");
        let options = ChatOptions { generate: tokens(12), ..ChatOptions::default() };
        let mut messages = vec![Message::user("Tell me about the sea.")];
        let first = session.chat(&messages, &options).unwrap().complete().unwrap();
        let bos = model.vocab().bos().filter(|_| model.vocab().add_bos());
        if let Some(bos) = bos {
            assert_eq!(session.tokens()[0], bos);
            assert_ne!(session.tokens()[1], bos, "{arch:?}: the first token is doubled");
        }
        messages.push(Message::assistant(first.text.trim()));
        messages.push(Message::user("And the river?"));
        let second = session.chat(&messages, &options).unwrap().complete().unwrap();
        if !arch.is_recurrent() {
            assert!(
                second.stats.reused_tokens + 4 >= first.stats.prompt_tokens,
                "{arch:?}: {second:?}"
            );
        }
        assert!(second.stats.prompt_tokens > first.stats.prompt_tokens);
    }
}

#[test]
fn a_model_without_a_template_still_chats() {
    for template in [testkit::tiny::Template::None, testkit::tiny::Template::Broken] {
        let options = testkit::tiny::TinyOptions { template, ..Default::default() };
        let model = common::model_with(Arch::Qwen3, &options);
        let mut session = session(&model, 512);
        assert!(session.chat_template().warning().unwrap().contains("using ChatML"));
        let options = ChatOptions { generate: tokens(5), ..ChatOptions::default() };
        let answer = session.chat(&[Message::user("Hi")], &options).unwrap().complete().unwrap();
        assert_eq!(answer.stats.generated_tokens, 5);
        session.set_chat_template(ChatTemplate::chatml());
        assert!(session.chat_template().warning().is_none());
    }
}

#[test]
fn sessions_can_move_between_threads() {
    static_assertions::assert_impl_all!(Session: Send);
    static_assertions::assert_not_impl_any!(Session: Sync, Clone);
    let model = model(Arch::Llama);
    let mut session = session(&model, 256);
    let text =
        std::thread::spawn(move || answer(&mut session, PROMPT, &tokens(4)).text).join().unwrap();
    assert!(!text.is_empty());
}

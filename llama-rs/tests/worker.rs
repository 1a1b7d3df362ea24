//! Sessions on threads of their own.

mod common;

use common::{answer, model, session, tokens};
use llama_rs::chat::Message;
use llama_rs::generation::{Finish, GenerateOptions};
use llama_rs::session::ChatOptions;
use llama_rs::worker::{Stream, Worker};
use llama_rs::{CancelToken, ErrorKind, Token};
use testkit::tiny::Arch;

const PROMPT: &str = "The old man walked to the river and";

#[test]
fn streams_give_what_the_session_would() {
    static_assertions::assert_impl_all!(Worker: Send, Sync);
    static_assertions::assert_impl_all!(Stream: Send);
    let model = model(Arch::Llama);
    let expected = answer(&mut session(&model, 512), PROMPT, &tokens(150));
    let worker = Worker::spawn(session(&model, 512)).unwrap();
    // More tokens than the channel holds, and a second request behind the first.
    let mut first = worker.generate(PROMPT, tokens(150)).unwrap();
    let second = worker.generate(PROMPT, tokens(3)).unwrap();
    let text: String = first.by_ref().map(|piece| piece.unwrap().text).collect();
    assert_eq!(text, expected.text);
    assert_eq!(first.finish_reason(), Some(Finish::Length));
    assert_eq!(first.stats().unwrap().generated_tokens, 150);
    assert_eq!(second.count(), 3);
    let chat = ChatOptions { generate: tokens(2), ..ChatOptions::default() };
    assert_eq!(worker.chat(vec![Message::user("Hi")], chat).unwrap().count(), 2);
    assert!(worker.join().unwrap().tokens().len() > 2);
}

#[test]
fn dropping_a_stream_stops_its_answer() {
    let model = model(Arch::Llama);
    let worker = Worker::spawn(session(&model, 2048)).unwrap();
    let mut long = worker.generate(PROMPT, tokens(100_000)).unwrap();
    long.next().unwrap().unwrap();
    let waiting = worker.generate(PROMPT, tokens(100_000)).unwrap();
    drop(waiting);
    drop(long);
    assert_eq!(worker.generate(PROMPT, tokens(4)).unwrap().count(), 4);
    assert!(worker.join().unwrap().tokens().len() < 100);
}

#[test]
fn a_token_stops_a_stream() {
    let model = model(Arch::Llama);
    let worker = Worker::spawn(session(&model, 2048)).unwrap();
    let cancel = CancelToken::new();
    let options = GenerateOptions { cancel: Some(cancel.clone()), ..tokens(100_000) };
    let mut stream = worker.generate(PROMPT, options).unwrap();
    assert!(stream.cancel_token().same_as(&cancel));
    stream.next().unwrap().unwrap();
    cancel.cancel();
    assert!(stream.by_ref().count() < 500);
    assert_eq!(stream.finish_reason(), Some(Finish::Cancelled));
}

#[test]
fn errors_come_through_the_stream() {
    let model = model(Arch::Llama);
    let worker = Worker::spawn(session(&model, 256)).unwrap();
    let mut stream = worker.generate(vec![Token(-5)], tokens(1)).unwrap();
    assert_eq!(stream.next().unwrap().unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert!(stream.next().is_none() && stream.finish_reason().is_none());
    assert_eq!(worker.generate(PROMPT, tokens(1)).unwrap().count(), 1);
}

//! The functions as a C program calls them: answers, ends, and everything that is refused.

mod common;

use common::{OwnedModel, Text, append, last_error, load, session};
use smol_capi::*;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};
use testkit::tiny::Arch;

fn greedy() -> smx_session_options {
    smx_session_options {
        temperature: 0.0,
        n_ctx: 256,
        n_threads: 1,
        ..smx_session_options_default()
    }
}

fn tokens(n: usize) -> smx_generate_options {
    smx_generate_options { max_tokens: n, ignore_eog: true, ..smx_generate_options_default() }
}

fn complete(session: *const smx_session, options: &smx_generate_options) -> (String, smx_answer) {
    let mut text = Text::default();
    let mut answer = std::mem::MaybeUninit::<smx_answer>::uninit();
    // SAFETY: all pointers are to values that live until the call returns.
    let status = unsafe {
        smx_session_complete(
            session,
            c"Once there was".as_ptr(),
            options,
            Some(append),
            text.user_data(),
            answer.as_mut_ptr(),
        )
    };
    assert_eq!(status, smx_status::SMX_OK, "{}", last_error());
    // SAFETY: written, as the status says.
    (text.pieces.concat(), unsafe { answer.assume_init() })
}

#[test]
fn answers_are_those_of_llama_rs() {
    let (model, tiny) = load(Arch::Qwen3);
    let session = session(&model, &greedy());
    let (text, answer) = complete(session.pointer, &tokens(24));
    let reference = llama_rs::Model::load(tiny.path()).unwrap();
    let sampler = llama_rs::SamplerBuilder::greedy().build(&reference).unwrap();
    let context = reference.context().n_ctx(256).threads(1, 1).build().unwrap();
    let mut reference = llama_rs::Session::new(context, sampler).unwrap();
    let options = llama_rs::GenerateOptions {
        max_tokens: Some(24),
        ignore_eog: true,
        ..llama_rs::GenerateOptions::default()
    };
    let expected = reference.generate("Once there was", &options).unwrap().complete().unwrap();
    assert_eq!(text, expected.text);
    assert_eq!(answer.finish, smx_finish::SMX_FINISH_LENGTH);
    assert_eq!(answer.generated_tokens, 24);
    assert_eq!(answer.prompt_tokens, expected.stats.prompt_tokens);
    assert_eq!(answer.reused_tokens, 0);

    // Again: the prompt is known but for its last token. After clearing it is not.
    let (again, answer) = complete(session.pointer, &tokens(24));
    assert_eq!((again, answer.reused_tokens), (text, answer.prompt_tokens - 1));
    // SAFETY: a session that lives.
    assert_eq!(unsafe { smx_session_clear(session.pointer) }, smx_status::SMX_OK);
    assert_eq!(complete(session.pointer, &tokens(1)).1.reused_tokens, 0);
}

#[test]
fn a_session_outlives_its_model() {
    let (model, _) = load(Arch::Llama);
    let session = session(&model, &greedy());
    drop(model);
    assert_eq!(complete(session.pointer, &tokens(4)).1.generated_tokens, 4);
}

#[test]
fn a_conversation_is_formatted_with_the_template() {
    let (model, tiny) = load(Arch::Llama);
    let session = session(&model, &greedy());
    let message = smx_message { role: c"user".as_ptr(), content: c"Hello".as_ptr() };
    let mut text = Text::default();
    // SAFETY: all pointers are to values that live until the call returns; the answer may be NULL.
    let status = unsafe {
        smx_session_chat(
            session.pointer,
            &raw const message,
            1,
            &tokens(12),
            Some(append),
            text.user_data(),
            null_mut(),
        )
    };
    assert_eq!(status, smx_status::SMX_OK, "{}", last_error());
    let reference = llama_rs::Model::load(tiny.path()).unwrap();
    let sampler = llama_rs::SamplerBuilder::greedy().build(&reference).unwrap();
    let context = reference.context().n_ctx(256).threads(1, 1).build().unwrap();
    let mut reference = llama_rs::Session::new(context, sampler).unwrap();
    let generate = llama_rs::GenerateOptions {
        max_tokens: Some(12),
        ignore_eog: true,
        ..llama_rs::GenerateOptions::default()
    };
    let options = llama_rs::ChatOptions { generate, ..llama_rs::ChatOptions::default() };
    let messages = [llama_rs::chat::Message::user("Hello")];
    let expected = reference.chat(&messages, &options).unwrap().collect_text().unwrap();
    assert_eq!(text.pieces.concat(), expected);
}

#[test]
fn stop_texts_end_an_answer() {
    let (model, _) = load(Arch::Qwen3);
    let session = session(&model, &greedy());
    let (full, _) = complete(session.pointer, &tokens(40));
    let middle: String = full.chars().skip(full.chars().count() / 2).take(6).collect();
    let middle_c = CString::new(middle.clone()).unwrap();
    let stop = [c"never there".as_ptr(), middle_c.as_ptr()];
    let options = smx_generate_options { stop: stop.as_ptr(), n_stop: 2, ..tokens(40) };
    let (text, answer) = complete(session.pointer, &options);
    assert_eq!(text, full[..full.find(&middle).unwrap()]);
    assert_eq!(answer.finish, smx_finish::SMX_FINISH_STOP);
}

/// What the callbacks below see.
struct Call {
    session: *const smx_session,
    calls: usize,
    inner: Option<smx_status>,
}

unsafe extern "C" fn stop_at_once(_: *const c_char, _: usize, user: *mut c_void) -> bool {
    // SAFETY: the test's own value, which lives during the call.
    let call = unsafe { &mut *user.cast::<Call>() };
    call.calls += 1;
    false
}

unsafe extern "C" fn cancel_within(_: *const c_char, _: usize, user: *mut c_void) -> bool {
    // SAFETY: the test's own value, which lives during the call.
    let call = unsafe { &mut *user.cast::<Call>() };
    call.calls += 1;
    // SAFETY: a session that lives.
    unsafe { smx_session_cancel(call.session) };
    true
}

unsafe extern "C" fn call_again(_: *const c_char, _: usize, user: *mut c_void) -> bool {
    // SAFETY: the test's own value, which lives during the call.
    let call = unsafe { &mut *user.cast::<Call>() };
    call.calls += 1;
    // SAFETY: a session that lives.
    call.inner = Some(unsafe { smx_session_clear(call.session) });
    call.calls < 3
}

#[test]
fn callbacks_stop_cancel_and_cannot_enter_the_session_again() {
    let (model, _) = load(Arch::Llama);
    let session = session(&model, &greedy());
    let run = |on_text: unsafe extern "C" fn(*const c_char, usize, *mut c_void) -> bool| {
        let mut call = Call { session: session.pointer, calls: 0, inner: None };
        let mut answer = std::mem::MaybeUninit::<smx_answer>::uninit();
        // SAFETY: all pointers are to values that live until the call returns.
        let status = unsafe {
            smx_session_complete(
                session.pointer,
                c"Once there was".as_ptr(),
                &tokens(60),
                Some(on_text),
                (&raw mut call).cast(),
                answer.as_mut_ptr(),
            )
        };
        assert_eq!(status, smx_status::SMX_OK, "{}", last_error());
        // SAFETY: written, as the status says.
        let answer = unsafe { answer.assume_init() };
        assert_eq!(answer.finish, smx_finish::SMX_FINISH_CANCELLED);
        assert!(answer.generated_tokens < 60);
        call
    };
    assert_eq!(run(stop_at_once).calls, 1);
    // Text that was held back may follow.
    assert!(run(cancel_within).calls <= 2);
    assert_eq!(run(call_again).inner, Some(smx_status::SMX_ERROR_BUSY));
    assert!(last_error().contains("in use"));
    // A cancellation that comes late does not touch the next answer.
    // SAFETY: a session that lives.
    unsafe { smx_session_cancel(session.pointer) };
    assert_eq!(complete(session.pointer, &tokens(5)).1.generated_tokens, 5);
}

#[test]
fn cancelling_from_another_thread() {
    let (model, _) = load(Arch::Llama);
    let session = session(&model, &smx_session_options { n_ctx: 4096, ..greedy() });
    let address = session.pointer.addr();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                // SAFETY: a session that lives until the scope has ended.
                unsafe { smx_session_cancel(std::ptr::with_exposed_provenance(address)) };
                std::thread::yield_now();
            }
        });
        session.pointer.expose_provenance();
        let (_, answer) = complete(session.pointer, &tokens(4000));
        done.store(true, std::sync::atomic::Ordering::Release);
        assert_eq!(answer.finish, smx_finish::SMX_FINISH_CANCELLED);
    });
}

unsafe extern "C" fn refuse(_: f32, user: *mut c_void) -> bool {
    // SAFETY: the test's own value, which lives during the call.
    unsafe { *user.cast::<usize>() += 1 };
    false
}

#[test]
fn loading_is_watched_and_stopped() {
    let tiny = common::write(Arch::Llama);
    let mut calls = 0_usize;
    let options = smx_model_options {
        progress: Some(refuse),
        user_data: (&raw mut calls).cast(),
        ..smx_model_options_default()
    };
    let mut model = null_mut();
    let path = CString::new(tiny.path().to_str().unwrap()).unwrap();
    // SAFETY: all pointers are to values that live until the call returns.
    let status = unsafe { smx_model_load(path.as_ptr(), &raw const options, &raw mut model) };
    assert_eq!(status, smx_status::SMX_ERROR_CANCELLED);
    assert!(model.is_null() && calls == 1);
}

#[test]
fn memory_is_limited_and_packed_weights_are_kept() {
    let tiny = common::write(Arch::Llama);
    let path = CString::new(tiny.path().to_str().unwrap()).unwrap();
    let folder = CString::new(tiny.path().with_extension("packed").to_str().unwrap()).unwrap();
    let load = |ram| {
        let options = smx_model_options {
            ram,
            n_ctx: 256,
            pack_cache: folder.as_ptr(),
            ..smx_model_options_default()
        };
        let mut model = null_mut();
        // SAFETY: all pointers are to values that live until the call returns.
        let status = unsafe { smx_model_load(path.as_ptr(), &raw const options, &raw mut model) };
        (status, OwnedModel { pointer: model })
    };
    let (status, model) = load(1 << 40);
    assert_eq!(status, smx_status::SMX_OK, "{}", last_error());
    assert_eq!(complete(session(&model, &greedy()).pointer, &tokens(4)).1.generated_tokens, 4);
    let (status, model) = load(1 << 20);
    assert_eq!((status, model.pointer.is_null()), (smx_status::SMX_ERROR_MEMORY, true));
    assert!(last_error().contains("a context of 256 tokens"), "{}", last_error());
}

#[test]
fn bad_arguments_are_refused_with_their_reason() {
    let mut model: *mut smx_model = std::ptr::dangling_mut();
    // SAFETY: NULL is refused.
    let status = unsafe { smx_model_load(null(), null(), &raw mut model) };
    assert_eq!((status, model.is_null()), (smx_status::SMX_ERROR_ARGUMENT, true));
    assert_eq!(last_error(), "path is NULL");
    // SAFETY: NULL is refused.
    let status = unsafe { smx_model_load(c"model.gguf".as_ptr(), null(), null_mut()) };
    assert_eq!((status, last_error()), (smx_status::SMX_ERROR_ARGUMENT, "out is NULL".into()));
    // SAFETY: all pointers are to values that live until the call returns.
    let status = unsafe { smx_model_load(c"/no/such.gguf".as_ptr(), null(), &raw mut model) };
    assert_eq!(status, smx_status::SMX_ERROR_IO);
    assert!(last_error().contains("/no/such.gguf"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "no model").unwrap();
    let path = CString::new(file.path().to_str().unwrap()).unwrap();
    // SAFETY: as above.
    let status = unsafe { smx_model_load(path.as_ptr(), null(), &raw mut model) };
    assert_eq!(status, smx_status::SMX_ERROR_MODEL, "{}", last_error());
    let options = smx_model_options { load_mode: 7, ..smx_model_options_default() };
    // SAFETY: as above.
    let status = unsafe { smx_model_load(path.as_ptr(), &raw const options, &raw mut model) };
    assert_eq!(status, smx_status::SMX_ERROR_ARGUMENT);
    assert!(last_error().contains("load_mode is 7"));

    // SAFETY: NULL does nothing.
    unsafe { smx_model_free(null_mut()) };
    // SAFETY: NULL does nothing.
    unsafe { smx_session_free(null_mut()) };
    // SAFETY: NULL does nothing.
    unsafe { smx_session_cancel(null()) };
    // SAFETY: NULL is refused.
    assert_eq!(unsafe { smx_session_clear(null()) }, smx_status::SMX_ERROR_ARGUMENT);
}

#[test]
fn settings_out_of_range_are_refused() {
    let (model, _) = load(Arch::Llama);
    for (options, reason) in [
        (smx_session_options { temperature: f32::NAN, ..greedy() }, "temperature"),
        (smx_session_options { top_p: 2.0, ..greedy() }, "top-p"),
        (
            smx_session_options { kv_type: c"q9".as_ptr(), ..greedy() },
            "kv_type is \"q9\", known are",
        ),
        (smx_session_options { kv_type: c"\xFF".as_ptr(), ..greedy() }, "not UTF-8"),
    ] {
        let mut session = null_mut();
        // SAFETY: all pointers are to values that live until the call returns.
        let status =
            unsafe { smx_session_new(model.pointer, &raw const options, &raw mut session) };
        assert_eq!(status, smx_status::SMX_ERROR_ARGUMENT);
        assert!(session.is_null() && last_error().contains(reason), "{}", last_error());
    }
    let small = session(&model, &smx_session_options { kv_type: c"q8_0".as_ptr(), ..greedy() });
    let long = CString::new("sea ".repeat(400)).unwrap();
    let mut text = Text::default();
    for (prompt, on_text, expected) in [
        (
            long.as_ptr(),
            Some(append as unsafe extern "C" fn(_, _, _) -> _),
            smx_status::SMX_ERROR_CONTEXT,
        ),
        (c"a".as_ptr(), None, smx_status::SMX_ERROR_ARGUMENT),
        (null(), Some(append as _), smx_status::SMX_ERROR_ARGUMENT),
    ] {
        // SAFETY: NULL is refused; the rest lives until the call returns.
        let status = unsafe {
            let user = text.user_data();
            smx_session_complete(small.pointer, prompt, null(), on_text, user, null_mut())
        };
        assert_eq!(status, expected, "{}", last_error());
    }
    let options = smx_generate_options { n_stop: 1, ..tokens(1) };
    // SAFETY: NULL is refused; the rest lives until the call returns.
    let status = unsafe {
        let user = text.user_data();
        smx_session_complete(
            small.pointer,
            c"a".as_ptr(),
            &raw const options,
            Some(append),
            user,
            null_mut(),
        )
    };
    assert_eq!(
        (status, last_error()),
        (smx_status::SMX_ERROR_ARGUMENT, "stop is NULL but has 1 entries".into())
    );
}

#[test]
fn the_version_is_the_crates() {
    // SAFETY: a static string.
    let version = unsafe { std::ffi::CStr::from_ptr(smx_version()) };
    assert_eq!(version.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}

//! Sessions: a context with a sampler and the text so far, and its answers.

use std::ffi::{c_char, c_void};
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, TryLockError};

use llama_rs::chat::Message;
use llama_rs::{
    CancelToken, ChatOptions, Finish, GenerateOptions, Generation, KvType, SamplerBuilder, Session,
};

use crate::argument::{array, object, optional_text, place, text};
use crate::model::smx_model;
use crate::status::{Failure, call, quietly, smx_status};

/// The seed that stands for a random one.
pub const SMX_SEED_RANDOM: u64 = u64::MAX;

/// A conversation or text with a model. One call at a time uses it; a second one fails with SMX_ERROR_BUSY.
pub struct smx_session {
    session: Mutex<Session>,
    cancel: CancelToken,
}

/// How a session is made; begin with smx_session_options_default().
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct smx_session_options {
    /// Tokens that prompt and answer may have together; 0: what the model was trained on, at most 4096.
    pub n_ctx: u32,
    /// Threads that compute; 0: the device's fast cores.
    pub n_threads: u32,
    /// Type of the cached keys and values, for example "f16" or "q8_0"; NULL: "f16". Smaller types need less memory.
    pub kv_type: *const c_char,
    /// Divides the logits; 0 always takes the most probable token. 0 to 100.
    pub temperature: f32,
    /// Keeps this many of the most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the fewest tokens whose probabilities add up to this; 0 to 1, 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this times as probable as the best one; 0 to 1, 0 keeps all.
    pub min_p: f32,
    /// Divides positive logits of the last 64 tokens and multiplies negative ones; 0.1 to 10, 1 turns it off.
    pub repeat_penalty: f32,
    /// The same seed gives the same answers; SMX_SEED_RANDOM: another one for each session.
    pub seed: u64,
}

impl Default for smx_session_options {
    fn default() -> Self {
        Self {
            n_ctx: 0,
            n_threads: 0,
            kv_type: null(),
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            repeat_penalty: 1.0,
            seed: SMX_SEED_RANDOM,
        }
    }
}

/// Returns the options that NULL stands for.
#[unsafe(no_mangle)]
pub extern "C" fn smx_session_options_default() -> smx_session_options {
    smx_session_options::default()
}

/// How an answer ends; begin with smx_generate_options_default().
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct smx_generate_options {
    /// Most tokens of the answer; 0: until the context is full.
    pub max_tokens: usize,
    /// Texts that end the answer and are not part of it, `n_stop` of them. May be NULL if there are none.
    pub stop: *const *const c_char,
    /// Number of texts in `stop`.
    pub n_stop: usize,
    /// Goes on after tokens that end a text; for measurements.
    pub ignore_eog: bool,
}

impl Default for smx_generate_options {
    fn default() -> Self {
        Self { max_tokens: 0, stop: null(), n_stop: 0, ignore_eog: false }
    }
}

/// Returns the options that NULL stands for: until the model ends its answer or the context is full.
#[unsafe(no_mangle)]
pub extern "C" fn smx_generate_options_default() -> smx_generate_options {
    smx_generate_options::default()
}

/// A message of a conversation.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct smx_message {
    /// "system", "user", "assistant", or another role that the model's template knows.
    pub role: *const c_char,
    /// Its text.
    pub content: *const c_char,
}

/// Is called with each piece of an answer as soon as it is there, on the thread that asked for it: whole characters in
/// UTF-8, `len` bytes and a NUL behind them, valid during the call. The answer ends when it returns false. It must not
/// throw an exception.
pub type smx_text_fn =
    Option<unsafe extern "C" fn(text: *const c_char, len: usize, user_data: *mut c_void) -> bool>;

/// Why an answer ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum smx_finish {
    /// The model ended it.
    SMX_FINISH_END = 0,
    /// It has as many tokens as were asked for, or the context is full.
    SMX_FINISH_LENGTH = 1,
    /// A stop text was found.
    SMX_FINISH_STOP = 2,
    /// smx_session_cancel() was called, or the callback returned false.
    SMX_FINISH_CANCELLED = 3,
}

/// What is known about an answer when it has ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct smx_answer {
    /// Why it ended.
    pub finish: smx_finish,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that were known from the text before and cost nothing.
    pub reused_tokens: usize,
    /// Tokens of the answer.
    pub generated_tokens: usize,
    /// Seconds that the prompt took.
    pub prompt_seconds: f64,
    /// Seconds that the answer took, without the callback's.
    pub generation_seconds: f64,
}

/// Makes a session. `options` may be NULL. The session is freed with smx_session_free().
///
/// # Safety
/// `model` comes from smx_model_load(); `options` points to options whose texts are NUL-terminated, or is NULL; `out`
/// points to a pointer, which becomes NULL when the call fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_session_new(
    model: *const smx_model,
    options: *const smx_session_options,
    out: *mut *mut smx_session,
) -> smx_status {
    call(|| {
        // SAFETY: NULL or writable, by this function's contract.
        let out = unsafe { place(out, "out") }?;
        // SAFETY: NULL or a model, by this function's contract.
        let model = &unsafe { object(model, "model") }?.model;
        let options = match options.is_null() {
            true => smx_session_options::default(),
            // SAFETY: not NULL, hence valid by this function's contract.
            false => *unsafe { object(options, "options") }?,
        };
        let mut sampler = SamplerBuilder::new()
            .temp(options.temperature)
            .top_k(options.top_k as usize)
            .top_p(options.top_p)
            .min_p(options.min_p)
            .repeat_penalty(options.repeat_penalty);
        if options.seed != SMX_SEED_RANDOM {
            sampler = sampler.seed(options.seed);
        }
        let mut context = model.context();
        if options.n_ctx > 0 {
            context = context.n_ctx(options.n_ctx);
        }
        if options.n_threads > 0 {
            context = context.threads(options.n_threads, options.n_threads);
        }
        // SAFETY: NULL or NUL-terminated, by this function's contract.
        if let Some(name) = unsafe { optional_text(options.kv_type, "kv_type") }? {
            let kv_type = KvType::from_name(name).ok_or_else(|| {
                let known: Vec<_> = KvType::ALL.iter().map(|kv_type| kv_type.as_str()).collect();
                Failure::argument(format!("kv_type is \"{name}\", known are {}", known.join(", ")))
            })?;
            context = context.kv_type(kv_type, kv_type);
        }
        let session = Session::new(context.build()?, sampler.build(model)?)?;
        let session = smx_session { session: Mutex::new(session), cancel: CancelToken::new() };
        *out = Box::into_raw(Box::new(session));
        Ok(())
    })
}

/// Frees a session. NULL does nothing.
///
/// # Safety
/// `session` is NULL or comes from smx_session_new(), is freed once, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_session_free(session: *mut smx_session) {
    if !session.is_null() {
        // SAFETY: made by Box::into_raw in smx_session_new and freed once, by this function's contract.
        let session = unsafe { Box::from_raw(session) };
        quietly(|| drop(session));
    }
}

/// Answers a conversation, formatted with the model's chat template, and returns when the answer has ended. What it has
/// in common with the conversation before is not computed again. `options` and `answer` may be NULL.
///
/// # Safety
/// `session` comes from smx_session_new(); `messages` points to `n_messages` messages with NUL-terminated texts;
/// `options` points to options with `n_stop` NUL-terminated texts, or is NULL; `on_text` may be called with `user_data`;
/// `answer` may be written, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_session_chat(
    session: *const smx_session,
    messages: *const smx_message,
    n_messages: usize,
    options: *const smx_generate_options,
    on_text: smx_text_fn,
    user_data: *mut c_void,
    answer: *mut smx_answer,
) -> smx_status {
    call(|| {
        // SAFETY: NULL or a session, by this function's contract.
        let session = unsafe { object(session, "session") }?;
        let sink = Sink::new(on_text, user_data)?;
        // SAFETY: valid for as many messages, by this function's contract.
        let messages = unsafe { array(messages, n_messages, "messages") }?;
        let messages: Vec<Message> = messages
            .iter()
            .map(|message| {
                // SAFETY: NULL or NUL-terminated, by this function's contract.
                let role = unsafe { text(message.role, "role") }?;
                // SAFETY: as above.
                let content = unsafe { text(message.content, "content") }?;
                Ok(Message::new(role, content))
            })
            .collect::<Result<_, Failure>>()?;
        // SAFETY: NULL or valid, by this function's contract.
        let generate = unsafe { generate_options(options, session) }?;
        let options = ChatOptions { generate, ..ChatOptions::default() };
        let done = session.answer(sink, |session| session.chat(&messages, &options))?;
        // SAFETY: NULL or writable, by this function's contract.
        unsafe { put(answer, done) };
        Ok(())
    })
}

/// Continues a text, without any template, and returns when the continuation has ended. What the text has in common with
/// the text before is not computed again. `options` and `answer` may be NULL.
///
/// # Safety
/// `session` comes from smx_session_new(); `prompt` is a NUL-terminated string; `options` points to options with
/// `n_stop` NUL-terminated texts, or is NULL; `on_text` may be called with `user_data`; `answer` may be written, or is
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_session_complete(
    session: *const smx_session,
    prompt: *const c_char,
    options: *const smx_generate_options,
    on_text: smx_text_fn,
    user_data: *mut c_void,
    answer: *mut smx_answer,
) -> smx_status {
    call(|| {
        // SAFETY: NULL or a session, by this function's contract.
        let session = unsafe { object(session, "session") }?;
        let sink = Sink::new(on_text, user_data)?;
        // SAFETY: NULL or NUL-terminated, by this function's contract.
        let prompt = unsafe { text(prompt, "prompt") }?;
        // SAFETY: NULL or valid, by this function's contract.
        let options = unsafe { generate_options(options, session) }?;
        let done = session.answer(sink, |session| session.generate(prompt, &options))?;
        // SAFETY: NULL or writable, by this function's contract.
        unsafe { put(answer, done) };
        Ok(())
    })
}

/// Stops the answer that the session is giving, within milliseconds; from any thread, also from the callback. Without an
/// answer under way it does nothing.
///
/// # Safety
/// `session` is NULL or comes from smx_session_new() and is not freed during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_session_cancel(session: *const smx_session) {
    // SAFETY: NULL or a session, by this function's contract.
    if let Some(session) = unsafe { session.as_ref() } {
        session.cancel.cancel();
    }
}

/// Forgets the text so far.
///
/// # Safety
/// `session` comes from smx_session_new().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smx_session_clear(session: *const smx_session) -> smx_status {
    call(|| {
        // SAFETY: NULL or a session, by this function's contract.
        let session = unsafe { object(session, "session") }?;
        session.lock()?.clear()?;
        Ok(())
    })
}

/// # Safety
/// `options` is NULL or points to options with `n_stop` NUL-terminated texts.
unsafe fn generate_options(
    options: *const smx_generate_options,
    session: &smx_session,
) -> Result<GenerateOptions, Failure> {
    let options = match options.is_null() {
        true => smx_generate_options::default(),
        // SAFETY: not NULL, hence valid by this function's contract.
        false => *unsafe { object(options, "options") }?,
    };
    // SAFETY: valid for as many texts, by this function's contract.
    let stop = unsafe { array(options.stop, options.n_stop, "stop") }?;
    let stop = stop
        .iter()
        // SAFETY: NULL or NUL-terminated, by this function's contract.
        .map(|&stop| unsafe { text(stop, "a stop text") }.map(str::to_owned))
        .collect::<Result<_, Failure>>()?;
    Ok(GenerateOptions {
        max_tokens: (options.max_tokens > 0).then_some(options.max_tokens),
        stop,
        ignore_eog: options.ignore_eog,
        cancel: Some(session.cancel.clone()),
        ..GenerateOptions::default()
    })
}

/// # Safety
/// `place` is NULL or may be written.
unsafe fn put(place: *mut smx_answer, answer: smx_answer) {
    if !place.is_null() {
        // SAFETY: not NULL, hence writable by this function's contract.
        unsafe { place.write(answer) };
    }
}

/// Where the text goes.
struct Sink {
    call: unsafe extern "C" fn(*const c_char, usize, *mut c_void) -> bool,
    user_data: *mut c_void,
    buffer: String,
}

impl Sink {
    fn new(call: smx_text_fn, user_data: *mut c_void) -> Result<Self, Failure> {
        let call = call.ok_or_else(|| Failure::argument("on_text is NULL"))?;
        Ok(Self { call, user_data, buffer: String::new() })
    }

    /// Hands a piece over; false: no more is wanted.
    fn put(&mut self, text: &str) -> bool {
        if text.is_empty() {
            return true;
        }
        self.buffer.clear();
        self.buffer.push_str(text);
        self.buffer.push('\0');
        // SAFETY: the caller's function with the caller's data, during the call that they were passed to; the text has
        // its NUL and lives as long as the buffer is not touched.
        unsafe { (self.call)(self.buffer.as_ptr().cast(), text.len(), self.user_data) }
    }
}

impl smx_session {
    fn lock(&self) -> Result<MutexGuard<'_, Session>, Failure> {
        self.session.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Failure::new(
                smx_status::SMX_ERROR_BUSY,
                "the session is in use by another call; make a session for each thread",
            ),
            TryLockError::Poisoned(_) => Failure::new(
                smx_status::SMX_ERROR_INTERNAL,
                "an earlier call ended with an internal error; make a new session",
            ),
        })
    }

    fn answer(
        &self,
        mut sink: Sink,
        start: impl FnOnce(&mut Session) -> llama_rs::Result<Generation<'_>>,
    ) -> Result<smx_answer, Failure> {
        let mut session = self.lock()?;
        // What was cancelled before is over.
        self.cancel.reset();
        let mut generation = start(&mut session)?;
        let mut wanted = true;
        while wanted && let Some(piece) = generation.next() {
            wanted = sink.put(&piece?.text);
        }
        let finish = match generation.finish_reason() {
            Some(Finish::Eos | Finish::Grammar) => smx_finish::SMX_FINISH_END,
            Some(Finish::Stop(_)) => smx_finish::SMX_FINISH_STOP,
            Some(Finish::Length | Finish::Loop(_)) => smx_finish::SMX_FINISH_LENGTH,
            // The callback had enough.
            Some(_) | None => smx_finish::SMX_FINISH_CANCELLED,
        };
        let stats = generation.stats();
        Ok(smx_answer {
            finish,
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            generated_tokens: stats.generated_tokens,
            prompt_seconds: stats.prompt_time.as_secs_f64(),
            generation_seconds: stats.generation_time.as_secs_f64(),
        })
    }
}

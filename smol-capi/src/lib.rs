//! C API over `llama-rs`, built as a static library for iOS apps and any program that can call C.
//!
//! The header `include/smolmaxxing.h` is generated from this crate (a test compares them). Every function may be called
//! from any thread. No panic leaves a function, no argument that is checked here is trusted: a NULL where an object is
//! needed, text that is not UTF-8 and settings out of range are errors with a message. What cannot be checked is that
//! pointers are valid; each function says under "Safety" which ones it reads and for how long.

// Types have the names that they have in C.
#![allow(non_camel_case_types)]

mod argument;
mod model;
mod session;
mod status;

pub use model::{
    SMX_LOAD_AUTO, SMX_LOAD_MAP, SMX_LOAD_READ, smx_model, smx_model_free, smx_model_load,
    smx_model_options, smx_model_options_default, smx_progress_fn,
};
pub use session::{
    SMX_SEED_RANDOM, smx_answer, smx_finish, smx_generate_options, smx_generate_options_default,
    smx_message, smx_session, smx_session_cancel, smx_session_chat, smx_session_clear,
    smx_session_complete, smx_session_free, smx_session_new, smx_session_options,
    smx_session_options_default, smx_text_fn,
};
pub use status::{smx_last_error, smx_status, smx_version};

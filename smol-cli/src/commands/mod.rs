//! The commands, a file each.

pub mod bench;
pub mod cache;
pub mod chat;
pub mod completions;
pub mod doctor;
pub mod inspect;
pub mod kernels;
pub mod models;
pub mod perplexity;
pub mod plan;
pub mod pull;
pub mod recut;
pub mod run;
pub mod tokenize;
pub mod trace;
pub mod vocab;

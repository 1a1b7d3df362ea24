//! Models, contexts and their operations, on tiny models.

mod cancel;
mod context;
mod decode;
mod embed;
mod kv;
mod load;
mod models;
mod parallel;
mod quantize;
mod state;
#[path = "../common/time.rs"]
mod time;
mod types;
mod vocab;

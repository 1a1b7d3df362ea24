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
mod types;
mod vocab;

//! Which types cross threads.

use llama_rs::{
    Batch, CancelToken, Context, ContextBuilder, Embedder, Error, Kv, Model, ModelBuilder,
    ObserverGuard, Outputs, Vocab,
};
use static_assertions::{assert_impl_all, assert_not_impl_any};

assert_impl_all!(Model: Clone, Send, Sync);
assert_impl_all!(Vocab: Clone, Send, Sync);
assert_impl_all!(CancelToken: Clone, Send, Sync);
assert_impl_all!(Error: std::error::Error, Send, Sync);
assert_impl_all!(Batch: Clone, Send, Sync);
assert_impl_all!(ModelBuilder: Send);
assert_impl_all!(ContextBuilder: Clone, Send, Sync);
assert_impl_all!(ObserverGuard: Send, Sync);

// llama.cpp changes a context in calls that look like reading.
assert_impl_all!(Context: Send);
assert_not_impl_any!(Context: Sync, Clone);
assert_impl_all!(Embedder: Send);
assert_not_impl_any!(Embedder: Sync);
assert_not_impl_any!(Outputs<'static>: Send, Sync);
assert_not_impl_any!(Kv<'static>: Sync);

//! Models whose weights are streamed: they compute what resident ones do, and fail in an orderly way.

mod cached;
#[path = "../common/engines.rs"]
mod engines;
mod exact;
mod faults;

use std::path::{Path, PathBuf};

use engines::{cancel_a_decode, decode_while_the_file_changes, logits, of_type, plain};
use llama_rs::gguf::TensorType;
use llama_rs::{Batch, Model, ModelBuilder, SeqId, StreamSize, Token, WeightStream};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

fn write(folder: &TempDir, arch: Arch, options: &TinyOptions) -> PathBuf {
    let path = folder.path().join("model.gguf");
    tiny::write(&path, arch, options).unwrap();
    path
}

/// All that can be streamed is, in a zone of so many bytes.
fn zone(bytes: u64) -> WeightStream {
    let mut stream = WeightStream::default();
    stream.zone = StreamSize::Bytes(bytes);
    stream
}

/// The least zone, which holds the largest matrix.
fn least(path: &Path, builder: impl Fn(&Path) -> ModelBuilder) -> WeightStream {
    let error = builder(path).weight_stream(zone(1)).load().unwrap_err();
    match *error.kind() {
        llama_rs::ErrorKind::OutOfMemory { needed: Some(needed), available: Some(1) } => {
            zone(needed)
        }
        _ => panic!("{error:?}"),
    }
}

//! Saving and loading sequences.

use std::io::{self, Read, Write};

use llama_rs::{ErrorKind, KvType, Model, SeqId};
use testkit::tiny::{self, Arch, TinyOptions};

use crate::models::{assert_close, last_logits, small_context, some_tokens, tiny};

const FIRST: SeqId = SeqId::FIRST;

fn saved(model: &Model, tokens: usize) -> Vec<u8> {
    let mut context = small_context(model);
    last_logits(&mut context, FIRST, &some_tokens(tokens));
    let mut bytes = Vec::new();
    context.save_seq(FIRST, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_loaded_sequence_goes_on_as_if_nothing_happened() {
    for arch in Arch::ALL {
        let model = tiny(arch);
        let mut context = small_context(&model);
        last_logits(&mut context, FIRST, &some_tokens(30));
        let mut bytes = Vec::new();
        context.save_seq(FIRST, &mut bytes).unwrap();
        let expected = last_logits(&mut context, FIRST, &some_tokens(33)[30..]);
        // Into another context of another size, over something else, in another sequence.
        let builder = model.context().n_ctx(2048).n_seq_max(2).threads(1, 1);
        let mut other = builder.build().unwrap();
        let same_layout = other.load_seq(SeqId(1), &bytes[..]);
        if let Err(error) = &same_layout {
            // Caches of one stream a sequence have another layout.
            assert_eq!(error.kind(), &ErrorKind::State, "{arch:?}");
        }
        let mut other = model.context().n_ctx(2048).threads(1, 1).build().unwrap();
        last_logits(&mut other, FIRST, &some_tokens(7));
        assert_eq!(other.load_seq(FIRST, &bytes[..]).unwrap(), 30, "{arch:?}");
        let logits = last_logits(&mut other, FIRST, &some_tokens(33)[30..]);
        assert_close(&logits, &expected);
    }
}

#[test]
fn states_move_between_sequences() {
    let model = tiny(Arch::Llama);
    let builder = model.context().n_ctx(1024).n_seq_max(2).threads(1, 1);
    let mut context = builder.build().unwrap();
    last_logits(&mut context, SeqId(0), &some_tokens(20));
    let mut bytes = Vec::new();
    context.save_seq(SeqId(0), &mut bytes).unwrap();
    assert_eq!(context.load_seq(SeqId(1), &bytes[..]).unwrap(), 20);
    let next = &some_tokens(21)[20..];
    let one = last_logits(&mut context, SeqId(0), next);
    assert_close(&last_logits(&mut context, SeqId(1), next), &one);
}

#[test]
fn any_flipped_byte_is_found_and_the_sequence_emptied() {
    let model = tiny(Arch::Llama);
    let bytes = saved(&model, 10);
    let mut context = small_context(&model);
    let header = 0..100;
    let payload = (100..bytes.len()).step_by(bytes.len() / 60);
    for place in header.chain(payload).chain([bytes.len() - 1]) {
        let mut damaged = bytes.clone();
        damaged[place] ^= 0x40;
        last_logits(&mut context, FIRST, &some_tokens(3));
        match context.load_seq(FIRST, &damaged[..]) {
            Err(error) => assert_eq!(error.kind(), &ErrorKind::State, "byte {place}: {error}"),
            // Bytes that a later version may use.
            Ok(tokens) => assert_eq!((tokens, damaged[place] & 0xbf), (10, 0), "byte {place}"),
        }
        let range = context.kv().pos_range(FIRST).unwrap();
        assert!(range.is_none() || range == Some(0..=9), "byte {place}: {range:?}");
        context.kv().clear().unwrap();
    }
}

#[test]
fn states_that_are_cut_short_or_foreign_are_refused() {
    let model = tiny(Arch::Llama);
    let bytes = saved(&model, 10);
    let mut context = small_context(&model);
    for length in [0, 1, 40, 79, 80, 81, bytes.len() / 2, bytes.len() - 1] {
        let error = context.load_seq(FIRST, &bytes[..length]).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::State, "{length} bytes");
        assert_eq!(context.kv().pos_range(FIRST).unwrap(), None);
    }
    let error = context.load_seq(FIRST, &b"GGUF".repeat(100)[..]).unwrap_err();
    assert!(error.message().contains("not a saved state"), "{error}");

    let folder = tempfile::tempdir().unwrap();
    let options = TinyOptions { seed: 2, layers: Some(3), ..TinyOptions::default() };
    let path = folder.path().join("other.gguf");
    tiny::write(&path, Arch::Llama, &options).unwrap();
    let mut other = small_context(&Model::load(&path).unwrap());
    let error = other.load_seq(FIRST, &bytes[..]).unwrap_err();
    assert!(error.message().contains("another model"), "{error}");

    let builder = model.context().n_ctx(512).threads(1, 1).kv_type(KvType::Q8_0, KvType::F16);
    let mut quantized = builder.build().unwrap();
    let error = quantized.load_seq(FIRST, &bytes[..]).unwrap_err();
    assert!(error.message().contains("q8_0"), "{error}");

    let mut small = model.context().n_ctx(256).threads(1, 1).build().unwrap();
    let error = small.load_seq(FIRST, &saved(&model, 400)[..]).unwrap_err();
    assert!(error.message().contains("400") && error.message().contains("256"), "{error}");
}

#[test]
fn failures_of_the_file_keep_their_kind() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    let mut context = small_context(&tiny(Arch::Llama));
    last_logits(&mut context, FIRST, &some_tokens(3));
    let error = context.save_seq(FIRST, Broken).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Io(io::ErrorKind::StorageFull));
    let error = context.load_seq(FIRST, Broken).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Io(io::ErrorKind::PermissionDenied));
    assert_eq!(context.kv().pos_range(FIRST).unwrap(), None);
    assert!(context.save_seq(SeqId(1), Vec::new()).is_err());
}

#[test]
fn a_pending_shift_cannot_be_saved() {
    let mut context = small_context(&tiny(Arch::Llama));
    last_logits(&mut context, FIRST, &some_tokens(10));
    context.kv().shift(FIRST, .., 5).unwrap();
    let error = context.save_seq(FIRST, Vec::new()).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::State);
    last_logits(&mut context, FIRST, &some_tokens(1));
    context.save_seq(FIRST, Vec::new()).unwrap();
}

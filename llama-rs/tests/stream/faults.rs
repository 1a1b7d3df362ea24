//! What happens to files, and what is asked for that can't be.

use super::*;
use llama_rs::{CancelToken, ErrorKind, ExpertPager, LoadMode};

#[test]
fn a_mapped_model_is_not_streamed() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, &of_type(TensorType::F16));
    let builder = Model::builder(&path).weight_stream(WeightStream::default());
    let error = builder.load_mode(LoadMode::Mmap).load().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    assert!(error.message().contains("streamed"), "{error}");
}

#[test]
fn experts_are_paged_or_the_rest_streamed() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::LlamaMoe, &of_type(TensorType::F16));
    let builder = Model::builder(&path).weight_stream(WeightStream::default());
    let error = builder.expert_pager(ExpertPager::default()).load().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn a_zone_below_the_floor_is_refused_with_the_number() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, &of_type(TensorType::F16));
    let StreamSize::Bytes(floor) = least(&path, plain).zone else { panic!() };
    assert!(plain(&path).weight_stream(zone(floor - 1)).load().is_err());
    plain(&path).weight_stream(zone(floor)).load().unwrap();
    let error = plain(&path).weight_stream(zone(0)).load().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn a_file_that_changes_ends_the_decode_with_an_error() {
    for truncate in [true, false] {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, Arch::Llama, &of_type(TensorType::F16));
        let model = plain(&path).weight_stream(least(&path, plain)).load().unwrap();
        decode_while_the_file_changes(&model, &path, truncate);
    }
}

#[test]
fn a_cancelled_decode_returns_and_the_next_one_works() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, &of_type(TensorType::F16));
    let expected = logits(&plain(&path).load().unwrap(), 1, 20, 5);
    let model = plain(&path).weight_stream(least(&path, plain)).load().unwrap();
    cancel_a_decode(&model, &expected);
}

#[test]
fn a_context_that_waits_for_its_turn_can_be_cancelled() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, &of_type(TensorType::F16));
    let model = plain(&path).weight_stream(least(&path, plain)).load().unwrap();
    let expected = logits(&model, 1, 20, 5);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let cancel = CancelToken::new();
                let context = model.context().n_ctx(1024).threads(1, 1).cancel(&cancel);
                let mut context = context.build().unwrap();
                scope.spawn(move || cancel.cancel());
                let tokens: Vec<_> = (0..500).map(|n| Token(n * 37 % 600)).collect();
                // Either it was done before it was cancelled or it says that it was.
                match context.decode(&Batch::sequence(&tokens, 0, SeqId(0))) {
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.kind(), &ErrorKind::Cancelled),
                };
            });
        }
    });
    assert!(logits(&model, 1, 20, 5) == expected);
}

#[test]
fn a_model_is_dropped_in_the_middle_of_its_reads() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Qwen3, &of_type(TensorType::F16));
    let least = least(&path, plain);
    for n in 0..20 {
        let model = plain(&path).weight_stream(least.clone()).load().unwrap();
        let mut context = model.context().n_ctx(64).build().unwrap();
        context.decode(&Batch::sequence(&[Token(n)], 0, SeqId(0))).unwrap();
    }
}

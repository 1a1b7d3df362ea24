//! What happens to files, and what is asked for that can't be.

use std::time::Duration;

use super::*;
use llama_rs::{CancelToken, ErrorKind, LoadMode};

#[test]
fn a_model_without_experts_has_nothing_to_page() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, TensorType::F16);
    let error = Model::builder(&path).expert_pager(slots(4)).load().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    assert!(error.message().contains("no experts"), "{error}");
}

#[test]
fn a_mapped_model_is_not_paged() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::LlamaMoe, TensorType::F16);
    let builder = Model::builder(&path).expert_pager(slots(4)).load_mode(LoadMode::Mmap);
    let error = builder.load().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
}

#[test]
fn a_budget_below_the_floor_is_refused_with_the_number() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::LlamaMoe, TensorType::F16);
    let mut pager = ExpertPager::default();
    pager.budget = PoolBudget::Bytes(1000);
    let error = Model::builder(&path).expert_pager(pager).load().unwrap_err();
    let ErrorKind::OutOfMemory { needed: Some(needed), available: Some(1000) } = *error.kind()
    else {
        panic!("{error:?}");
    };
    let mut pager = ExpertPager::default();
    pager.budget = PoolBudget::Bytes(needed);
    Model::builder(&path).expert_pager(pager).load().unwrap();
}

#[test]
fn a_file_that_changes_ends_the_decode_with_an_error() {
    for truncate in [true, false] {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, Arch::LlamaMoe, TensorType::F16);
        let model = plain(&path).expert_pager(slots(1)).load().unwrap();
        let mut context = model.context().n_ctx(256).threads(2, 2).build().unwrap();
        let step = |context: &mut llama_rs::Context, n: i32| {
            context.decode(&Batch::sequence(&[Token(n * 7 % 500)], n, SeqId(0))).map(drop)
        };
        step(&mut context, 0).unwrap();
        if truncate {
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(100_000).unwrap();
        } else {
            let other = folder.path().join("other");
            std::fs::copy(&path, &other).unwrap();
            std::fs::rename(&other, &path).unwrap();
        }
        // The identity is checked about once a second.
        std::thread::sleep(Duration::from_millis(1100));
        let outcome = (1..200).try_for_each(|n| step(&mut context, n));
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::FileChanged, "{error}");
        assert!(error.to_string().contains("mixture.gguf"), "{error}");
    }
}

#[test]
fn a_cancelled_decode_returns_and_the_next_one_works() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::LlamaMoe, TensorType::F16);
    let expected = logits(&plain(&path).load().unwrap(), 1, 20, 5);
    let model = plain(&path).expert_pager(slots(1)).load().unwrap();
    let cancel = CancelToken::new();
    let mut context = model.context().n_ctx(1024).cancel(&cancel).build().unwrap();
    let tokens: Vec<_> = (0..600).map(|n| Token(n * 37 % 600)).collect();
    cancel.cancel();
    let error = context.decode(&Batch::sequence(&tokens, 0, SeqId(0))).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Cancelled);
    drop(context);
    assert!(logits(&model, 1, 20, 5) == expected);
}

#[test]
fn a_model_is_dropped_in_the_middle_of_its_reads() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Glm4Moe, TensorType::F16);
    for n in 0..20 {
        let model = plain(&path).expert_pager(slots(1)).load().unwrap();
        let mut context = model.context().n_ctx(64).build().unwrap();
        context.decode(&Batch::sequence(&[Token(n)], 0, SeqId(0))).unwrap();
    }
}

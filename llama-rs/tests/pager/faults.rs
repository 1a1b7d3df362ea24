//! What happens to files, and what is asked for that can't be.

use super::*;
use llama_rs::{ErrorKind, LoadMode};

#[test]
fn a_model_without_experts_has_nothing_to_page() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::Llama, TensorType::F16);
    let error = Model::builder(&path).expert_pager(slots(4)).load().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    assert!(error.message().contains("no experts"), "{error}");
}

#[test]
fn a_record_does_not_replace_the_model() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::LlamaMoe, TensorType::F32);
    let before = std::fs::read(&path).unwrap();
    let record = folder.path().join(".").join(path.file_name().unwrap());
    let error = Model::builder(&path).record_experts(record).load().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("the model's own file"), "{error}");
    assert!(std::fs::read(&path).unwrap() == before);
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
        decode_while_the_file_changes(&model, &path, truncate);
    }
}

#[test]
fn a_cancelled_decode_returns_and_the_next_one_works() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::LlamaMoe, TensorType::F16);
    let expected = logits(&plain(&path).load().unwrap(), 1, 20, 5);
    let model = plain(&path).expert_pager(slots(1)).load().unwrap();
    cancel_a_decode(&model, &expected);
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

//! Paged output equals resident output bit for bit.

use super::*;
use llama_rs::{Policy, Scope};

#[test]
fn every_architecture_policy_and_pool_gives_the_same_logits() {
    for arch in mixtures() {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, arch, TensorType::Q4_K);
        let resident = plain(&path).load().unwrap();
        let prompts = [1, 12, 600];
        let expected = prompts.map(|prompt| logits(&resident, 1, prompt, 4));
        for policy in Policy::ALL {
            for (n, scope) in [(1, Scope::Layer), (6, Scope::Global), (16, Scope::Layer)] {
                let mut pager = slots(n);
                (pager.policy, pager.scope) = (policy, scope);
                let paged = plain(&path).expert_pager(pager).load().unwrap();
                for (prompt, expected) in prompts.iter().zip(&expected) {
                    let threads = if *prompt == 12 { 4 } else { 1 };
                    let found = logits(&paged, threads, *prompt, 4);
                    assert!(found == *expected, "{arch:?} {policy} {n} {scope} {prompt}");
                }
                let statistics = paged.pager_statistics().unwrap();
                assert!(statistics.misses > 0, "{statistics:?}");
            }
        }
    }
}

#[test]
fn packed_experts_give_the_same_logits() {
    for weights in [TensorType::Q2_K, TensorType::TQ2_0, TensorType::Q1_0] {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, Arch::LlamaMoe, weights);
        let resident = Model::load(&path).unwrap();
        let paged = Model::builder(&path).expert_pager(slots(4)).load().unwrap();
        let packed = paged.layouts().iter().filter(|w| w.name.contains("_exps"));
        assert!(packed.clone().count() > 0);
        for weight in packed {
            assert!(matches!(weight.kernel, llama_rs::WeightKernel::Packed { .. }), "{weight:?}");
        }
        for prompt in [1, 40] {
            let found = logits(&paged, 2, prompt, 8);
            assert!(found == logits(&resident, 2, prompt, 8), "{weights:?} {prompt}");
        }
    }
}

#[test]
fn floats_and_other_types_are_paged_too() {
    for weights in [TensorType::F16, TensorType::Q8_0, TensorType::Q4_0, TensorType::IQ4_NL] {
        let folder = TempDir::new().unwrap();
        let path = write(&folder, Arch::Glm4Moe, weights);
        let resident = plain(&path).load().unwrap();
        let paged = plain(&path).expert_pager(slots(5)).load().unwrap();
        assert!(logits(&paged, 2, 30, 8) == logits(&resident, 2, 30, 8), "{weights:?}");
    }
}

#[test]
fn thousands_of_evictions_change_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("mixture.gguf");
    let options = TinyOptions { layers: Some(6), experts: 32, ..TinyOptions::default() };
    tiny::write(&path, Arch::BailingMoe2, &options).unwrap();
    let resident = plain(&path).load().unwrap();
    let paged = plain(&path).expert_pager(slots(1)).load().unwrap();
    assert!(logits(&paged, 4, 20, 400) == logits(&resident, 4, 20, 400));
    let statistics = paged.pager_statistics().unwrap();
    assert!(statistics.misses > 2000, "{statistics:?}");
}

#[test]
fn a_split_model_is_paged_from_all_its_files() {
    let folder = TempDir::new().unwrap();
    let options = TinyOptions { shards: 3, experts: 16, ..TinyOptions::default() };
    let tiny = tiny::write(&folder.path().join("m.gguf"), Arch::LlamaMoe, &options).unwrap();
    let resident = plain(tiny.path()).load().unwrap();
    let paged = plain(tiny.path()).expert_pager(slots(4)).load().unwrap();
    assert!(logits(&paged, 2, 30, 8) == logits(&resident, 2, 30, 8));
}

#[test]
fn two_contexts_and_two_models_at_once() {
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let archs = [Arch::LlamaMoe, Arch::Glm4Moe];
    let models: Vec<_> = archs
        .iter()
        .zip(&folders)
        .map(|(arch, folder)| {
            let path = write(folder, *arch, TensorType::Q8_0);
            let expected = logits(&plain(&path).load().unwrap(), 1, 50, 30);
            (plain(&path).expert_pager(slots(1)).load().unwrap(), expected)
        })
        .collect();
    std::thread::scope(|scope| {
        for (model, expected) in models.iter().chain(&models) {
            scope.spawn(move || assert!(logits(model, 2, 50, 30) == *expected));
        }
    });
}

#[test]
fn a_pool_for_all_experts_reads_each_once() {
    let folder = TempDir::new().unwrap();
    let path = write(&folder, Arch::LlamaMoe, TensorType::Q4_K);
    let paged = plain(&path).expert_pager(slots(1000)).load().unwrap();
    logits(&paged, 2, 200, 100);
    let first = paged.pager_statistics().unwrap();
    logits(&paged, 2, 200, 100);
    let second = paged.pager_statistics().unwrap();
    assert_eq!(first.bytes_read, second.bytes_read, "{second:?}");
    assert!(second.hits > first.hits);
}

//! The order of experts, as the overlay asks for it.

use std::io::Write as _;

use smol_engine::expert::{ExpertLayer, ExpertTensor, PagerConfig};

use super::*;

const EXPERTS: u32 = 4;
const BYTES: usize = 64;

/// A pager of one layer, in which one expert is in memory.
fn pager(resident: u32) -> Arc<Pager> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[7; EXPERTS as usize * BYTES]).unwrap();
    let tensor = ExpertTensor {
        name: "experts".to_owned(),
        file: 0,
        offset: 0,
        stride: BYTES as u64,
        bytes: BYTES,
        packer: None,
    };
    let layer = ExpertLayer { block: 0, experts: EXPERTS, used: 1, tensors: vec![tensor] };
    let pager = Pager::open([file.path()], vec![layer], &PagerConfig::default()).unwrap();
    pager.begin(1, 0, 0, &[resident], &[1]);
    assert!(pager.wait(1, 0).is_some());
    pager.done(1, 0);
    pager.end(1).unwrap();
    assert!(pager.is_resident(0, resident));
    pager
}

fn order(experts: &PagedExperts, gating: sys::smol_gating, scores: &[f32]) -> Vec<i32> {
    let mut order = vec![-1; scores.len()];
    let n = scores.len() as i64;
    let fill = experts.table.order.unwrap();
    // SAFETY: as the overlay calls it: the table's own `ud`, scores and as many places (smol.h).
    let done = unsafe { fill(experts.table.ud, 0, gating, scores.as_ptr(), n, order.as_mut_ptr()) };
    assert!(done);
    order
}

#[test]
fn the_bias_counts_for_scores_without_the_models_correction() {
    let probabilities = [0.4, 0.3, 0.2, 0.1];
    let correction = vec![-1.0, -1.0, -1.0, 0.5];
    let scores: Vec<f32> = probabilities.iter().zip(&correction).map(|(p, c)| p + c).collect();
    // Worth a factor of e: 0.2 becomes 0.54, and 0.54 - 1 is more than 0.4 - 1.
    let bias = CacheBias { bias: 0.25, keep_top: 0 };
    let with =
        |corrections| PagedExperts::new(pager(2), HashMap::new(), bias, corrections, Vec::new());
    let corrected = with(vec![Some(correction)]);
    assert_eq!(order(&corrected, sys::SMOL_GATING_SOFTMAX, &scores), [3, 2, 0, 1]);
    // Scores below 0 that are nobody's sum are left as they are.
    assert_eq!(order(&with(vec![None]), sys::SMOL_GATING_SOFTMAX, &scores), [3, 0, 1, 2]);
    // A sum does not mind another summand.
    let sigmoid = sys::SMOL_GATING_SIGMOID;
    assert_eq!(order(&corrected, sigmoid, &scores), order(&with(Vec::new()), sigmoid, &scores));
    assert_eq!(order(&corrected, sigmoid, &scores), [3, 2, 0, 1]);
}

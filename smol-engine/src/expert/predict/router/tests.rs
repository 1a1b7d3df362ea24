use super::*;
use proptest::prelude::*;
use std::cmp::Ordering;
use std::time::{Duration, Instant};

const ALL: [Gating; 4] =
    [Gating::Softmax, Gating::Sigmoid, Gating::SoftmaxWeight, Gating::SqrtSoftplus];

/// Best first, NaN last.
fn better(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Scores by the formulas, in the order in which the graph applies them.
fn reference_scores(
    logits: &[f32],
    gating: Gating,
    logit_bias: Option<&[f32]>,
    selection_bias: Option<&[f32]>,
    groups: Option<(usize, usize)>,
) -> Vec<f32> {
    let logits: Vec<f32> =
        (0..logits.len()).map(|e| logits[e] + logit_bias.map_or(0.0, |b| b[e])).collect();
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|x| (x - most).exp()).sum();
    let mut scores: Vec<f32> = (0..logits.len())
        .map(|e| {
            let x = logits[e];
            let score = match gating {
                Gating::Softmax => (x - most).exp() / sum,
                Gating::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                Gating::SoftmaxWeight => x,
                Gating::SqrtSoftplus if x > 20.0 => x.sqrt(),
                Gating::SqrtSoftplus => x.exp().ln_1p().sqrt(),
            };
            score + selection_bias.map_or(0.0, |b| b[e])
        })
        .collect();
    if let Some((groups, used)) = groups {
        let size = scores.len() / groups;
        let sums: Vec<f32> = (0..groups)
            .map(|group| {
                let mut of_group = scores[group * size..][..size].to_vec();
                of_group.sort_by(|a, b| better(*a, *b));
                of_group[0] + of_group[1]
            })
            .collect();
        let mut order: Vec<usize> = (0..groups).collect();
        order.sort_by(|a, b| better(sums[*a], sums[*b]));
        for group in &order[used..] {
            scores[group * size..][..size].fill(f32::NEG_INFINITY);
        }
    }
    scores
}

/// The `used` best of the scores, without those that are masked.
fn reference_choice(scores: &[f32], used: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| better(scores[*a], scores[*b]));
    order.truncate(used);
    order.into_iter().filter(|e| scores[*e] > f32::NEG_INFINITY).map(|e| e as u32).collect()
}

fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        6 => -4.0f32..4.0,
        2 => prop::sample::select(vec![0.5f32, 1.0, -1.0, 0.0, -0.0]),
        1 => prop::sample::select(vec![
            f32::from_bits(1),
            f32::from_bits(3),
            -f32::from_bits(1),
            -200.0,
            100.0,
        ]),
        1 => Just(f32::NEG_INFINITY),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn chooses_as_the_reference_does(
        (groups, used_groups, size) in (1usize..9)
            .prop_flat_map(|groups| (Just(groups), 1..groups.max(2), 2usize..33)),
        values in prop::collection::vec((logit(), -1.0f32..1.0, -0.3f32..0.3), 8 * 33),
        used in 1usize..12,
        gating in prop::sample::select(ALL.to_vec()),
        has_logit_bias in any::<bool>(),
        has_selection_bias in any::<bool>(),
    ) {
        let experts = groups * size;
        let used = used.min(experts);
        let mut logits: Vec<f32> = values[..experts].iter().map(|v| v.0).collect();
        // Not all masked: a softmax of that is NaN.
        logits[0] = 1.0;
        let logit_bias: Vec<f32> = values[..experts].iter().map(|v| v.1).collect();
        let selection_bias: Vec<f32> = values[..experts].iter().map(|v| v.2).collect();

        let mut router = Router::new(vec![1.0; experts], experts as u32, used as u32, gating)?
            .with_groups(groups as u32, used_groups as u32)?;
        if has_logit_bias {
            router = router.with_logit_bias(logit_bias.clone())?;
        }
        if has_selection_bias {
            router = router.with_selection_bias(selection_bias.clone())?;
        }
        let expected = reference_scores(
            &logits,
            gating,
            has_logit_bias.then_some(&*logit_bias),
            has_selection_bias.then_some(&*selection_bias),
            (groups > 1).then_some((groups, used_groups)),
        );
        let mut scores = logits;
        router.scores_of_logits(&mut scores);
        prop_assert_eq!(&scores, &expected);

        let mut chosen = Vec::new();
        router.select(&scores, CacheBias::OFF, |_| false, &mut chosen);
        prop_assert_eq!(&chosen, &reference_choice(&expected, used));

        // With a bias: what the order says, within the groups.
        let bias = CacheBias { bias: 0.2, keep_top: 1 };
        let resident = |expert: u32| expert.is_multiple_of(3);
        let mut order = vec![0; experts];
        let correction = has_selection_bias.then_some(&*selection_bias);
        bias.order_corrected(gating, &expected, correction, resident, &mut order);
        let biased: Vec<u32> = order[..used]
            .iter()
            .map(|e| *e as u32)
            .filter(|e| expected[*e as usize] > f32::NEG_INFINITY)
            .collect();
        router.select(&scores, bias, resident, &mut chosen);
        prop_assert_eq!(&chosen, &biased);
        prop_assert_eq!(chosen[0], reference_choice(&expected, used)[0]);
    }

    #[test]
    fn logits_are_the_product(
        rows in 1usize..20,
        width in 1usize..200,
        seed in any::<u32>(),
        bf16 in any::<bool>(),
    ) {
        let mut state = u64::from(seed);
        let mut draw = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) as f32 / (1u64 << 31) as f32) * 2.0 - 1.0
        };
        let weights: Vec<f32> = (0..rows * width)
            .map(|_| if bf16 { (draw() * 64.0).round() / 64.0 } else { draw() })
            .collect();
        let x: Vec<f32> = (0..width).map(|_| draw()).collect();
        let router =
            Router::new(weights.clone(), rows as u32, 1, Gating::SoftmaxWeight)?;
        if bf16 {
            prop_assert_eq!(router.bytes(), 2 * rows * width);
        }
        let mut scores = Vec::new();
        router.scores(&x, &mut scores);
        prop_assert_eq!(scores.len(), rows);
        for (row, score) in weights.chunks(width).zip(&scores) {
            let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            prop_assert!((exact - f64::from(*score)).abs() < 1e-5 * width as f64);
        }
    }
}

#[test]
fn many_used_experts_are_chosen_too() {
    let router = Router::new(vec![1.0; 300], 300, 200, Gating::Sigmoid).unwrap();
    let scores: Vec<f32> = (0..300).map(|e| ((e * 7) % 300) as f32).collect();
    let mut chosen = Vec::new();
    router.select(&scores, CacheBias::OFF, |_| false, &mut chosen);
    assert_eq!(chosen, reference_choice(&scores, 200));
}

#[test]
fn what_makes_no_sense_is_not_chosen() {
    let router = Router::new(vec![1.0; 4], 4, 3, Gating::SoftmaxWeight).unwrap();
    let mut chosen = Vec::new();
    let scores = [f32::NAN, f32::NEG_INFINITY, 1.0, 2.0];
    router.select(&scores, CacheBias::OFF, |_| false, &mut chosen);
    assert_eq!(chosen, [3, 2]);
    let bias = CacheBias { bias: 9.0, keep_top: 0 };
    router.select(&scores, bias, |expert| expert < 2, &mut chosen);
    assert_eq!(chosen, [3, 2]);
}

#[test]
fn an_input_of_another_layer_is_renormalized() {
    let norm = |norm: [f32; 3]| {
        Router::new(vec![1.0, 1.0, 1.0], 1, 1, Gating::SoftmaxWeight)
            .unwrap()
            .with_norm(norm.to_vec())
            .unwrap()
    };
    let (from, to) = (norm([2.0, 0.5, 0.0]), norm([1.0, 1.0, 3.0]));
    // The hidden state (3, 4, 5) times the norm of the source.
    let mut x = [6.0, 2.0, 0.0];
    to.renormalize(&from, &mut x);
    assert_eq!(x, [3.0, 4.0, 0.0]);
    // Unknown norms change nothing.
    let unknown = Router::new(vec![1.0; 3], 1, 1, Gating::SoftmaxWeight).unwrap();
    unknown.renormalize(&from, &mut x);
    to.renormalize(&unknown, &mut x);
    assert_eq!(x, [3.0, 4.0, 0.0]);
}

#[test]
fn refuses_what_cannot_be() {
    let router = |weights: usize, experts, used| {
        Router::new(vec![0.5; weights], experts, used, Gating::Softmax)
    };
    assert!(matches!(router(7, 2, 1), Err(RouterError::Shape { weights: 7, experts: 2 })));
    assert!(matches!(router(0, 2, 1), Err(RouterError::Shape { .. })));
    assert!(matches!(router(4, 0, 0), Err(RouterError::Shape { .. })));
    assert!(matches!(router(4, 2, 0), Err(RouterError::Used { .. })));
    assert!(matches!(router(4, 2, 3), Err(RouterError::Used { .. })));
    let eight = || router(16, 8, 2).unwrap();
    assert!(matches!(eight().with_logit_bias(vec![0.0; 7]), Err(RouterError::Length { .. })));
    assert!(matches!(eight().with_selection_bias(vec![]), Err(RouterError::Length { .. })));
    let error = eight().with_norm(vec![0.0; 8]).unwrap_err();
    assert_eq!(error.to_string(), "the norm has 8 values, and must have 2");
    for (groups, used) in [(3, 1), (8, 2), (4, 0), (4, 4), (4, 5)] {
        assert!(matches!(eight().with_groups(groups, used), Err(RouterError::Groups { .. })));
    }
    assert!(eight().with_groups(4, 3).is_ok());
    assert!(eight().with_groups(0, 0).is_ok());
    assert!(eight().with_groups(1, 1).is_ok());
}

#[test]
fn scores_128_experts_fast() {
    let x: Vec<f32> = (0..2048).map(|i| (i as f32).sin()).collect();
    for bf16 in [false, true] {
        let weights: Vec<f32> = (0..128 * 2048)
            .map(|i| (i as f32).cos())
            .map(|w| if bf16 { f32::from_bits(w.to_bits() & 0xffff_0000) } else { w })
            .collect();
        let router = Router::new(weights, 128, 8, Gating::Softmax).unwrap();
        assert_eq!(router.bytes(), 128 * 2048 * if bf16 { 2 } else { 4 });
        let mut scores = Vec::new();
        let best = (0..200)
            .map(|_| {
                let start = Instant::now();
                router.scores(std::hint::black_box(&x), &mut scores);
                std::hint::black_box(&scores);
                start.elapsed()
            })
            .min()
            .unwrap();
        eprintln!("128 experts of 2048, bf16 {bf16}: {best:?}");
        // Measured: 30 us. The bound is for slow and busy machines.
        assert!(best < Duration::from_millis(1), "{best:?}");
    }
}

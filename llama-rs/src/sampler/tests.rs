use super::*;
use crate::grammar::Mask;

fn build(builder: SamplerBuilder, n: usize) -> Sampler {
    builder.build_for_vocab(n).unwrap()
}

fn logits(n: usize, seed: u64) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    // roughly normal
    (0..n).map(|_| ((0..6).map(|_| rng.next_f64()).sum::<f64>() - 3.0) as f32 * 4.0).collect()
}

#[test]
fn every_setting_has_its_range() {
    let cases: [(SamplerBuilder, &str); 12] = [
        (SamplerBuilder::new().temp(f32::NAN), "the temperature is NaN, allowed are 0 to 100"),
        (SamplerBuilder::new().temp(-0.1), "the temperature is -0.1"),
        (SamplerBuilder::new().temp(f32::INFINITY), "the temperature is inf"),
        (SamplerBuilder::new().top_p(1.01), "the top-p is 1.01, allowed are 0 to 1"),
        (SamplerBuilder::new().top_p(f32::NAN), "the top-p is NaN"),
        (SamplerBuilder::new().min_p(-1.0), "the min-p is -1"),
        (
            SamplerBuilder::new().repeat_penalty(0.0),
            "the repetition penalty is 0, allowed are 0.1 to 10",
        ),
        (SamplerBuilder::new().frequency_penalty(f32::INFINITY), "the frequency penalty is inf"),
        (SamplerBuilder::new().presence_penalty(-11.0), "the presence penalty is -11"),
        (SamplerBuilder::new().logit_bias(Token(99_999_999), 1.0), "logit bias on token 99999999"),
        (SamplerBuilder::new().logit_bias(Token(-1), 1.0), "logit bias on token -1"),
        (SamplerBuilder::new().logit_bias(Token(1), f32::NAN), "the logit bias of token 1 is NaN"),
    ];
    for (builder, expected) in cases {
        let error = builder.build_for_vocab(10).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
        assert!(error.message().contains(expected), "{error}");
    }
    assert!(SamplerBuilder::new().build_for_vocab(0).is_err());
}

#[test]
fn greedy_takes_the_first_maximum() {
    let mut sampler = build(SamplerBuilder::greedy(), 200);
    let mut values = vec![1.0; 200];
    assert_eq!(sampler.sample(&values).unwrap(), Token(0));
    values[150] = 2.0;
    values[151] = 2.0;
    assert_eq!(sampler.sample(&values).unwrap(), Token(150));
}

#[test]
fn bias_comes_before_the_penalties() {
    let builder = SamplerBuilder::greedy()
        .repeat_penalty(2.0)
        .logit_bias(Token(0), 3.0)
        .logit_bias(Token(0), 1.0)
        .logit_bias(Token(2), f32::NEG_INFINITY);
    let mut sampler = build(builder, 3);
    // 1 + 4 = 5 beats 3; the banned 9 does not count
    assert_eq!(sampler.sample(&[1.0, 3.0, 9.0]).unwrap(), Token(0));
    sampler.accept(Token(0)).unwrap();
    // (1 + 4) / 2 = 2.5 loses; 1 / 2 + 4 would have won
    assert_eq!(sampler.sample(&[1.0, 3.0, 9.0]).unwrap(), Token(1));
    sampler.accept_prompt(Token(1)).unwrap();
    // 3 / 2 loses to 2.5
    assert_eq!(sampler.sample(&[1.0, 3.0, 9.0]).unwrap(), Token(0));
}

#[test]
fn a_seed_gives_the_same_tokens() {
    let values = logits(5000, 3);
    let draw = |seed: u64, top_k: usize| -> Vec<i32> {
        let mut sampler = build(SamplerBuilder::new().seed(seed).top_k(top_k).temp(1.5), 5000);
        (0..64).map(|_| sampler.sample(&values).unwrap().0).collect()
    };
    for top_k in [40, 0, 2000] {
        assert_eq!(draw(11, top_k), draw(11, top_k));
        assert_ne!(draw(11, top_k), draw(12, top_k));
    }
    let mut sampler = build(SamplerBuilder::new().seed(5).temp(2.0), 5000);
    let first = sampler.sample(&values).unwrap();
    let second: Vec<_> = (0..8).map(|_| sampler.sample(&values).unwrap()).collect();
    sampler.reset().unwrap();
    assert_eq!(sampler.sample(&values).unwrap(), first);
    assert_eq!((0..8).map(|_| sampler.sample(&values).unwrap()).collect::<Vec<_>>(), second);
    assert_eq!(sampler.seed(), 5);
}

#[test]
fn frequencies_follow_the_probabilities() {
    let values: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
    let builder = SamplerBuilder::new().temp(1.0).top_p(1.0).min_p(0.0).seed(1);
    for top_k in [0, 4] {
        let mut sampler = build(builder.clone().top_k(top_k), 4);
        let mut seen = [0u32; 4];
        for _ in 0..20_000 {
            seen[sampler.sample(&values).unwrap().0 as usize] += 1;
        }
        for (n, p) in seen.into_iter().zip([0.5, 0.3, 0.15, 0.05]) {
            assert!((f64::from(n) / 20_000.0 - p).abs() < 0.015, "{seen:?}");
        }
        let total: f32 = sampler.candidates().iter().map(|c| c.p).sum();
        assert!((total - 1.0).abs() < 1e-6);
    }
}

#[test]
fn hostile_logits_are_errors() {
    let mut sampler = build(SamplerBuilder::new(), 4);
    for values in
        [[f32::NAN, 0.0, 0.0, 0.0], [0.0, f32::INFINITY, 0.0, 0.0], [f32::NEG_INFINITY; 4]]
    {
        assert_eq!(sampler.sample(&values).unwrap_err().kind(), &ErrorKind::NonFinite);
    }
    assert_eq!(sampler.sample(&[0.0; 3]).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(sampler.accept(Token(4)).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    // still usable
    assert!(sampler.sample(&[0.0; 4]).is_ok());
}

#[test]
fn an_error_leaves_no_trace_of_the_changed_tokens() {
    let mut sampler = build(SamplerBuilder::greedy().repeat_penalty(2.0).repeat_last_n(1), 4);
    sampler.accept(Token(1)).unwrap();
    assert!(sampler.sample(&[f32::NAN, 3.0, 0.0, 0.0]).is_err());
    sampler.accept(Token(0)).unwrap();
    // token 1 has left the window and counts in full again
    assert_eq!(sampler.sample(&[2.0, 3.0, 0.0, 0.0]).unwrap(), Token(1));
}

/// Allows a fixed set of tokens, and counts how it is asked.
struct Fixed {
    allowed: Vec<usize>,
    /// Whether it can be asked about a few tokens.
    few: bool,
    masks: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Constraint for Fixed {
    fn allows(&mut self, token: Token) -> Result<bool> {
        Ok(token.index().is_some_and(|id| self.allowed.contains(&id)))
    }

    fn mask(&mut self, n_vocab: usize) -> Result<Mask> {
        self.masks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut allowed = BitSet::new(n_vocab);
        self.allowed.iter().for_each(|&id| allowed.insert(id));
        Ok(Mask { allowed, only_end: false })
    }

    fn mask_of(&mut self, tokens: &[Token], n_vocab: usize) -> Result<Option<(BitSet, usize)>> {
        let mut allowed = BitSet::new(n_vocab);
        let few = tokens.iter().filter_map(|t| t.index()).filter(|id| self.allowed.contains(id));
        let count = few.inspect(|&id| allowed.insert(id)).count();
        Ok(self.few.then_some((allowed, count)))
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        if self.allows(token)? { Ok(()) } else { Err(grammar_exhausted()) }
    }

    fn is_end(&self, _: Token) -> bool {
        false
    }

    fn is_done(&self) -> bool {
        false
    }

    fn reset(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn the_vocabulary_is_masked_only_on_refusal() {
    use std::sync::atomic::Ordering::Relaxed;
    let masks = std::sync::Arc::default();
    let mut sampler = build(SamplerBuilder::greedy().repeat_penalty(1.5), 100);
    let constraint =
        Fixed { allowed: vec![3, 70], few: false, masks: std::sync::Arc::clone(&masks) };
    sampler.set_constraint(Some(Box::new(constraint)));
    let mut values = vec![0.0; 100];
    values[3] = 2.0;
    assert_eq!(sampler.sample(&values).unwrap(), Token(3));
    assert_eq!(masks.load(Relaxed), 0);
    values[50] = 9.0;
    assert_eq!(sampler.sample(&values).unwrap(), Token(3));
    assert_eq!(masks.load(Relaxed), 1);
    // penalties hold under the mask too
    values[70] = 1.9;
    sampler.accept(Token(3)).unwrap();
    assert_eq!(sampler.sample(&values).unwrap(), Token(70));
    assert!(sampler.accept(Token(50)).is_err());
}

#[test]
fn asking_about_a_few_tokens_changes_nothing() {
    use std::sync::atomic::Ordering::Relaxed;
    let n = 3000;
    let values = logits(n, 9);
    // every 7th token, and a set that the best tokens do not fill
    for (allowed, masked) in [((0..n).step_by(7).collect::<Vec<_>>(), false), (vec![5, 2999], true)]
    {
        for temp in [0.0, 1.5] {
            let draw = |few: bool| {
                let masks = std::sync::Arc::default();
                let mut sampler = build(SamplerBuilder::new().temp(temp).top_k(20).seed(4), n);
                let constraint =
                    Fixed { allowed: allowed.clone(), few, masks: std::sync::Arc::clone(&masks) };
                sampler.set_constraint(Some(Box::new(constraint)));
                let tokens: Vec<_> = (0..20).map(|_| sampler.sample(&values).unwrap().0).collect();
                (tokens, masks.load(Relaxed))
            };
            let (expected, full_masks) = draw(false);
            let (tokens, few_masks) = draw(true);
            assert_eq!(tokens, expected);
            assert!(full_masks > 0);
            // one allowed token among the best ones is enough when greedy
            assert!(temp == 0.0 || (few_masks > 0) == masked);
        }
    }
}

#[test]
fn a_grammar_without_candidates_is_an_error() {
    let mut sampler =
        build(SamplerBuilder::new().top_k(1).logit_bias(Token(3), f32::NEG_INFINITY), 10);
    let constraint = Fixed { allowed: vec![3], few: false, masks: std::sync::Arc::default() };
    sampler.set_constraint(Some(Box::new(constraint)));
    let error = sampler.sample(&[1.0; 10]).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Grammar);
    let constraint = Fixed { allowed: vec![], few: false, masks: std::sync::Arc::default() };
    sampler.set_constraint(Some(Box::new(constraint)));
    assert_eq!(sampler.sample(&[1.0; 10]).unwrap_err().kind(), &ErrorKind::Grammar);
}

#[test]
fn samplers_can_move_between_threads() {
    fn send<T: Send>() {}
    send::<Sampler>();
}

//! The sampler against llama.cpp's chain: the same candidates, the same probabilities.

#[path = "../benches/upstream_chain/mod.rs"]
mod upstream_chain;

use llama_rs::Token;
use upstream_chain::{Chain, Settings, history, logits};

fn compare(settings: &Settings, seed: u64) {
    let logits = logits(settings.n_vocab, seed);
    let history = history(settings.last_n.min(300) + 7, &logits);
    let mut ours = settings.ours();
    let mut upstream = Chain::new(settings);
    for token in history {
        ours.accept(Token(token)).unwrap();
        upstream.accept(token);
    }
    let ours_token = ours.sample(&logits).unwrap();
    let upstream_token = upstream.sample(&logits);
    if settings.temp == 0.0 {
        assert_eq!(ours_token.0, upstream_token, "{settings:?}");
        return;
    }
    let mut a: Vec<(i32, f32)> = ours.candidates().iter().map(|c| (c.token.0, c.p)).collect();
    let mut b = upstream.candidates();
    assert!(settings.top_k == 0 || a.is_sorted_by(|x, y| x.1 >= y.1), "{settings:?}");
    // llama.cpp leaves the order of equal logits open
    a.sort_by_key(|c| c.0);
    b.sort_by_key(|c| c.0);
    assert!(!a.is_empty());
    assert_eq!(a.len(), b.len(), "{settings:?}");
    for (ours, upstream) in a.iter().zip(&b) {
        assert_eq!(ours.0, upstream.0, "{settings:?}");
        assert!((ours.1 - upstream.1).abs() <= 1e-6, "{ours:?} {upstream:?} {settings:?}");
    }
}

#[test]
fn candidates_and_probabilities_agree() {
    let usual = Settings::usual(5000);
    let variants = [
        usual.clone(),
        Settings { top_p: 1.0, min_p: 0.0, ..usual.clone() },
        Settings { top_k: 5, temp: 2.0, ..usual.clone() },
        Settings { top_k: 200, top_p: 0.99, min_p: 0.001, temp: 1.5, ..usual.clone() },
        Settings { top_k: 1500, top_p: 1.0, min_p: 0.0, ..usual.clone() },
        Settings { top_k: 0, top_p: 1.0, min_p: 0.02, ..usual.clone() },
        Settings { top_k: 0, top_p: 0.7, min_p: 0.0, ..usual.clone() },
        Settings { repeat: 1.0, frequency: 0.3, presence: 0.2, ..usual.clone() },
        Settings { repeat: 1.3, frequency: -0.4, presence: -0.1, ..usual.clone() },
        Settings { last_n: 0, ..usual.clone() },
        Settings { last_n: 3, repeat: 2.0, ..usual.clone() },
        Settings { bias: vec![(0, 9.0), (17, 12.0), (4999, -3.0)], ..usual.clone() },
        Settings { top_k: 1, ..usual.clone() },
        Settings { temp: 0.0, ..usual.clone() },
        Settings { n_vocab: 30, top_k: 40, ..usual.clone() },
        Settings { n_vocab: 151_669, ..usual },
    ];
    for settings in &variants {
        for seed in 1..=8 {
            compare(settings, seed);
        }
    }
}

#[test]
fn greedy_breaks_ties_alike() {
    for at in [[3, 900], [900, 3], [64, 63], [0, 999]] {
        let settings = Settings { temp: 0.0, last_n: 4, repeat: 1.5, ..Settings::usual(1000) };
        let mut logits = vec![-1.0; 1000];
        at.iter().for_each(|&id| logits[id as usize] = 2.0);
        // the penalised 3.0 / 1.5 ties with the others
        logits[500] = 3.0;
        let mut ours = settings.ours();
        let mut upstream = Chain::new(&settings);
        ours.accept(Token(500)).unwrap();
        upstream.accept(500);
        assert_eq!(ours.sample(&logits).unwrap().0, upstream.sample(&logits));
    }
}

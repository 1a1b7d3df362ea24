use super::flash::{Flash, Setting};
use super::*;
use std::time::Duration;

/// Flash that is busy a fraction of the time, and predictions of which most are right.
const IDLE: Setting = Setting {
    layers: 24,
    misses: 0.5,
    recall: 0.7,
    wrong: 0.3,
    compute: 4.0,
    read: 3.0,
    readers: 4,
    shared: false,
    put_out: 0.1,
};

/// Reads take far longer than the computation, and most of the predictions are wrong.
const SATURATED: Setting =
    Setting { misses: 2.5, recall: 0.4, wrong: 3.0, compute: 1.0, readers: 2, ..IDLE };

/// Runs the governor for some tokens; returns for each whether prefetching was on.
fn run(flash: &mut Flash, governor: &mut Governor, tokens: usize) -> Vec<bool> {
    (0..tokens)
        .map(|_| {
            let on = governor.is_on();
            flash.token(on);
            governor.token(&flash.counts);
            on
        })
        .collect()
}

fn tokens_on(history: &[bool]) -> usize {
    history.iter().filter(|on| **on).count()
}

/// Time for some tokens with prefetching always on or off.
fn fixed(setting: Setting, seed: u64, tokens: usize, on: bool) -> f64 {
    let mut flash = Flash::new(setting, seed);
    for _ in 0..tokens {
        flash.token(on);
    }
    flash.time
}

#[test]
fn the_simulation_tells_the_two_apart() {
    let ratio = |setting| fixed(setting, 1, 500, true) / fixed(setting, 1, 500, false);
    assert!(ratio(IDLE) < 0.9, "{}", ratio(IDLE));
    assert!(ratio(SATURATED) > 1.1, "{}", ratio(SATURATED));
    let shared = Setting { shared: true, ..SATURATED };
    assert!(ratio(shared) > 1.1, "{}", ratio(shared));
}

#[test]
fn stays_on_where_flash_is_idle() {
    for seed in 0..20 {
        let mut flash = Flash::new(IDLE, seed);
        let mut governor = Governor::new(flash.counts);
        let history = run(&mut flash, &mut governor, 4000);
        assert!(history[WINDOW as usize..][..100].iter().all(|on| *on), "seed {seed}");
        assert!(tokens_on(&history) > 3800, "seed {seed}: {}", tokens_on(&history));
    }
}

#[test]
fn switches_off_where_flash_is_saturated() {
    for seed in 0..20 {
        for shared in [false, true] {
            let mut flash = Flash::new(Setting { shared, ..SATURATED }, seed);
            let mut governor = Governor::new(flash.counts);
            let history = run(&mut flash, &mut governor, 4000);
            // One trial at the beginning, of at most 32 tokens.
            assert!(history[48..96].iter().all(|on| !on), "seed {seed}");
            assert!(tokens_on(&history) < 200, "seed {seed}: {}", tokens_on(&history));
        }
    }
}

#[test]
fn useless_predictions_are_switched_off_on_idle_flash() {
    for seed in 0..20 {
        let useless = Setting { recall: 0.02, wrong: 3.0, ..IDLE };
        let mut flash = Flash::new(useless, seed);
        let mut governor = Governor::new(flash.counts);
        let history = run(&mut flash, &mut governor, 4000);
        assert!(tokens_on(&history) < 300, "seed {seed}: {}", tokens_on(&history));
    }
}

#[test]
fn follows_a_change() {
    for seed in 0..20 {
        let idle = Setting { readers: 2, ..IDLE };
        let mut flash = Flash::new(idle, seed);
        let mut governor = Governor::new(flash.counts);
        run(&mut flash, &mut governor, 300);
        assert!(governor.is_on(), "seed {seed}");
        flash.change(Setting { readers: 2, ..SATURATED });
        let history = run(&mut flash, &mut governor, 100);
        assert!(history[64..].iter().all(|on| !on), "seed {seed}");
        run(&mut flash, &mut governor, 400);
        flash.change(idle);
        // The pause that it may be in ends within 512 tokens.
        run(&mut flash, &mut governor, 600);
        assert!(governor.is_on(), "seed {seed}");
    }
}

#[test]
fn pauses_grow() {
    let mut flash = Flash::new(SATURATED, 5);
    let mut governor = Governor::new(flash.counts);
    let history = run(&mut flash, &mut governor, 20_000);
    let starts: Vec<usize> =
        (1..history.len()).filter(|i| history[*i] && !history[i - 1]).collect();
    let pauses: Vec<usize> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() >= 6, "{pauses:?}");
    assert!(pauses.windows(2).take(5).all(|pair| pair[1] > pair[0]), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 2048 + 64), "{pauses:?}");
    assert!(governor.switches() <= 2 * starts.len() as u64 + 1);
}

#[test]
fn is_never_much_worse_than_the_better_of_on_and_off() {
    const TOKENS: usize = 4000;
    let mut worst = (0.0, None);
    for misses in [0.3, 1.0, 2.5] {
        for (recall, wrong) in [(0.8, 0.2), (0.6, 1.0), (0.3, 2.0), (0.05, 0.5)] {
            for compute in [0.5, 2.0, 6.0] {
                for (readers, shared) in [(1, false), (4, false), (4, true)] {
                    let setting =
                        Setting { misses, recall, wrong, compute, readers, shared, ..IDLE };
                    let mut flash = Flash::new(setting, 9);
                    let mut governor = Governor::new(flash.counts);
                    let history = run(&mut flash, &mut governor, TOKENS);
                    let on = fixed(setting, 9, TOKENS, true);
                    let off = fixed(setting, 9, TOKENS, false);
                    let regret = flash.time / on.min(off) - 1.0;
                    if regret > 0.03 {
                        eprintln!(
                            "{regret:.3} on/off {:.3} on {} {setting:?}",
                            on / off,
                            tokens_on(&history)
                        );
                    }
                    if regret > worst.0 {
                        worst = (regret, Some((setting, on / off, tokens_on(&history))));
                    }
                }
            }
        }
    }
    eprintln!("worst: {worst:?}");
    assert!(worst.0 < 0.05, "{worst:?}");
}

#[test]
fn a_batch_is_no_token() {
    let mut flash = Flash::new(IDLE, 3);
    let mut governor = Governor::new(flash.counts);
    // A prompt waits long, and predictions have nothing to do with it.
    let prompt = |flash: &mut Flash, governor: &mut Governor| {
        flash.counts.wait += Duration::from_secs(5);
        flash.counts.wasted += 1000;
        governor.batch(&flash.counts);
    };
    for _ in 0..60 {
        let history = run(&mut flash, &mut governor, 8);
        prompt(&mut flash, &mut governor);
        assert_eq!(tokens_on(&history), 0, "8 tokens at a time measure nothing");
    }
    run(&mut flash, &mut governor, 200);
    assert!(governor.is_on());
    for _ in 0..20 {
        prompt(&mut flash, &mut governor);
        run(&mut flash, &mut governor, 20);
    }
    assert!(governor.is_on());
}

#[test]
fn what_a_batch_waits_is_no_measure_of_tokens() {
    for seed in 0..20 {
        let mut flash = Flash::new(SATURATED, seed);
        let mut governor = Governor::new(flash.counts);
        // It is told of when it begins, and waits after that.
        governor.batch(&flash.counts);
        flash.counts.wait += Duration::from_secs(20);
        governor.token(&flash.counts);
        let history = run(&mut flash, &mut governor, 64);
        assert!(history[48..].iter().all(|on| !on), "seed {seed}");
    }
}

#[test]
fn a_hopeless_trial_is_short() {
    let hopeless = Setting { recall: 0.1, wrong: 6.0, shared: true, ..SATURATED };
    assert!(fixed(hopeless, 1, 500, true) > 1.4 * fixed(hopeless, 1, 500, false));
    for seed in 0..20 {
        let mut flash = Flash::new(hopeless, seed);
        let mut governor = Governor::new(flash.counts);
        let history = run(&mut flash, &mut governor, 64);
        assert!(tokens_on(&history) <= 12, "seed {seed}: {}", tokens_on(&history));
    }
}

#[test]
fn counts_that_go_back_do_no_harm() {
    let mut governor = Governor::new(PrefetchCounts { useful: 100, ..PrefetchCounts::default() });
    for _ in 0..5000 {
        governor.token(&PrefetchCounts::default());
    }
    assert!(governor.switches() < 20);
}

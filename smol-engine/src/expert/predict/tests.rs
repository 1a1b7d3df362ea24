use super::*;
use crate::expert::prefetch::PrefetchCounts;
use crate::expert::routing::Gating;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// Records predictions; can be made to stand still in the middle of one.
struct Log {
    predictions: Mutex<Sender<(usize, Vec<u32>)>>,
    /// Predictions that may pass; the next ones wait.
    passes: Mutex<usize>,
    changed: Condvar,
    counts: Mutex<PrefetchCounts>,
    asked: AtomicU64,
    resident: Mutex<Vec<u32>>,
}

impl Log {
    fn new(passes: usize) -> (Arc<Self>, Receiver<(usize, Vec<u32>)>) {
        let (sender, receiver) = channel();
        let log = Self {
            predictions: Mutex::new(sender),
            passes: Mutex::new(passes),
            changed: Condvar::new(),
            counts: Mutex::default(),
            asked: AtomicU64::new(0),
            resident: Mutex::default(),
        };
        (Arc::new(log), receiver)
    }

    fn let_pass(&self, passes: usize) {
        *self.passes.lock().unwrap() += passes;
        self.changed.notify_all();
    }
}

impl Prefetcher for Log {
    fn predict(&self, layer: usize, experts: &[u32]) {
        self.predictions.lock().unwrap().send((layer, experts.to_vec())).unwrap();
        let mut passes = self.passes.lock().unwrap();
        while *passes == 0 {
            passes = self.changed.wait(passes).unwrap();
        }
        *passes -= 1;
    }

    fn is_resident(&self, _layer: usize, expert: u32) -> bool {
        self.resident.lock().unwrap().contains(&expert)
    }

    fn prefetch_counts(&self) -> PrefetchCounts {
        self.asked.fetch_add(1, Ordering::Relaxed);
        *self.counts.lock().unwrap()
    }
}

const EXPERTS: usize = 6;
const WIDTH: usize = 6;

/// A router that gives expert e the value `x[(e + shift) % 6]`.
fn router(shift: usize) -> Option<Router> {
    let mut weights = vec![0.0; EXPERTS * WIDTH];
    for expert in 0..EXPERTS {
        weights[expert * WIDTH + (expert + shift) % WIDTH] = 1.0;
    }
    Some(Router::new(weights, EXPERTS as u32, 2, Gating::SoftmaxWeight).unwrap())
}

fn routers(layers: usize) -> Vec<Option<Router>> {
    (0..layers).map(router).collect()
}

/// The hidden state for which a router with shift 0 prefers `first`, then `second`.
fn preferring(first: usize, second: usize) -> [f32; WIDTH] {
    let mut x = [0.0; WIDTH];
    x[first] = 3.0;
    x[second] = 2.0;
    x
}

fn predictor(log: &Arc<Log>, routers: Vec<Option<Router>>, prefetch: Prefetch) -> Predictor {
    Predictor::new(Arc::clone(log), routers, prefetch, CacheBias::OFF).unwrap()
}

/// Waits until something holds.
fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < LIMIT, "does not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn predicts_the_next_two_layers_by_their_own_routers() {
    let (log, predictions) = Log::new(usize::MAX);
    let predictor = predictor(&log, routers(4), Prefetch::On);
    assert!(predictor.enabled() && predictor.is_active());
    predictor.hidden(0, &preferring(3, 5));
    // Shifted by one and by two.
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((1, vec![2, 4])));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((2, vec![1, 3])));
    predictor.hidden(2, &preferring(0, 1));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((3, vec![3, 4])));
    // After the last layer there is nothing to predict.
    predictor.hidden(3, &preferring(0, 1));
    predictor.hidden(0, &preferring(1, 2));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((1, vec![0, 1])));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((2, vec![5, 0])));
    until(|| predictor.statistics().predicted == 5);
}

#[test]
fn layers_without_a_router_are_passed_over() {
    let (log, predictions) = Log::new(usize::MAX);
    let predictor = predictor(&log, vec![None, None, router(0), router(1)], Prefetch::On);
    predictor.hidden(0, &preferring(4, 2));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((2, vec![4, 2])));
    predictor.hidden(1, &preferring(4, 2));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((2, vec![4, 2])));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((3, vec![3, 1])));
}

#[test]
fn a_busy_thread_finds_the_newest_only() {
    let (log, predictions) = Log::new(0);
    let predictor = predictor(&log, routers(8), Prefetch::On);
    predictor.hidden(0, &preferring(0, 1));
    assert_eq!(predictions.recv_timeout(LIMIT).map(|p| p.0), Ok(1));
    // It stands in the prediction of layer 1. Nobody waits for it.
    let start = Instant::now();
    for layer in 1..5 {
        predictor.hidden(layer, &preferring(layer, 0));
    }
    assert!(start.elapsed() < LIMIT / 4);
    log.let_pass(usize::MAX / 2);
    // Neither layer 2 of the old state nor anything of layers 1 to 3.
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((5, vec![5, 1])));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((6, vec![4, 0])));
    assert_eq!(predictor.statistics().replaced, 3);
    drop(predictor);
    drop(log);
    assert!(predictions.recv().is_err(), "no more predictions");
}

#[test]
fn can_be_dropped_while_busy() {
    let (log, predictions) = Log::new(0);
    let predictor = predictor(&log, routers(8), Prefetch::On);
    predictor.hidden(0, &preferring(0, 1));
    assert_eq!(predictions.recv_timeout(LIMIT).map(|p| p.0), Ok(1));
    predictor.hidden(1, &preferring(0, 1));
    let shared = Arc::clone(&predictor.shared);
    let dropping = std::thread::spawn(move || drop(predictor));
    until(|| shared.mailbox.is_closed());
    assert!(!dropping.is_finished(), "the thread still uses the log");
    log.let_pass(1);
    dropping.join().unwrap();
    // It let go of the log, and did not look at what was left.
    assert_eq!(Arc::strong_count(&log), 1);
    assert!(predictions.try_recv().is_err());
}

#[test]
fn drops_at_any_moment() {
    for round in 0..200u64 {
        let (log, _predictions) = Log::new(usize::MAX);
        let predictor = predictor(&log, routers(8), Prefetch::On);
        for layer in 0..(round % 9) as usize {
            predictor.hidden(layer, &preferring(layer % 6, (layer + 1) % 6));
        }
        if round % 3 == 0 {
            std::thread::sleep(Duration::from_micros(round));
        }
        drop(predictor);
        assert_eq!(Arc::strong_count(&log), 1);
    }
}

#[test]
fn a_panic_of_the_prefetcher_stays_in_its_thread() {
    let (log, predictions) = Log::new(usize::MAX);
    // Nobody receives: the log panics.
    drop(predictions);
    let predictor = predictor(&log, routers(3), Prefetch::On);
    for _ in 0..100 {
        predictor.hidden(0, &preferring(0, 1));
        std::thread::yield_now();
    }
    drop(predictor);
}

#[test]
fn rows_of_a_graph_are_predicted_together_and_batches_not_at_all() {
    let (log, predictions) = Log::new(usize::MAX);
    let predictor = predictor(&log, vec![router(0), router(0)], Prefetch::On);
    let two = [preferring(3, 5), preferring(5, 1)].concat();
    predictor.hidden(0, &two);
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((1, vec![3, 5, 1])));
    predictor.hidden(0, &preferring(2, 3).repeat(MOST_ROWS + 1));
    predictor.hidden(0, &two[1..]);
    predictor.hidden(7, &two);
    predictor.hidden(0, &preferring(4, 0).repeat(MOST_ROWS));
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((1, vec![4, 0])));
}

#[test]
fn predicts_with_the_bias_of_the_choice_and_with_both_norms() {
    let (log, predictions) = Log::new(usize::MAX);
    *log.resident.lock().unwrap() = vec![0];
    let bias = CacheBias { bias: 1.0, keep_top: 1 };
    let norm = |scale: f32| {
        let mut norm = vec![1.0; WIDTH];
        norm[4] = scale;
        router(0).map(|router| router.with_norm(norm).unwrap())
    };
    let routers = vec![norm(1.0), norm(9.0)];
    let predictor = Predictor::new(Arc::clone(&log), routers, Prefetch::On, bias).unwrap();
    let mut x = preferring(3, 5);
    x[4] = 1.0;
    predictor.hidden(0, &x);
    // 4 by its norm, then 0 because it is in memory.
    assert_eq!(predictions.recv_timeout(LIMIT), Ok((1, vec![4, 0])));
}

#[test]
fn off_and_nothing_to_predict_start_no_thread() {
    let (log, _predictions) = Log::new(usize::MAX);
    for predictor in [
        predictor(&log, routers(4), Prefetch::Off),
        predictor(&log, Vec::new(), Prefetch::On),
        predictor(&log, vec![router(0)], Prefetch::On),
        predictor(&log, vec![router(0), None, None], Prefetch::Auto),
    ] {
        assert!(!predictor.enabled() && !predictor.is_active());
        predictor.hidden(0, &preferring(0, 1));
        predictor.hidden(9, &preferring(0, 1));
        assert_eq!(predictor.statistics(), PredictorStatistics::default());
    }
    assert_eq!(Arc::strong_count(&log), 1);
}

#[test]
fn auto_follows_the_counts() {
    let (log, predictions) = Log::new(usize::MAX);
    let predictor = predictor(&log, routers(3), Prefetch::Auto);
    assert!(predictor.enabled() && !predictor.is_active());
    let token = |behind: u64, wait: u64| {
        let mut counts = log.counts.lock().unwrap();
        counts.reads += 4;
        counts.read_time += Duration::from_millis(4 * 5);
        counts.wait += Duration::from_millis(wait);
        if predictor.is_active() {
            counts.useful += 2;
            counts.behind += Duration::from_millis(behind);
        }
        drop(counts);
        let asked = log.asked.load(Ordering::Relaxed);
        for layer in 0..3 {
            predictor.hidden(layer, &preferring(layer, 5));
        }
        // As slow as a token: the thread keeps up.
        until(|| log.asked.load(Ordering::Relaxed) > asked);
    };
    let mut tokens = 0;
    while !predictor.is_active() {
        token(0, 20);
        tokens += 1;
        assert!(tokens < 2000, "never tried");
    }
    // It pays: 2 reads of 5 ms saved, nothing lost.
    for _ in 0..100 {
        token(0, 10);
    }
    assert!(predictor.is_active());
    assert!(predictions.recv_timeout(LIMIT).is_ok());
    // It does not any more.
    tokens = 0;
    while predictor.is_active() {
        token(40, 50);
        tokens += 1;
        assert!(tokens < 2000, "never switched off");
    }
    until(|| predictor.statistics().switches == 2);
    // Then nothing is copied or predicted.
    let predicted = predictor.statistics().predicted;
    for _ in 0..5 {
        token(0, 10);
    }
    assert!(predictor.statistics().predicted <= predicted + 1);
}

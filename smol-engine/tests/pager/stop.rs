//! Runs that are stopped while they wait.

use crate::fixture::{Shape, layer};
use smol_engine::expert::{Error, PagerConfig, Stop};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn stop_at(flag: &Arc<AtomicBool>) -> Option<Stop> {
    let flag = Arc::clone(flag);
    Some(Arc::new(move || flag.load(Ordering::SeqCst)))
}

/// Stops three threads that wait for reads that do not come, and returns how long the last of
/// them took to notice.
fn time_to_stop(budget: u64) -> Duration {
    let config = PagerConfig { budget, ..PagerConfig::default() };
    let (pager, file) = Shape::SMALL.pager(&config, 512);
    let flag = Arc::new(AtomicBool::new(false));
    pager.set_stop(1, stop_at(&flag));
    let gate = file.close_gate();
    let all: Vec<u32> = (0..8).collect();
    pager.begin(1, 0, 0, &all, &[1; 8]);
    let time = std::thread::scope(|scope| {
        let wait = |index: usize| {
            let pager = &pager;
            scope.spawn(move || (pager.wait(1, index * 3).is_none(), Instant::now()))
        };
        let waiting: Vec<_> = (0..3).map(wait).collect();
        std::thread::sleep(Duration::from_millis(60));
        flag.store(true, Ordering::SeqCst);
        let stopped = Instant::now();
        let returned = waiting.into_iter().map(|thread| {
            let (is_none, returned) = thread.join().unwrap();
            assert!(is_none);
            returned.saturating_duration_since(stopped)
        });
        returned.max().unwrap()
    });
    assert!(matches!(pager.end(1), Err(Error::Stopped)));
    // Another run waits for the reads that are stuck, then goes on as if nothing had been.
    flag.store(false, Ordering::SeqCst);
    gate.open();
    for number in 0..3 {
        assert!(layer(&pager, &file.data, 1, number, &all));
    }
    pager.end(1).unwrap();
    time
}

#[test]
fn waiting_ends_within_a_tenth_of_a_second() {
    for budget in [Shape::SMALL.floor(&PagerConfig::default(), 512), u64::MAX] {
        // Again if other programs had the processor.
        let in_time = (0..100).any(|_| time_to_stop(budget) < Duration::from_millis(100));
        assert!(in_time);
    }
}

#[test]
fn a_stop_may_be_set_while_threads_wait() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    let gate = file.close_gate();
    pager.begin(1, 0, 0, &[1], &[1]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pager.wait(1, 0).is_none());
        std::thread::sleep(Duration::from_millis(30));
        pager.set_stop(1, Some(Arc::new(|| true)));
        assert!(waiting.join().unwrap());
    });
    gate.open();
    assert!(matches!(pager.end(1), Err(Error::Stopped)));
}

#[test]
fn others_are_not_stopped_and_nobody_is_who_does_not_wait() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    assert!(layer(&pager, &file.data, 1, 0, &[1, 2]));
    pager.end(1).unwrap();
    let stop: Stop = Arc::new(|| true);
    pager.set_stop(1, Some(stop));
    assert!(layer(&pager, &file.data, 1, 0, &[1, 2]), "all is there");
    pager.end(1).unwrap();
    assert!(layer(&pager, &file.data, 2, 1, &[1, 2]));
    pager.end(2).unwrap();
    pager.set_stop(1, None);
    assert!(layer(&pager, &file.data, 1, 2, &[1, 2]));
    pager.end(1).unwrap();
}

#[test]
fn what_a_stopped_run_had_queued_is_not_read() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig { readers: 1, ..Default::default() }, 1);
    let gate = file.close_gate();
    pager.want(1, 0, &[0, 1, 2, 3]);
    file.await_reading(1);
    pager.set_stop(1, Some(Arc::new(|| true)));
    pager.begin(1, 0, 0, &[0, 1, 2, 3], &[1; 4]);
    assert_eq!(pager.wait(1, 0), None);
    assert!(matches!(pager.end(1), Err(Error::Stopped)));
    gate.open();
    assert!(layer(&pager, &file.data, 2, 1, &[5]));
    pager.end(2).unwrap();
    assert_eq!(file.reads.load(Ordering::SeqCst), 1 + 3);
}

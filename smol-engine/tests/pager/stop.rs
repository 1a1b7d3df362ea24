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

#[test]
fn waiting_ends_within_a_tenth_of_a_second() {
    let config = PagerConfig::default();
    for budget in [Shape::SMALL.floor(&config, 512), u64::MAX] {
        let (pager, file) = Shape::SMALL.pager(&PagerConfig { budget, ..config.clone() }, 512);
        let flag = Arc::new(AtomicBool::new(false));
        pager.set_stop(1, stop_at(&flag));
        file.close_gate();
        let all: Vec<u32> = (0..8).collect();
        pager.begin(1, 0, 0, &all, &[1; 8]);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..3)
                .map(|index| {
                    let pager = &pager;
                    scope.spawn(move || (pager.wait(1, index * 3).is_none(), Instant::now()))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(60));
            flag.store(true, Ordering::SeqCst);
            let stopped = Instant::now();
            for thread in waiting {
                let (stopped_it, returned) = thread.join().unwrap();
                assert!(stopped_it);
                let late = returned.saturating_duration_since(stopped);
                assert!(late < Duration::from_millis(100), "{late:?}");
            }
        });
        assert!(matches!(pager.end(1), Err(Error::Stopped)));
        // The reads are still stuck; another run waits for them, then goes on as if nothing had
        // been.
        flag.store(false, Ordering::SeqCst);
        file.open_gate();
        for number in 0..3 {
            assert!(layer(&pager, &file.data, 1, number, &all));
        }
        pager.end(1).unwrap();
    }
}

#[test]
fn a_stop_may_be_set_while_threads_wait() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    file.close_gate();
    pager.begin(1, 0, 0, &[1], &[1]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| pager.wait(1, 0).is_none());
        std::thread::sleep(Duration::from_millis(30));
        pager.set_stop(1, Some(Arc::new(|| true)));
        assert!(waiting.join().unwrap());
    });
    file.open_gate();
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
    file.close_gate();
    pager.want(1, 0, &[0, 1, 2, 3]);
    file.await_reading(1);
    pager.set_stop(1, Some(Arc::new(|| true)));
    pager.begin(1, 0, 0, &[0, 1, 2, 3], &[1; 4]);
    assert_eq!(pager.wait(1, 0), None);
    assert!(matches!(pager.end(1), Err(Error::Stopped)));
    file.open_gate();
    assert!(layer(&pager, &file.data, 2, 1, &[5]));
    pager.end(2).unwrap();
    assert_eq!(file.reads.load(Ordering::SeqCst), 1 + 3);
}

//! Several runs of one stream, and runs that are stopped.

use crate::files::eventually;
use crate::fixture::{MIXED, ORDER, pass, small, stream};
use smol_engine::stream::{Error, Stop, StreamConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn stop_at(flag: &Arc<AtomicBool>) -> Option<Stop> {
    let flag = Arc::clone(flag);
    Some(Arc::new(move || flag.load(Ordering::SeqCst)))
}

#[test]
fn runs_wait_for_their_turn() {
    let (stream, file) = small();
    assert!(stream.begin(1, &ORDER).is_some());
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for run in 2..5 {
            let (stream, begun, data) = (&stream, &begun, &file.data);
            scope.spawn(move || {
                pass(stream, data, run, &ORDER, 2);
                begun.fetch_add(1, Ordering::SeqCst);
            });
        }
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(begun.load(Ordering::SeqCst), 0);
        assert!(stream.wait(1, 0));
        stream.end(1).unwrap();
        eventually(|| begun.load(Ordering::SeqCst) == 3);
    });
}

#[test]
fn many_runs_with_many_threads() {
    for more in [0, 500_000] {
        let config = StreamConfig { verify: true, ..StreamConfig::default() };
        let (stream, file) = stream(more, MIXED, 512, config);
        let orders = [&ORDER[..], &[3, 4, 3], &ORDER[..5]];
        std::thread::scope(|scope| {
            for (run, order) in orders.into_iter().enumerate() {
                let (stream, data) = (&stream, &file.data);
                scope.spawn(move || {
                    for _ in 0..6 {
                        pass(stream, data, run, order, 1 + run);
                    }
                });
            }
        });
        assert_eq!(stream.statistics().passes, 18);
    }
}

#[test]
fn a_run_that_begins_anew_ends_what_it_did_before() {
    let (stream, file) = small();
    for _ in 0..3 {
        assert!(stream.begin(1, &ORDER).is_some());
        assert!(stream.wait(1, 0));
    }
    pass(&stream, &file.data, 1, &ORDER, 1);
    // A failure that nobody asked for is over too.
    assert!(stream.begin(1, &[9]).is_none());
    pass(&stream, &file.data, 1, &ORDER, 1);
}

#[test]
fn waiting_for_weights_and_for_a_turn_can_be_stopped() {
    let (stream, file) = small();
    let flag = Arc::new(AtomicBool::new(false));
    for run in [1, 2] {
        stream.set_stop(run, stop_at(&flag));
    }
    let gate = file.close_gate();
    assert!(stream.begin(1, &ORDER).is_some());
    std::thread::scope(|scope| {
        let waiting = [0, 0, 0].map(|index| {
            let stream = &stream;
            scope.spawn(move || !stream.wait(1, index))
        });
        let other = scope.spawn(|| stream.begin(2, &ORDER).is_none());
        std::thread::sleep(Duration::from_millis(50));
        flag.store(true, Ordering::SeqCst);
        for thread in waiting {
            assert!(thread.join().unwrap());
        }
        assert!(other.join().unwrap());
    });
    for run in [2, 1] {
        assert!(matches!(stream.end(run), Err(Error::Stopped)));
    }
    // As if nothing had been, once the reads that are stuck have come.
    flag.store(false, Ordering::SeqCst);
    gate.open();
    for run in [1, 2] {
        pass(&stream, &file.data, run, &ORDER, 2);
    }
}

#[test]
fn a_stop_may_be_set_while_threads_wait() {
    let (stream, file) = small();
    let gate = file.close_gate();
    assert!(stream.begin(1, &ORDER).is_some());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| !stream.wait(1, 0));
        let other = scope.spawn(|| stream.begin(2, &ORDER).is_none());
        std::thread::sleep(Duration::from_millis(30));
        for run in [1, 2] {
            stream.set_stop(run, Some(Arc::new(|| true)));
            stream.set_stop(run, Some(Arc::new(|| true)));
        }
        assert!(waiting.join().unwrap() && other.join().unwrap());
    });
    gate.open();
    assert!(stream.end(1).is_err() && stream.end(2).is_err());
}

#[test]
fn nobody_is_stopped_who_does_not_wait() {
    let (stream, file) = stream(3_000_000, 0, 512, StreamConfig::default());
    pass(&stream, &file.data, 1, &[1, 2], 1);
    let all = stream.tensors()[1].file_bytes + stream.tensors()[2].file_bytes;
    eventually(|| stream.statistics().bytes_read >= 2 * all);
    stream.set_stop(1, Some(Arc::new(|| true)));
    pass(&stream, &file.data, 1, &[1, 2], 1);
    pass(&stream, &file.data, 2, &ORDER, 1);
    stream.set_stop(1, None);
    pass(&stream, &file.data, 1, &ORDER, 1);
}

#[test]
fn what_a_stopped_run_wanted_is_not_read() {
    let config = StreamConfig { readers: 1, ..StreamConfig::default() };
    let (stream, file) = stream(3_000_000, 0, 1, config);
    let gate = file.close_gate();
    assert!(stream.begin(1, &ORDER).is_some());
    file.await_reading(1);
    stream.set_stop(1, Some(Arc::new(|| true)));
    assert!(!stream.wait(1, 0));
    assert!(matches!(stream.end(1), Err(Error::Stopped)));
    gate.open();
    eventually(|| file.reading.load(Ordering::SeqCst) == 0);
    assert!(stream.begin(2, &[6]).is_some() && stream.wait(2, 0));
    stream.end(2).unwrap();
    let first = file.offsets.lock().unwrap().clone();
    let wanted = stream.tensors()[6].offset;
    assert!(first[1..].iter().all(|&offset| offset >= wanted), "{first:?} {wanted}");
}

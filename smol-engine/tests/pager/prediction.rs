//! Reads ahead: promoted, cancelled, useful, late, wasted.

use crate::fixture::{Fake, Outcome, Shape, eventually, layer};
use smol_engine::expert::{Pager, PagerConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn one_reader() -> (Arc<Pager>, Arc<Fake>) {
    Shape::SMALL.pager(&PagerConfig { readers: 1, ..PagerConfig::default() }, 1)
}

/// Returns where an expert's tensor starts.
fn offset(pager: &Pager, layer: usize, tensor: usize, expert: u32) -> u64 {
    let tensor = &pager.layers()[layer].tensors[tensor];
    tensor.offset + u64::from(expert) * tensor.stride
}

#[test]
fn what_comes_before_it_is_chosen_is_useful() {
    let (pager, file) = one_reader();
    pager.predict(1, &[2, 5]);
    eventually(|| pager.is_resident(1, 2) && pager.is_resident(1, 5));
    let reads = file.reads.load(Ordering::SeqCst);
    assert_eq!(reads, 6);
    assert!(layer(&pager, &file.data, 1, 1, &[2, 5]));
    pager.end(1).unwrap();
    let statistics = pager.statistics();
    assert_eq!((statistics.useful, statistics.late, statistics.wasted), (2, 0, 0));
    assert_eq!((statistics.hits, statistics.misses), (2, 0));
    assert_eq!(file.reads.load(Ordering::SeqCst), reads);
}

#[test]
fn what_is_chosen_before_it_comes_is_promoted() {
    let (pager, file) = one_reader();
    let gate = file.close_gate();
    pager.want(9, 0, &[0]);
    file.await_reading(1);
    pager.predict(1, &[2, 5]);
    pager.predict(2, &[1]);
    pager.want(1, 1, &[5]);
    pager.begin(1, 1, 0, &[5], &[1]);
    gate.open();
    assert!(layer(&pager, &file.data, 1, 1, &[5]));
    pager.end(1).unwrap();
    let order = file.offsets.lock().unwrap().clone();
    let place = |at| order.iter().position(|&offset| offset == at);
    let promoted = place(offset(&pager, 1, 2, 5)).unwrap();
    // Before all that was only predicted; expert 2 was given up when the layer began without it.
    assert!(place(offset(&pager, 2, 0, 1)).is_none_or(|other| other > promoted));
    assert_eq!(place(offset(&pager, 1, 0, 2)), None);
    let statistics = pager.statistics();
    assert_eq!((statistics.useful, statistics.late, statistics.wasted), (0, 1, 0));
    assert_eq!((statistics.hits, statistics.misses), (0, 1));
    pager.end(9).unwrap();
}

#[test]
fn what_is_not_predicted_any_more_is_given_up() {
    let (pager, file) = one_reader();
    let gate = file.close_gate();
    pager.predict(1, &[2, 5, 6]);
    file.await_reading(1);
    pager.predict(1, &[7]);
    gate.open();
    eventually(|| pager.is_resident(1, 7));
    let order = file.offsets.lock().unwrap().clone();
    let layer_1 = |tensor, expert| offset(&pager, 1, tensor, expert);
    assert_eq!(order, [layer_1(0, 2), layer_1(0, 7), layer_1(1, 7), layer_1(2, 7)]);
    assert!(!pager.is_resident(1, 2));
    assert_eq!(pager.statistics().wasted, 1, "one read was under way");
}

#[test]
fn reads_that_are_needed_go_first() {
    let (pager, file) = one_reader();
    let gate = file.close_gate();
    pager.predict(2, &[0, 1]);
    file.await_reading(1);
    pager.want(1, 0, &[3, 4]);
    gate.open();
    assert!(layer(&pager, &file.data, 1, 0, &[3, 4]));
    pager.end(1).unwrap();
    eventually(|| pager.is_resident(2, 0) && pager.is_resident(2, 1));
    let order = file.offsets.lock().unwrap().clone();
    let at = |layer, tensor, expert| offset(&pager, layer, tensor, expert);
    // Gate and up of all experts before down of any.
    let needed = [at(0, 0, 3), at(0, 0, 4), at(0, 1, 3), at(0, 1, 4), at(0, 2, 3), at(0, 2, 4)];
    assert_eq!(order[1..7], needed);
}

#[test]
fn half_of_the_readers_stay_free_for_what_is_needed() {
    let (pager, file) =
        Shape::SMALL.pager(&PagerConfig { readers: 4, ..PagerConfig::default() }, 1);
    let gate = file.close_gate();
    pager.predict(1, &[0, 1, 2, 3]);
    file.await_reading(2);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(file.reading.load(Ordering::SeqCst), 2);
    pager.want(1, 0, &[3, 4]);
    file.await_reading(4);
    gate.open();
    pager.end(1).unwrap();
}

#[test]
fn predictions_take_nothing_that_is_held_and_half_of_the_pool_at_most() {
    let config = PagerConfig::default();
    let shape = Shape { layers: 1, experts: 16, used: 4, packed: false };
    let budget = shape.floor(&config, 1);
    let (pager, file) = shape.pager(&PagerConfig { budget, ..config }, 1);
    assert_eq!(pager.statistics().slots, 4);
    pager.begin(1, 0, 0, &[0, 1, 2, 3], &[1; 4]);
    for index in 0..4 {
        assert!(pager.wait(1, index).is_some());
    }
    let reads = file.reads.load(Ordering::SeqCst);
    pager.predict(0, &[8, 9, 10, 11]);
    for (index, expert) in (0..4).enumerate() {
        assert!(crate::fixture::check(&pager, &file.data, (1, 0, 0), index, expert));
    }
    eventually(|| (0..4).all(|expert| pager.is_resident(0, expert)));
    assert!(file.reads.load(Ordering::SeqCst) <= reads + 8);
    pager.end(1).unwrap();
    pager.predict(0, &[8, 9, 10, 11]);
    eventually(|| pager.is_resident(0, 8) && pager.is_resident(0, 9));
    assert_eq!((0..16).filter(|&expert| pager.is_resident(0, expert)).count(), 4);
    // Guesses that came true are no guesses: there is room for others.
    assert!(layer(&pager, &file.data, 1, 0, &[8, 9]));
    pager.end(1).unwrap();
    pager.predict(0, &[12, 13]);
    eventually(|| pager.is_resident(0, 12) && pager.is_resident(0, 13));
    assert_eq!(pager.statistics().useful, 2);
}

#[test]
fn unused_predictions_that_leave_are_wasted() {
    let config = PagerConfig::default();
    let budget = Shape::SMALL.floor(&config, 1);
    let (pager, file) = Shape::SMALL.pager(&PagerConfig { budget, ..config }, 1);
    pager.predict(0, &[6]);
    eventually(|| pager.is_resident(0, 6));
    assert!(layer(&pager, &file.data, 1, 0, &[0, 1]));
    pager.end(1).unwrap();
    assert!(!pager.is_resident(0, 6));
    assert_eq!(pager.statistics().wasted, 1);
}

#[test]
fn a_prediction_that_fails_fails_nobody() {
    let (pager, file) = one_reader();
    let failed = Arc::new(AtomicBool::new(false));
    let first = Arc::clone(&failed);
    file.script(move |_, _| match first.swap(true, Ordering::SeqCst) {
        false => Outcome::Fails(std::io::ErrorKind::Other),
        true => Outcome::Good,
    });
    pager.predict(0, &[6]);
    eventually(|| failed.load(Ordering::SeqCst));
    // The only reader reads these after it has told of the failure.
    assert!(layer(&pager, &file.data, 1, 1, &[0, 6]));
    pager.end(1).unwrap();
    assert!(layer(&pager, &file.data, 1, 0, &[0, 6]));
    pager.end(1).unwrap();
}

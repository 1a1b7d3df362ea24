//! Experts read at the start.

use crate::fixture::{Fake, Shape, eventually, layer};
use smol_engine::expert::prefetch::WarmExpert;
use smol_engine::expert::{Pager, PagerConfig};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn one_reader() -> (Arc<Pager>, Arc<Fake>) {
    Shape::SMALL.pager(&PagerConfig { readers: 1, ..PagerConfig::default() }, 1)
}

/// All experts, layer by layer.
fn all(pager: &Pager) -> Vec<WarmExpert> {
    let layers = pager.layers().iter().enumerate();
    let of = |(layer, plan): (usize, &smol_engine::expert::ExpertLayer)| {
        (0..plan.experts).map(move |expert| WarmExpert { layer, expert })
    };
    layers.flat_map(of).collect()
}

#[test]
fn fills_all_slots_with_the_first_of_the_list() {
    let (pager, file) = one_reader();
    let list = all(&pager);
    pager.warm(&list);
    let resident = |warm: &&WarmExpert| pager.is_resident(warm.layer, warm.expert);
    let slots = pager.statistics().slots as usize;
    eventually(|| list.iter().filter(resident).count() == slots);
    // The first of each layer, expert after expert.
    for layer in 0..pager.layers().len() {
        let experts = list.iter().filter(|warm| warm.layer == layer);
        let is_resident: Vec<bool> = experts.map(|warm| resident(&warm)).collect();
        assert!(is_resident.is_sorted_by(|a, b| a >= b), "{is_resident:?}");
        assert!(is_resident[0]);
    }
    let order = file.offsets.lock().unwrap().clone();
    let tensors = &pager.layers()[0].tensors;
    assert_eq!(order[0], tensors[0].offset);
    assert_eq!(order[tensors.len()], tensors[0].offset + tensors[0].stride);
    // They are hits, and no predictions.
    assert!(layer(&pager, &file.data, 1, 0, &[0, 1]));
    pager.end(1).unwrap();
    let statistics = pager.statistics();
    assert_eq!((statistics.hits, statistics.misses), (2, 0));
    assert_eq!((statistics.useful, statistics.late, statistics.wasted), (0, 0, 0));
}

#[test]
fn goes_after_all_other_reads_and_survives_them() {
    let (pager, file) = one_reader();
    let gate = file.close_gate();
    let warm = |layer, expert| WarmExpert { layer, expert };
    pager.warm(&[warm(0, 6), warm(0, 7), warm(1, 3), warm(99, 0), warm(0, 99)]);
    file.await_reading(1);
    pager.predict(1, &[5]);
    // A prediction and the beginning of a layer give up predictions, and not what is warmed up.
    pager.predict(0, &[2]);
    pager.want(1, 0, &[1, 7]);
    gate.open();
    assert!(layer(&pager, &file.data, 1, 0, &[1, 7]));
    pager.end(1).unwrap();
    eventually(|| [(0, 6), (0, 7), (1, 3), (1, 5)].iter().all(|(l, e)| pager.is_resident(*l, *e)));
    let order = file.offsets.lock().unwrap().clone();
    let place = |layer: usize, expert: u32| {
        let tensor = &pager.layers()[layer].tensors[2];
        let offset = tensor.offset + u64::from(expert) * tensor.stride;
        order.iter().position(|at| *at == offset).unwrap()
    };
    // Needed, predicted, warm; 6 was begun before, but its other tensors were not.
    assert!(place(0, 1) < place(1, 5) && place(0, 7) < place(1, 5));
    assert!(place(1, 5) < place(0, 6) && place(0, 6) < place(1, 3));
    let statistics = pager.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.late), (0, 2, 0));
}

#[test]
fn takes_no_slot_from_others() {
    let (pager, file) = one_reader();
    let list = all(&pager);
    assert!(layer(&pager, &file.data, 1, 0, &[7, 6]));
    pager.end(1).unwrap();
    pager.warm(&list);
    let slots = pager.statistics().slots as usize;
    let resident = || list.iter().filter(|w| pager.is_resident(w.layer, w.expert)).count();
    eventually(|| resident() == slots);
    assert!(pager.is_resident(0, 7) && pager.is_resident(0, 6));
    let reads = file.reads.load(Ordering::SeqCst);
    pager.warm(&list);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(file.reads.load(Ordering::SeqCst), reads);
}

#[test]
fn can_be_dropped_with_reads_left() {
    let (pager, file) = one_reader();
    file.set_delay(std::time::Duration::from_millis(50));
    let list = all(&pager);
    let reads = (list.len() * pager.layers()[0].tensors.len()) as u64;
    pager.warm(&list);
    drop(pager);
    // Seconds would have to pass before.
    assert!(file.reads.load(Ordering::SeqCst) < reads);
}

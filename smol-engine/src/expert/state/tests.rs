//! Predictions: who makes room for them, and what is counted of their reads.

use super::*;
use crate::expert::plan::{LayerPlan, PoolPlan};
use std::time::Duration;

const EXPERTS: u32 = 4;

/// A state of two layers of four experts with one tensor each, that share a pool of `slots`.
fn state(slots: usize) -> State<u32> {
    let layer = |number: u32| LayerPlan {
        pool: 0,
        first_key: number * EXPERTS,
        first: number * EXPERTS,
        experts: EXPERTS,
        used: 1,
        tensors: 1,
    };
    let keys = 2 * EXPERTS as usize;
    let plan = Plan {
        layers: vec![layer(0), layer(1)],
        pools: vec![PoolPlan { rooms: vec![1], slot: 1, keys, floor: 1, layers: 2 }],
        alignment: 1,
        readers: 2,
        ring: 1,
        ring_room: 1,
        bounce_room: 0,
        second_room: 0,
    };
    let residency = Arc::new(Residency::new(keys as u32));
    let mut state = State::new(Arc::new(plan), Policy::default(), &residency, [0]);
    state.set_capacities(&[slots]);
    (1..=slots as u32).for_each(|region| state.pools[0].commit(vec![region]));
    state
}

/// Does all reads that are queued.
fn read(state: &mut State<u32>) {
    while let Some(job) = state.next_job() {
        state.finish(job, Ok(1));
    }
}

/// Computes a layer.
fn compute(state: &mut State<u32>, layer: usize, experts: &[u32]) {
    state.want(1, layer, experts);
    read(state);
    state.begin(1, layer, 0, experts, &vec![1; experts.len()]);
    read(state);
    (0..experts.len()).for_each(|index| state.done(1, index));
}

/// The experts of a layer that have slots.
fn held(state: &State<u32>, layer: usize) -> Vec<u32> {
    let key = |expert| layer as u32 * EXPERTS + expert;
    (0..EXPERTS).filter(|expert| state.pools[0].find(key(*expert)).is_some()).collect()
}

#[test]
fn what_another_layer_needs_does_not_push_out_predictions() {
    let mut state = state(4);
    compute(&mut state, 0, &[0, 1, 2]);
    state.predict(1, &[3]);
    read(&mut state);
    // The predicted one has no use to show, those of the first layer have.
    compute(&mut state, 0, &[3]);
    assert_eq!(held(&state, 1), [3]);
    compute(&mut state, 1, &[3]);
    assert_eq!((state.counters.useful, state.pools[0].wasted), (1, 0));
}

#[test]
fn predictions_that_did_not_come_true_go_first() {
    let mut state = state(4);
    compute(&mut state, 0, &[0, 1, 2]);
    state.predict(1, &[3]);
    read(&mut state);
    compute(&mut state, 1, &[0]);
    assert_eq!((held(&state, 0), held(&state, 1)), (vec![0, 1, 2], vec![0]));
    assert_eq!(state.pools[0].wasted, 1);
}

#[test]
fn predictions_leave_when_nothing_else_can() {
    let mut state = state(2);
    compute(&mut state, 0, &[0]);
    state.predict(1, &[3]);
    read(&mut state);
    compute(&mut state, 0, &[1, 2]);
    assert_eq!((held(&state, 0), held(&state, 1)), (vec![1, 2], vec![]));
}

#[test]
fn an_expert_predicted_again_is_spared_again() {
    let mut state = state(4);
    compute(&mut state, 0, &[0, 1]);
    state.predict(1, &[3]);
    read(&mut state);
    compute(&mut state, 1, &[0]);
    assert_eq!(held(&state, 1), [0, 3]);
    state.predict(1, &[3]);
    compute(&mut state, 0, &[2]);
    assert_eq!(held(&state, 1), [0, 3]);
}

/// Lets a run wait.
fn wait(state: &mut State<u32>) {
    state.start_waiting(1);
    std::thread::sleep(Duration::from_millis(5));
    state.stop_waiting(1);
}

#[test]
fn a_late_prediction_is_not_in_its_own_way() {
    let mut state = state(4);
    state.predict(1, &[3]);
    let job = state.next_job().unwrap();
    let (started, waited) = (Instant::now(), state.waited_ns());
    state.want(1, 1, &[3]);
    wait(&mut state);
    state.count_read(&job, started, waited);
    state.finish(job, Ok(1));
    let counters = &state.counters;
    assert!(counters.late == 1 && counters.waited_ns > 0 && counters.behind_ns == 0);
    assert_eq!(counters.late_ns, counters.waited_ns);
}

#[test]
fn a_prediction_is_in_the_way_of_others_until_it_is_chosen() {
    let mut state = state(4);
    state.predict(1, &[3]);
    let job = state.next_job().unwrap();
    let (started, waited) = (Instant::now(), state.waited_ns());
    state.want(1, 0, &[0]);
    wait(&mut state);
    let behind = state.waited_ns();
    state.want(1, 1, &[3]);
    wait(&mut state);
    state.count_read(&job, started, waited);
    assert!(behind > 0);
    assert_eq!(state.counters.behind_ns, behind);
}

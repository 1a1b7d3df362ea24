use super::synthetic::{Shape, trace as synthetic};
use super::*;
use crate::expert::policy::HALF_LIFE;
use crate::expert::trace::{Graph, LayerHeader, Read, TensorSize};
use proptest::prelude::{
    Strategy as _, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

const LRU: Strategy = Strategy::Policy(Policy::Lru);

/// Experts of one layer: their number, how many are used, bytes.
fn layer(experts: u32, used: u32, bytes: u64) -> LayerHeader {
    let size = TensorSize { file: bytes, memory: bytes + 1 };
    LayerHeader { block: 0, experts, used, tensors: vec![size, size] }
}

/// A trace of graphs, each with one list of experts a layer; `used` is 1.
fn trace(layers: Vec<LayerHeader>, graphs: &[Vec<Vec<u32>>]) -> Trace {
    let graphs = graphs.iter().map(|lists| {
        let mut graph = Graph::default();
        for (layer, ids) in lists.iter().enumerate() {
            graph.push(layer, layers[layer].used as usize, ids);
        }
        graph
    });
    let graphs = graphs.collect();
    Trace { header: TraceHeader { model: "test".into(), layers }, graphs, damage: None }
}

/// A trace of one layer whose experts are used one by one.
fn single(experts: u32, ids: &[u32]) -> Trace {
    let graphs: Vec<_> = ids.iter().map(|id| vec![vec![*id]]).collect();
    trace(vec![layer(experts, 1, 100)], &graphs)
}

fn misses(trace: &Trace, strategy: Strategy, slots: usize) -> u64 {
    let outcome = Simulation::new(trace, Scope::Layer).run(strategy, slots);
    outcome.generation.misses + outcome.prompts.misses
}

/// Belady's example (1966) of a program that uses pages 0 1 2 3 0 1 4 0 1 2 3 4.
#[test]
fn known_counts_of_a_known_string() {
    let trace = single(5, &[0, 1, 2, 3, 0, 1, 4, 0, 1, 2, 3, 4]);
    // By hand: LRU misses 0 1 2 3 0 1 4 - - 2 3 4 with three places.
    assert_eq!(misses(&trace, LRU, 3), 10);
    assert_eq!(misses(&trace, LRU, 4), 8);
    // MIN misses 0 1 2 3 - - 4 - - 2 3 - with three.
    assert_eq!(misses(&trace, Strategy::Optimum, 3), 7);
    assert_eq!(misses(&trace, Strategy::Optimum, 4), 6);
    for strategy in Strategy::all() {
        assert_eq!(misses(&trace, strategy, 1), 12, "{strategy}: nothing repeats at once");
        assert_eq!(misses(&trace, strategy, 5), 5, "{strategy}: each is read once");
    }
}

#[test]
fn each_policy_by_hand() {
    let policy = |policy| Strategy::Policy(policy);
    // 0 is used three times, then 1 and 2 once each; 3 takes the place of one of them.
    let trace = single(4, &[0, 0, 0, 1, 2, 3, 0, 1, 2]);
    // LRU: 0 1 2, 3 for 0, 0 for 1, 1 for 2, 2 for 3.
    assert_eq!(misses(&trace, LRU, 3), 7);
    // LFU keeps 0: 0 1 2, 3 for 1, -, 1 for 2, 2 for 3.
    assert_eq!(misses(&trace, policy(Policy::Lfu), 3), 6);
    assert_eq!(misses(&trace, policy(Policy::Decayed), 3), 6);
    // SLRU protects 0, which was used again.
    assert_eq!(misses(&trace, policy(Policy::Slru), 3), 6);
    // MIN: 3 for any but 0 and 1; that one is read again.
    assert_eq!(misses(&trace, Strategy::Optimum, 3), 5);

    // Old fame: LFU holds on to 0 for good, decay lets it go.
    let mut ids = vec![0; 40];
    ids.extend([1, 2].repeat(60));
    let trace = single(3, &ids);
    // 1 and 2 miss until they have been used as often, 40 times.
    assert_eq!(misses(&trace, policy(Policy::Lfu), 2), 1 + 80);
    assert_eq!(misses(&trace, LRU, 2), 3);
    assert!(misses(&trace, policy(Policy::Decayed), 2) < 40);
}

#[test]
fn experts_of_a_layer_stay_together_while_in_use() {
    // Two of three are used; one by one, 1 would push out 0 or 2 before its turn.
    let trace = trace(
        vec![layer(4, 2, 100)],
        &[vec![vec![0, 1]], vec![vec![2, 0]], vec![vec![1, 2]], vec![vec![3, 1]]],
    );
    // Misses: 0 1; 2 for 1; 1 for 0; 3 for 2.
    assert_eq!(misses(&trace, LRU, 2), 5);
    let outcome = Simulation::new(&trace, Scope::Layer).run(LRU, 2);
    assert_eq!(
        outcome.generation,
        Tally { tokens: 4, choices: 8, misses: 5, streamed: 0, bytes: 5 * 200 }
    );
    assert_eq!(outcome.prompts, Tally::default());
}

#[test]
fn a_batch_that_does_not_fit_streams_the_rest() {
    let trace = trace(
        vec![layer(6, 1, 100)],
        &[vec![vec![5]], vec![vec![0, 1, 0, 2, 3, 5]], vec![vec![0]], vec![vec![5]]],
    );
    let outcome = Simulation::new(&trace, Scope::Layer).run(LRU, 3);
    // 5 is there; 0 and 1 get the other places; 2 and 3 do not.
    let prompts = Tally { tokens: 6, choices: 6, misses: 4, streamed: 2, bytes: 800 };
    assert_eq!(outcome.prompts, prompts);
    let generation = Tally { tokens: 3, choices: 3, misses: 1, streamed: 0, bytes: 200 };
    assert_eq!(outcome.generation, generation);
    assert_eq!(outcome.generation.miss_rate(), 1.0 / 3.0);
    assert_eq!(outcome.prompts.bytes_per_token(), 800.0 / 6.0);
}

#[test]
fn layers_of_one_size_share_places() {
    let layers = || vec![layer(4, 1, 100), layer(4, 1, 100), layer(4, 1, 150)];
    // The first layer changes its mind, the others don't.
    let graphs: Vec<_> = (0..12).map(|token| vec![vec![token % 3], vec![0], vec![0]]).collect();
    let trace = trace(layers(), &graphs);
    let own = Simulation::new(&trace, Scope::Layer);
    assert_eq!(own.capacities(2), [2, 2, 2]);
    assert_eq!(own.capacities(9), [4, 4, 4]);
    assert_eq!(own.capacities(0), [1, 1, 1]);
    assert_eq!(own.memory_bytes(2), 2 * 2 * (101 + 101 + 151));
    assert_eq!(own.run(LRU, 2).generation.misses, 12 + 2);
    let shared = Simulation::new(&trace, Scope::Global);
    assert_eq!(shared.capacities(2), [4, 2]);
    assert_eq!(shared.capacities(0), [2, 2]);
    assert_eq!(shared.memory_bytes(2), 2 * (4 * 101 + 2 * 151));
    assert_eq!(shared.run(LRU, 2).generation.misses, 3 + 2);
    assert_eq!(shared.run(LRU, 2).generation.bytes, 4 * 200 + 300);
}

#[test]
fn the_first_tokens_may_be_left_out() {
    let ids = [0, 1, 2, 0, 1, 2, 0, 1, 2];
    let simulation = Simulation::new(&single(3, &ids), Scope::Layer);
    assert_eq!(simulation.run(LRU, 3).generation.misses, 3);
    let later = simulation.skip(2).run(LRU, 3).generation;
    assert_eq!((later.tokens, later.choices, later.misses), (7, 7, 1));
}

#[test]
fn a_trace_without_graphs_counts_nothing() {
    let simulation = Simulation::new(&single(3, &[]), Scope::Global);
    for strategy in Strategy::all() {
        let outcome = simulation.run(strategy, 2);
        assert_eq!(outcome, Outcome::default());
        assert_eq!(outcome.generation.miss_rate(), 0.0);
        assert_eq!(outcome.generation.bytes_per_token(), 0.0);
    }
}

/// Up to 14 graphs over two layers of up to 6 experts; some are batches.
fn small_trace() -> impl proptest::strategy::Strategy<Value = Trace> {
    (2..6u32, 2..6u32, any::<bool>()).prop_flat_map(|(first, second, same)| {
        let layers = vec![layer(first, 1, 100), layer(second, 1, if same { 100 } else { 130 })];
        let ids = |experts| {
            prop_oneof![
                4 => prop::collection::vec(0..experts, 1),
                1 => prop::collection::vec(0..experts, 1..8),
            ]
        };
        let graph = (ids(first), ids(second)).prop_map(|(first, second)| vec![first, second]);
        prop::collection::vec(graph, 0..14).prop_map(move |graphs| trace(layers.clone(), &graphs))
    })
}

/// The fewest misses of any way to run one pool, by trying all.
///
/// After a step that fits, its keys are in the pool, and any of the others that have room; after
/// one that does not fit, any of all.
fn fewest(steps: &[Vec<u32>], capacity: usize) -> u64 {
    let mut pools = HashMap::from([(BTreeSet::new(), 0)]);
    for step in steps {
        let needed: BTreeSet<u32> = step.iter().copied().collect();
        let mut after = HashMap::new();
        for (pool, cost) in pools {
            let cost = cost + needed.difference(&pool).count() as u64;
            let all: Vec<u32> = pool.union(&needed).copied().collect();
            for mask in 0..1_u32 << all.len() {
                let kept: BTreeSet<u32> =
                    (0..all.len()).filter(|i| mask >> i & 1 == 1).map(|i| all[i]).collect();
                let fits = kept.len() <= capacity;
                if fits && (needed.len() > capacity || kept.is_superset(&needed)) {
                    let least = after.entry(kept).or_insert(cost);
                    *least = cost.min(*least);
                }
            }
        }
        pools = after;
    }
    pools.into_values().min().unwrap_or(0)
}

/// LRU as anyone would write it.
fn plain_lru(steps: &[Vec<u32>], capacity: usize) -> u64 {
    let mut pool: Vec<u32> = Vec::new();
    let mut misses = 0;
    for step in steps {
        let mut needed: Vec<u32> = Vec::new();
        step.iter().for_each(|key| {
            if !needed.contains(key) {
                needed.push(*key)
            }
        });
        for key in &needed {
            if let Some(at) = pool.iter().position(|other| other == key) {
                pool.remove(at);
                pool.push(*key);
            }
        }
        for key in &needed {
            if pool.contains(key) {
                continue;
            }
            misses += 1;
            if pool.len() == capacity {
                match pool.iter().position(|other| !needed.contains(other)) {
                    Some(at) => pool.remove(at),
                    None => continue,
                };
            }
            pool.push(*key);
        }
    }
    misses
}

/// The keys of each step of each pool.
fn steps_of(trace: &Trace, pools: &Pools) -> Vec<Vec<Vec<u32>>> {
    let mut steps = vec![Vec::new(); pools.len()];
    for graph in &trace.graphs {
        for chosen in graph.layers() {
            let keys = chosen.ids.iter().map(|id| pools.key(chosen.layer, *id));
            steps[pools.pool(chosen.layer)].push(keys.collect());
        }
    }
    steps
}

proptest! {
    #[test]
    fn no_policy_beats_the_optimum_and_nothing_else_does(
        trace in small_trace(),
        slots in 1..6usize,
        global in any::<bool>(),
    ) {
        let scope = if global { Scope::Global } else { Scope::Layer };
        let simulation = Simulation::new(&trace, scope);
        let total = |strategy| {
            let Outcome { generation, prompts } = simulation.run(strategy, slots);
            (generation.misses + prompts.misses, generation.bytes + prompts.bytes)
        };
        let best = total(Strategy::Optimum);
        for policy in Policy::ALL {
            let (misses, bytes) = total(Strategy::Policy(policy));
            prop_assert!(misses >= best.0 && bytes >= best.1, "{policy}: {misses} {best:?}");
        }
        let capacities = simulation.capacities(slots);
        let steps = steps_of(&trace, &simulation.pools);
        let pools = || steps.iter().zip(&capacities);
        let least: u64 = pools().map(|(steps, capacity)| fewest(steps, *capacity)).sum();
        prop_assert_eq!(best.0, least);
        let lru: u64 = pools().map(|(steps, capacity)| plain_lru(steps, *capacity)).sum();
        prop_assert_eq!(total(LRU).0, lru);
    }
}

const SHAPE: Shape = Shape { layers: 8, experts: 48, used: 4, tokens: 1200 };
const EIGHTH_TO_THREE_QUARTERS: [usize; 5] = [6, 12, 16, 24, 36];

#[test]
fn synthetic_choices_are_as_local_as_real_ones() {
    let trace = synthetic(SHAPE, 1);
    let (mut repeated, mut choices) = (0, 0);
    for pair in trace.graphs.windows(2) {
        for (before, now) in pair[0].layers().zip(pair[1].layers()) {
            choices += now.ids.len();
            repeated += now.ids.iter().filter(|id| before.ids.contains(id)).count();
        }
    }
    let repeats = repeated as f64 / choices as f64;
    assert!((repeats - 0.36).abs() < 0.03, "{repeats}");
    // Hit rates of LRU measured on the routers of a model, choice by choice.
    let measured = [0.41, 0.63, 0.70, 0.84, 0.95];
    for (slots, measured) in EIGHTH_TO_THREE_QUARTERS.into_iter().zip(measured) {
        let (mut misses, mut choices) = (0, 0);
        for layer in 0..SHAPE.layers {
            let ids = trace.graphs.iter().flat_map(|graph| graph.layers().nth(layer).unwrap().ids);
            let ids: Vec<_> = ids.map(|id| vec![*id]).collect();
            let (first, all) = (&ids[..64 * SHAPE.used], &ids[..]);
            misses += plain_lru(all, slots) - plain_lru(first, slots);
            choices += all.len() - first.len();
        }
        let hits = 1.0 - misses as f64 / choices as f64;
        assert!((hits - measured).abs() < 0.03, "{slots} places: {hits} instead of {measured}");
    }
}

#[test]
fn order_of_the_policies_on_local_choices() {
    let trace = synthetic(SHAPE, 2);
    for scope in Scope::ALL {
        let simulation = Simulation::new(&trace, scope);
        for slots in EIGHTH_TO_THREE_QUARTERS {
            let miss_rate = |strategy| simulation.run(strategy, slots).generation.miss_rate();
            let best = miss_rate(Strategy::Optimum);
            for policy in Policy::ALL {
                let rate = miss_rate(Strategy::Policy(policy));
                assert!(best < rate, "{scope} {slots} {policy}: {rate} against {best}");
            }
            // With small shared pools decay is no better: experts of the layers to come rank last.
            if scope == Scope::Layer {
                let decayed = miss_rate(Strategy::Policy(Policy::Decayed));
                let lru = miss_rate(LRU);
                assert!(decayed < lru, "{slots}: {decayed} against {lru}");
            }
        }
    }
}

/// The half-life is a compromise between pools of different sizes; for none of them is another one
/// much better.
#[test]
fn no_other_half_life_is_much_better() {
    let trace = synthetic(SHAPE, 3);
    let simulation = Simulation::new(&trace, Scope::Layer);
    for slots in EIGHTH_TO_THREE_QUARTERS {
        let rate = |half_life| {
            let pool = |pool| Pool {
                ranking: Ranking::decayed(simulation.pools.keys(pool), half_life),
                ..Pool::new(Policy::Decayed, simulation.pools.keys(pool), slots)
            };
            simulation.play((0..SHAPE.layers).map(pool).collect::<Vec<_>>()).generation.miss_rate()
        };
        let default = simulation.run(Strategy::Policy(Policy::Decayed), slots);
        let default = default.generation.miss_rate();
        assert_eq!(rate(HALF_LIFE), default);
        for half_life in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 1024.0] {
            let other = rate(half_life);
            assert!(default < other * 1.1, "{slots}: {default}, with {half_life} {other}");
        }
    }
}

#[test]
fn speeds_follow_from_bytes() {
    let tally = Tally { tokens: 10, choices: 40, misses: 20, streamed: 0, bytes: 1_000_000_000 };
    let speed = Speed { flash: 500e6, compute: 0.05 };
    // 0.2 s of reads a token.
    assert!((speed.tokens_per_second(&tally) - 4.0).abs() < 1e-9);
    assert!((speed.most_tokens_per_second(&tally) - 5.0).abs() < 1e-9);
    let none = Tally { bytes: 0, ..tally };
    assert!((speed.tokens_per_second(&none) - 20.0).abs() < 1e-9);
    assert!((speed.most_tokens_per_second(&none) - 20.0).abs() < 1e-9);
}

#[test]
fn recorded_times_say_how_fast_the_machine_was() {
    let mut trace = single(3, &[0, 1, 2]);
    assert_eq!(recorded_flash(&trace), None);
    assert_eq!(recorded_compute(&trace), None);
    let ms = Duration::from_millis;
    let read = |started, took| Read {
        layer: 0,
        expert: 0,
        started: ms(started),
        took: ms(took),
        bytes: 1_000_000,
    };
    // 0 to 20 and 30 to 40: two at once count once.
    trace.graphs[0].reads = vec![read(5, 15), read(0, 10)];
    trace.graphs[2].reads = vec![read(30, 10)];
    assert!((recorded_flash(&trace).unwrap() - 100e6).abs() < 1.0);
    // Ends at 50, 150, 240 and 1000 ms, of which 10, 60, 50 and 0 were spent waiting.
    let mut trace = single(3, &[0, 1, 2, 0]);
    let times = [(10, 40, 10), (70, 80, 60), (200, 40, 50), (970, 30, 0)];
    for (graph, (started, took, waited)) in trace.graphs.iter_mut().zip(times) {
        (graph.started, graph.took, graph.waited) = (ms(started), ms(took), ms(waited));
    }
    // 40, 40 and 760 besides.
    assert_eq!(recorded_compute(&trace), Some(0.04));
    trace.graphs.truncate(1);
    assert_eq!(recorded_compute(&trace), None);
}

#[test]
fn names_are_read_as_they_are_shown() {
    for strategy in Strategy::all() {
        assert_eq!(strategy.to_string().parse(), Ok(strategy));
    }
    let error = "mru".parse::<Strategy>().unwrap_err().to_string();
    for strategy in Strategy::all() {
        assert!(error.contains(strategy.name()), "{error}");
    }
}

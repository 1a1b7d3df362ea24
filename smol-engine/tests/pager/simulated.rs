//! The simulator counts what the pager counts.

use crate::fixture::{Fake, Random, Shape, check};
use smol_engine::expert::simulate::{Simulation, Strategy};
use smol_engine::expert::trace::{Graph, LayerHeader, TensorSize, Trace, TraceHeader};
use smol_engine::expert::{ExpertLayer, Pager, PagerConfig, Policy, Scope};
use smol_engine::io::ReadAt;
use std::sync::Arc;

/// Layers of two classes: the experts of one layer have a smaller tensor.
fn layers(shape: Shape) -> (Vec<ExpertLayer>, usize) {
    let (mut layers, len) = shape.layers();
    let tensor = &mut layers[1].tensors[2];
    (tensor.bytes, tensor.stride) = (7000, 7000);
    (layers, len)
}

fn header(layers: &[ExpertLayer]) -> TraceHeader {
    let layers = layers.iter().map(|layer| LayerHeader {
        block: layer.block,
        experts: layer.experts,
        used: layer.used,
        tensors: { layer.tensors.iter() }
            .map(|tensor| TensorSize { file: tensor.stride, memory: tensor.bytes as u64 })
            .collect(),
    });
    TraceHeader { model: "fake".into(), layers: layers.collect() }
}

/// Tokens whose choices drift, and now and then a batch of up to 6 tokens.
fn graphs(layers: &[ExpertLayer], count: usize, random: &mut Random) -> Vec<Graph> {
    let mut favourites: Vec<_> =
        layers.iter().map(|layer| random.choose(layer.used as usize + 1, layer.experts)).collect();
    let mut graphs = Vec::new();
    for _ in 0..count {
        let mut graph = Graph::default();
        let tokens = if random.below(9) == 0 { 2 + random.below(5) } else { 1 };
        for (number, layer) in layers.iter().enumerate() {
            let used = layer.used as usize;
            let mut ids = Vec::new();
            for _ in 0..tokens {
                if random.below(3) == 0 {
                    favourites[number] = random.choose(used + 1, layer.experts);
                }
                let start = random.below(2);
                ids.extend(&favourites[number][start..start + used]);
            }
            graph.push(number, used, &ids);
        }
        graphs.push(graph);
    }
    graphs
}

/// Computes a graph as a model would, with one thread.
fn compute(pager: &Pager, data: &[u8], graph: &Graph) {
    const RUN: usize = 3;
    for chosen in graph.layers() {
        let mut experts: Vec<u32> = Vec::new();
        let mut uses: Vec<u32> = Vec::new();
        for id in chosen.ids {
            match experts.iter().position(|expert| expert == id) {
                Some(at) => uses[at] += 1,
                None => {
                    experts.push(*id);
                    uses.push(1);
                }
            }
        }
        pager.want(RUN, chosen.layer, &experts);
        for tensor in 0..pager.layers()[chosen.layer].tensors.len() {
            pager.begin(RUN, chosen.layer, tensor, &experts, &uses);
            for (index, expert) in experts.iter().enumerate() {
                assert!(check(pager, data, (RUN, chosen.layer, tensor), index, *expert));
                pager.done(RUN, index);
            }
        }
    }
    pager.end(RUN).unwrap();
}

#[test]
fn hits_and_misses_of_a_trace() {
    let shape = Shape { layers: 4, experts: 12, used: 3, packed: false };
    let (layers, len) = layers(shape);
    let mut random = Random(99);
    let graphs = graphs(&layers, 120, &mut random);
    let trace = Trace { header: header(&layers), graphs, damage: None };
    for scope in Scope::ALL {
        let simulation = Simulation::new(&trace, scope);
        for policy in Policy::ALL {
            for slots in [1, 4, 5, 8, 12] {
                let file = Fake::new(len, 512);
                let files = || vec![Arc::clone(&file) as Arc<dyn ReadAt>];
                let config = PagerConfig { policy, scope, ..PagerConfig::default() };
                let budget = Pager::budget_of_slots(&files(), &layers, &config, slots).unwrap();
                let config = PagerConfig { budget, ..config };
                let pager = Pager::new(files(), layers.clone(), &config).unwrap();
                trace.graphs.iter().for_each(|graph| compute(&pager, &file.data, graph));
                let paged = pager.statistics();
                let outcome = simulation.run(Strategy::Policy(policy), slots as usize);
                let (generation, prompts) = (outcome.generation, outcome.prompts);
                let misses = generation.misses + prompts.misses;
                let choices = generation.choices + prompts.choices;
                let what = format!("{policy}, {slots} slots, scope {scope}");
                assert_eq!(paged.misses, misses, "{what}");
                assert_eq!(paged.hits, choices - misses, "{what}");
                assert_eq!(paged.streamed, generation.streamed + prompts.streamed, "{what}");
            }
        }
    }
}

#[test]
fn slots_that_are_asked_for_are_given() {
    for packed in [false, true] {
        let shape = Shape { layers: 3, experts: 16, used: 2, packed };
        let (layers, len) = shape.layers();
        for (readers, scope) in [(0, Scope::Layer), (1, Scope::Global), (9, Scope::Layer)] {
            for slots in 1..=17 {
                let file = || vec![Fake::new(len, 512) as Arc<dyn ReadAt>];
                let config = PagerConfig { readers, scope, ..PagerConfig::default() };
                let budget = Pager::budget_of_slots(&file(), &layers, &config, slots).unwrap();
                let pager = Pager::new(file(), layers.clone(), &PagerConfig { budget, ..config });
                let given = pager.unwrap().statistics().slots;
                let least = if scope == Scope::Layer { 3 * 2 } else { 2 * 2 };
                assert_eq!(given, (3 * u64::from(slots)).clamp(least, 48), "{readers} readers");
            }
        }
    }
}

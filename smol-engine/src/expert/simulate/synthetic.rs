//! Router choices that are local in time and uneven, as a real model's are.

use crate::expert::trace::{Graph, LayerHeader, TensorSize, Trace, TraceHeader};
use std::f64::consts::TAU;

/// What the routers of a generated trace have and choose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) layers: usize,
    pub(super) experts: u32,
    pub(super) used: usize,
    pub(super) tokens: usize,
}

/// Features of the hidden state that a router sees: slow ones and fast ones.
const SLOW: usize = 24;
const FAST: usize = 48;
/// What is left of a feature after a token.
const SLOW_MEMORY: [f64; 4] = [0.98, 0.9, 0.6, 0.3];
const FAST_MEMORY: f64 = 0.25;
/// Share of the logits' variance that comes from slow features.
const SLOW_SHARE: f64 = 0.65;
/// How fast the bias falls with the logarithm of an expert's rank.
const SKEW: f64 = 0.4;

/// Generates a trace of single tokens.
pub(super) fn trace(shape: Shape, seed: u64) -> Trace {
    let size = TensorSize { file: 1_000_000, memory: 1_100_000 };
    let header = |block| LayerHeader {
        block,
        experts: shape.experts,
        used: shape.used as u32,
        tensors: vec![size],
    };
    let mut layers: Vec<_> =
        (0..shape.layers).map(|layer| Router::new(shape, seed * 1000 + layer as u64)).collect();
    let graphs = (0..shape.tokens).map(|_| {
        let mut graph = Graph::default();
        for (layer, router) in layers.iter_mut().enumerate() {
            graph.push(layer, shape.used, &router.choose(shape.used));
        }
        graph
    });
    Trace {
        graphs: graphs.collect(),
        header: TraceHeader {
            model: "synthetic".into(),
            layers: (0..shape.layers as u32).map(header).collect(),
        },
        damage: None,
    }
}

struct Router {
    noise: Noise,
    state: Vec<f64>,
    weights: Vec<Vec<f64>>,
    bias: Vec<f64>,
}

impl Router {
    fn new(shape: Shape, seed: u64) -> Self {
        let mut noise = Noise(seed);
        let weights = (0..shape.experts).map(|_| {
            let mut slow = noise.unit(SLOW, SLOW_SHARE.sqrt());
            slow.extend(noise.unit(FAST, (1.0 - SLOW_SHARE).sqrt()));
            slow
        });
        let weights = weights.collect();
        let mut bias: Vec<_> =
            (1..=shape.experts).map(|rank| -SKEW * f64::from(rank).ln()).collect();
        for at in (1..bias.len()).rev() {
            bias.swap(at, (noise.uniform() * (at + 1) as f64) as usize);
        }
        let state = (0..SLOW + FAST).map(|_| noise.normal()).collect();
        Self { noise, state, weights, bias }
    }

    fn choose(&mut self, used: usize) -> Vec<u32> {
        for (feature, value) in self.state.iter_mut().enumerate() {
            let memory = match feature {
                ..SLOW => SLOW_MEMORY[feature % SLOW_MEMORY.len()],
                _ => FAST_MEMORY,
            };
            *value = memory * *value + (1.0 - memory * memory).sqrt() * self.noise.normal();
        }
        let logit = |expert: &u32| {
            let expert = *expert as usize;
            let product = self.weights[expert].iter().zip(&self.state).map(|(w, x)| w * x);
            product.sum::<f64>() + self.bias[expert]
        };
        let mut experts: Vec<u32> = (0..self.bias.len() as u32).collect();
        experts.sort_by(|a, b| logit(b).total_cmp(&logit(a)));
        experts.truncate(used);
        experts
    }
}

/// Random numbers (SplitMix64).
pub(super) struct Noise(pub(super) u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0 to 1, without 1.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }

    /// A random vector of this length.
    fn unit(&mut self, features: usize, length: f64) -> Vec<f64> {
        let mut vector: Vec<_> = (0..features).map(|_| self.normal()).collect();
        let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        vector.iter_mut().for_each(|x| *x *= length / norm);
        vector
    }
}

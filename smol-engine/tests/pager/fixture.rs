//! Models to page from.

pub use crate::files::{Fake, Outcome, Random, Reversed, eventually};
use smol_engine::expert::{ExpertLayer, ExpertTensor, Packer, Pager, PagerConfig};
use smol_engine::io::ReadAt;
use std::sync::Arc;

/// What a model to page from looks like.
#[derive(Clone, Copy)]
pub struct Shape {
    pub layers: u32,
    pub experts: u32,
    pub used: u32,
    pub packed: bool,
}

/// Bytes of the gate, up and down tensor of an expert: on no boundary of anything.
pub const SIZES: [usize; 3] = [5000, 5000, 7300];

impl Shape {
    pub const SMALL: Self = Self { layers: 3, experts: 8, used: 2, packed: false };

    /// Returns the layers and the bytes of a file that they lie in.
    pub fn layers(self) -> (Vec<ExpertLayer>, usize) {
        let mut offset = 1234_u64;
        let mut layers = Vec::new();
        for block in 0..self.layers {
            let mut tensors = Vec::new();
            for (number, size) in SIZES.into_iter().enumerate() {
                let packed = self.packed && number != 1;
                tensors.push(ExpertTensor {
                    name: format!("blk.{block}.{number}"),
                    file: 0,
                    offset,
                    stride: size as u64,
                    bytes: if packed { size + 96 } else { size },
                    packer: packed.then(|| Arc::new(Reversed) as Arc<dyn Packer>),
                });
                offset += size as u64 * u64::from(self.experts) + 160;
            }
            layers.push(ExpertLayer { block, experts: self.experts, used: self.used, tensors });
        }
        (layers, offset as usize)
    }

    /// Returns the least budget.
    pub fn floor(self, config: &PagerConfig, alignment: usize) -> u64 {
        let (layers, len) = self.layers();
        let files: [Arc<dyn ReadAt>; 1] = [Fake::new(len, alignment)];
        Pager::least_budget(&files, &layers, config).unwrap()
    }

    /// Makes a pager of a file in memory.
    pub fn pager(self, config: &PagerConfig, alignment: usize) -> (Arc<Pager>, Arc<Fake>) {
        let (layers, len) = self.layers();
        let file = Fake::new(len, alignment);
        (Pager::new(vec![Arc::clone(&file) as Arc<dyn ReadAt>], layers, config).unwrap(), file)
    }
}

/// Waits for an item and checks its bytes. `false`: the run has failed.
pub fn check(
    pager: &Pager,
    data: &[u8],
    (run, layer, tensor): (usize, usize, usize),
    index: usize,
    expert: u32,
) -> bool {
    let Some(weights) = pager.wait(run, index) else { return false };
    let tensor = &pager.layers()[layer].tensors[tensor];
    // SAFETY: wait() has returned the address of so many bytes, and done() is called later.
    let weights = unsafe { std::slice::from_raw_parts(weights, tensor.bytes) };
    let start = (tensor.offset + u64::from(expert) * tensor.stride) as usize;
    let plain = &data[start..start + tensor.stride as usize];
    match &tensor.packer {
        None => assert!(weights == plain, "expert {expert} of {}", tensor.name),
        Some(packer) => {
            let mut packed = vec![0; tensor.bytes];
            packer.pack(plain, &mut packed);
            assert!(weights == packed, "expert {expert} of {}, packed", tensor.name);
        }
    }
    true
}

/// Computes one layer with one thread. `false`: the run has failed.
pub fn layer(pager: &Pager, data: &[u8], run: usize, layer: usize, experts: &[u32]) -> bool {
    for tensor in 0..pager.layers()[layer].tensors.len() {
        pager.begin(run, layer, tensor, experts, &vec![1; experts.len()]);
        for (index, &expert) in experts.iter().enumerate() {
            if !check(pager, data, (run, layer, tensor), index, expert) {
                return false;
            }
            pager.done(run, index);
        }
    }
    true
}

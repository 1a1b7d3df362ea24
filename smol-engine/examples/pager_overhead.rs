//! What a product with paged experts costs beyond the product, when all experts are in memory.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use smol_engine::expert::{ExpertLayer, ExpertTensor, Pager, PagerConfig, Result};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Experts of a layer, and those that a token chooses.
const EXPERTS: u32 = 128;
const USED: u32 = 8;
const LAYERS: u32 = 4;
const STRIDE: u64 = 4096;
/// Products in one measurement.
const PRODUCTS: u32 = 4000;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut file = tempfile::NamedTempFile::new()?;
    let tensor_len = u64::from(EXPERTS) * STRIDE;
    file.write_all(&vec![7; (u64::from(LAYERS) * 3 * tensor_len) as usize])?;
    let tensor = |number: u32| ExpertTensor {
        name: format!("tensor {number}"),
        file: 0,
        offset: u64::from(number) * tensor_len,
        stride: STRIDE,
        bytes: STRIDE as usize,
        packer: None,
    };
    let layers = (0..LAYERS).map(|block| ExpertLayer {
        block,
        experts: EXPERTS,
        used: USED,
        tensors: (block * 3..block * 3 + 3).map(tensor).collect(),
    });
    let pager = Pager::open([file.path()], layers.collect(), &PagerConfig::default())?;

    // The first rounds bring all experts into memory.
    for first in (0..EXPERTS).step_by(USED as usize) {
        token(&pager, first)?;
    }
    let bytes = pager.statistics().bytes_read;
    let best = (0..50).map(|_| measure(&pager)).collect::<Result<Vec<_>>>()?;
    assert_eq!(bytes, pager.statistics().bytes_read, "all experts are in memory");
    let best = best.into_iter().min().unwrap_or_default();
    println!("{} ns a product with {USED} experts", best.as_nanos());
    Ok(())
}

/// Returns the time of one product.
fn measure(pager: &Pager) -> Result<Duration> {
    let start = Instant::now();
    let mut first = 0;
    for _ in 0..PRODUCTS / (3 * LAYERS) {
        token(pager, first)?;
        first = (first + 3) % (EXPERTS - USED);
    }
    Ok(start.elapsed() / (PRODUCTS / (3 * LAYERS) * 3 * LAYERS))
}

/// Goes through one token's products, without computing anything.
fn token(pager: &Pager, first: u32) -> Result<()> {
    let mut experts = [0; USED as usize];
    for (index, expert) in experts.iter_mut().enumerate() {
        *expert = first + index as u32;
    }
    for layer in 0..LAYERS as usize {
        pager.want(1, layer, &experts);
        for tensor in 0..3 {
            pager.begin(1, layer, tensor, &experts, &[1; USED as usize]);
            for index in 0..USED as usize {
                pager.wait(1, index);
                pager.done(1, index);
            }
        }
    }
    pager.end(1)
}

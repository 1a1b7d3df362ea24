//! A mixture of experts made from a dense model, of any number of experts.
//!
//! Each expert is the dense feed-forward block with small noise of its own, so the mixture says
//! about what the dense model says, whichever experts are chosen, while every expert's bytes are
//! its own.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Result, bail, ensure};
use half::f16;
use nalgebra::DMatrix;
use smol_gguf::TensorType;

use crate::draft::Draft;
use crate::forward::{Forward, tokenize};
use crate::pad::{Matrix, Widened, plan_embeddings};
use crate::quant::{self, Mix};
use crate::rng::Rng;
use crate::router::{self, RouterOptions, RoutingStats};
use crate::source::Source;

/// Architectures that a mixture can be written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoeArch {
    /// `llama`: softmax router, every layer has experts.
    Llama,
    /// `glm4moe`: sigmoid router with a selection bias, one shared expert, the first layer dense.
    Glm4Moe,
}

/// The size and types of a mixture.
#[derive(Debug, Clone, Copy)]
pub struct MoeOptions {
    /// The architecture.
    pub arch: MoeArch,
    /// The number of experts in a layer.
    pub experts: usize,
    /// The number of experts that a token uses.
    pub used: usize,
    /// The type of the experts.
    pub expert_type: TensorType,
    /// The type of all other matrices.
    pub other_type: TensorType,
    /// The share of the feed-forward block's output that the shared expert makes (`glm4moe`).
    pub shared: f32,
    /// The deviation of the factor on each block's scale, apart from one expert to the next.
    pub noise: f32,
    /// The share of quantized bytes in which one bit differs from the dense model's.
    pub flips: f32,
    /// Another seed gives other experts and routers.
    pub seed: u64,
}

/// The most tokens of the text that are used; two thirds fit the routers, the rest measures them.
const TOKENS: usize = 3072;
/// The length of a context while collecting hidden states.
const WINDOW: usize = 512;

/// Writes a mixture made from a dense model, with routers fitted to how the model reads `text`.
///
/// Returns what the routing looks like on a part of the text that the routers were not fitted to.
///
/// # Errors
/// If the model isn't a dense `llama`, the text is shorter than 384 tokens, an option is out of
/// range, or a file can't be read or written.
pub fn moe(input: &Path, text: &str, output: &Path, options: &MoeOptions) -> Result<RoutingStats> {
    ensure!(
        (2..=512).contains(&options.experts) && (1..=options.experts).contains(&options.used),
        "a token uses 1 to all of 2 to 512 experts"
    );
    ensure!((0.0..1.0).contains(&options.shared), "the shared expert makes 0 to 1 of the output");
    let source = Source::open(input)?;
    let model = Widened::to_superblocks(&source)?;
    let sigmoid = options.arch == MoeArch::Glm4Moe;
    let dense = usize::from(sigmoid);
    let layers = model.shape().layers;
    let biases: Vec<Option<Vec<f32>>> = (0..layers)
        .map(|layer| {
            let mut bias = vec![0.0; options.experts];
            let mut rng = Rng::keyed(options.seed, "selection bias", layer as u64);
            rng.fill(&mut bias, 0.0, 0.03);
            sigmoid.then_some(bias)
        })
        .collect();
    let (routers, stats) = fit_routers(&source, text, options, dense, &biases)?;

    let (arch, gating) = if sigmoid { ("glm4moe", 2u32) } else { ("llama", 1) };
    let name = format!("{} experts, {} used", options.experts, options.used);
    let mut draft = Draft::new(model.metadata(arch, &name));
    let expert_mix = Mix { base: options.expert_type, embedding: None, tied: false };
    let mix = Mix {
        base: options.other_type,
        embedding: Some(options.other_type),
        tied: !source.has("output.weight"),
    };
    let metadata = &mut draft.metadata;
    metadata.set("general.file_type", expert_mix.file_type());
    metadata.set(format!("{arch}.expert_count"), options.experts as u32);
    metadata.set(format!("{arch}.expert_used_count"), options.used as u32);
    if sigmoid {
        let width = model.shape().feed_forward as u32;
        metadata.set(format!("{arch}.expert_feed_forward_length"), width);
        metadata.set(format!("{arch}.expert_shared_count"), 1u32);
        metadata.set(format!("{arch}.leading_dense_block_count"), dense as u32);
        metadata.set(format!("{arch}.expert_weights_norm"), true);
        metadata.set(format!("{arch}.expert_weights_scale"), 1.0 - options.shared);
        metadata.set(format!("{arch}.expert_gating_func"), gating);
    }
    plan_embeddings(&mut draft, &model, &mix)?;
    for layer in 0..layers {
        plan_attention(&mut draft, &model, &mix, layer, options.arch)?;
        if layer < dense {
            for matrix in Matrix::FEED_FORWARD {
                plan_matrix(&mut draft, &model, &mix, layer, matrix, "", 1.0);
            }
            continue;
        }
        plan_router(&mut draft, &model, layer, &routers[layer - dense], biases[layer].clone());
        for matrix in Matrix::FEED_FORWARD {
            plan_experts(&mut draft, &model, &expert_mix, layer, matrix, options)?;
            if sigmoid {
                let share = if matrix == Matrix::Down { options.shared } else { 1.0 };
                plan_matrix(&mut draft, &model, &mix, layer, matrix, "_shexp", share);
            }
        }
    }
    draft.write(output)?;
    Ok(stats)
}

/// Fits a router a layer from layer `dense` on, and measures them.
fn fit_routers(
    source: &Source,
    text: &str,
    options: &MoeOptions,
    dense: usize,
    biases: &[Option<Vec<f32>>],
) -> Result<(Vec<DMatrix<f32>>, RoutingStats)> {
    let mut tokens = tokenize(source, text)?;
    tokens.truncate(TOKENS);
    ensure!(tokens.len() >= 384, "{} tokens of text are fewer than 384", tokens.len());
    let window = WINDOW.min(tokens.len() / 3);
    let windows: Vec<&[u32]> = tokens.chunks_exact(window).collect();
    let train = windows.len() * 2 / 3;
    let mut stats = RoutingStats::default();
    let mut routers = Vec::new();
    let router_options = if dense > 0 { RouterOptions::SIGMOID } else { RouterOptions::SOFTMAX };
    Forward::new(source)?.run(&windows, |layer, states| {
        if layer < dense {
            return Ok(());
        }
        let mut rng = Rng::keyed(options.seed, "router", layer as u64);
        let router = router::fit(&states[..train], options.experts, &router_options, &mut rng)?;
        stats.add(&router, &states[train..], options.used, biases[layer].as_deref());
        routers.push(router);
        eprintln!("router {} of {} fitted", layer + 1, biases.len());
        Ok(())
    })?;
    Ok((routers, stats))
}

fn plan_router(
    draft: &mut Draft<'_>,
    model: &Widened<'_>,
    layer: usize,
    router: &DMatrix<f32>,
    bias: Option<Vec<f32>>,
) {
    let (experts, width) = (router.nrows(), model.shape().hidden);
    let mut values = vec![0.0; experts * width];
    for (row, out) in router.row_iter().zip(values.chunks_exact_mut(width)) {
        row.iter().zip(out).for_each(|(from, to)| *to = *from);
    }
    let dims = [width as u64, experts as u64];
    draft.floats(&format!("blk.{layer}.ffn_gate_inp.weight"), &dims, values);
    if let Some(bias) = bias {
        draft.floats(&format!("blk.{layer}.exp_probs_b.bias"), &[dims[1]], bias);
    }
}

/// Plans the norms and attention of a layer.
fn plan_attention<'a>(
    draft: &mut Draft<'a>,
    model: &'a Widened<'a>,
    mix: &Mix,
    layer: usize,
    arch: MoeArch,
) -> Result<()> {
    let second = if arch == MoeArch::Glm4Moe { "post_attention_norm" } else { "ffn_norm" };
    for (from, to) in [("attn_norm", "attn_norm"), ("ffn_norm", second)] {
        let weights = model.norm(&format!("blk.{layer}.{from}.weight"))?;
        let dims = [model.shape().hidden as u64];
        draft.floats(&format!("blk.{layer}.{to}.weight"), &dims, weights);
    }
    for matrix in Matrix::ATTENTION {
        let rotated = matches!(matrix, Matrix::Query | Matrix::Key);
        if arch == MoeArch::Llama || !rotated {
            plan_matrix(draft, model, mix, layer, matrix, "", 1.0);
            continue;
        }
        // This architecture rotates features half a head apart, `llama` neighbours: even rows of
        // a head go to its first half, odd ones to its second.
        let name = format!("blk.{layer}.{}.weight", matrix.name());
        let (rows, columns) = matrix.size(model.shape());
        let dims = [columns as u64, rows as u64];
        let head = model.shape().head_len;
        draft.rows(&name, &dims, mix.tensor_type(&name, &dims), move |rows| {
            let mut out = Vec::with_capacity(rows.len() * columns);
            for row in rows {
                let (start, within) = (row / head * head, row % head);
                let from = start + within % (head / 2) * 2 + within / (head / 2);
                out.extend(model.rows(layer, matrix, from..from + 1)?);
            }
            Ok(out)
        });
    }
    Ok(())
}

fn plan_matrix<'a>(
    draft: &mut Draft<'a>,
    model: &'a Widened<'a>,
    mix: &Mix,
    layer: usize,
    matrix: Matrix,
    suffix: &str,
    scale: f32,
) {
    let name = format!("blk.{layer}.{}{suffix}.weight", matrix.name());
    let (rows, columns) = matrix.size(model.shape());
    let dims = [columns as u64, rows as u64];
    draft.rows(&name, &dims, mix.tensor_type(&name, &dims), move |rows| {
        let mut values = model.rows(layer, matrix, rows)?;
        values.iter_mut().for_each(|value| *value *= scale);
        Ok(values)
    });
}

fn plan_experts<'a>(
    draft: &mut Draft<'a>,
    model: &'a Widened<'a>,
    mix: &Mix,
    layer: usize,
    matrix: Matrix,
    options: &MoeOptions,
) -> Result<()> {
    let name = format!("blk.{layer}.{}_exps.weight", matrix.name());
    let (rows, columns) = matrix.size(model.shape());
    let dims = [columns as u64, rows as u64, options.experts as u64];
    let ty = mix.tensor_type(&name, &dims);
    let layout = Layout::of(ty)?;
    let (seed, noise, flips) = (options.seed, options.noise, options.flips);
    let dense = OnceLock::new();
    draft.pieces(&name.clone(), &dims, ty, options.experts, move |expert| {
        let dense = match dense.get() {
            Some(bytes) => bytes,
            None => {
                let bytes = quant::encode(ty, &model.rows(layer, matrix, 0..rows)?, columns)?;
                dense.get_or_init(|| bytes)
            }
        };
        let mut bytes: Vec<u8> = dense.clone();
        layout.perturb(&mut bytes, noise, flips, &mut Rng::keyed(seed, &name, expert as u64));
        Ok(bytes)
    });
    Ok(())
}

/// Where a block of a quantized type keeps its scales and values.
struct Layout {
    block: usize,
    /// Offsets of half-precision factors of the whole block.
    scales: &'static [usize],
    /// The bytes whose bits are the low bits of values, and which bits those are.
    values: std::ops::Range<usize>,
    low_bits: &'static [u8],
}

impl Layout {
    fn of(ty: TensorType) -> Result<Self> {
        use TensorType::*;
        let (scales, values, low_bits): (&[usize], _, &[u8]) = match ty {
            F16 => (&[0], 0..0, &[]),
            Q8_0 => (&[0], 2..34, &[0]),
            Q4_0 | IQ4_NL => (&[0], 2..18, &[0, 4]),
            Q4_1 => (&[0, 2], 4..20, &[0, 4]),
            Q5_0 => (&[0], 6..22, &[0, 4]),
            Q5_1 => (&[0, 2], 8..24, &[0, 4]),
            Q2_K => (&[80, 82], 16..80, &[0, 2, 4, 6]),
            Q3_K => (&[108], 32..96, &[0, 2, 4, 6]),
            Q4_K => (&[0, 2], 16..144, &[0, 4]),
            Q5_K => (&[0, 2], 48..176, &[0, 4]),
            Q6_K => (&[208], 0..128, &[0, 4]),
            Q1_0 => (&[0], 2..18, &[0, 1, 2, 3, 4, 5, 6, 7]),
            Q2_0 => (&[0], 2..18, &[0, 2, 4, 6]),
            // A flipped bit would not be a ternary value.
            TQ1_0 => (&[52], 0..0, &[]),
            TQ2_0 => (&[64], 0..0, &[]),
            other => bail!("experts of type {other} can't be made"),
        };
        Ok(Self { block: ty.block_bytes() as usize, scales, values, low_bits })
    }

    /// Multiplies each block's scales by about 1 and flips the low bit of some values.
    fn perturb(&self, bytes: &mut [u8], noise: f32, flips: f32, rng: &mut Rng) {
        for block in bytes.chunks_exact_mut(self.block) {
            let factor = 1.0 + noise * rng.normal();
            for &at in self.scales {
                let scale = f16::from_le_bytes([block[at], block[at + 1]]).to_f32() * factor;
                block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            }
        }
        let (blocks, values) = (bytes.len() / self.block, self.values.len());
        let count = (blocks as f32 * values as f32 * flips) as usize;
        for _ in 0..count.min(bytes.len() * self.low_bits.len()) {
            let at = rng.below(blocks) * self.block + self.values.start + rng.below(values);
            bytes[at] ^= 1 << self.low_bits[rng.below(self.low_bits.len())];
        }
    }
}

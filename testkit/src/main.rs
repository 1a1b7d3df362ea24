//! Command line of the test-model writer.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use smol_gguf::TensorType;
use testkit::deep::DeepOptions;
use testkit::moe::{self, MoeArch, MoeOptions};
use testkit::quant::{self, Mix};
use testkit::source::{Shape, Source};
use testkit::{bad, deep, pad, tiny};

/// Writes models to test and measure with.
///
/// The tiny ones have random weights. The large ones are made from a small real model of the
/// `llama` architecture (SmolLM2-135M, say) and say what it says; experts and layers that change
/// nothing make them as large as a measurement needs.
#[derive(Parser)]
#[command(name = "testkit", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes the tiny random models into a folder.
    Tiny {
        /// The folder; it is created if it doesn't exist.
        folder: PathBuf,
        /// Only models whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// Another seed gives other weights.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Writes broken variants of a model, each one fault away from it.
    Bad {
        /// A good model.
        model: PathBuf,
        /// The folder; it is created if it doesn't exist.
        folder: PathBuf,
    },
    /// Widens a model to columns that are a multiple of 256, so that every tensor type applies.
    ///
    /// The result is F16 and computes the same function: SmolLM2's 576 columns become 768.
    Pad {
        /// A dense model of the llama architecture.
        input: PathBuf,
        /// The file to write.
        output: PathBuf,
        /// The number of columns; the least multiple of 256 without.
        #[arg(long, requires = "heads")]
        columns: Option<usize>,
        /// The number of query heads.
        #[arg(long, requires = "columns")]
        heads: Option<usize>,
        /// The number of feed-forward units.
        #[arg(long, requires = "columns")]
        units: Option<usize>,
        /// Fill weights that don't matter with noise from this seed instead of zeros.
        #[arg(long)]
        noise: Option<u64>,
    },
    /// Converts a model's matrices to another type; vectors stay F32.
    Quant {
        /// The type: F16, Q8_0, Q4_K, TQ2_0, ...
        #[arg(value_parser = parse_type)]
        ty: TensorType,
        /// Any model.
        input: PathBuf,
        /// The file to write.
        output: PathBuf,
        /// Use the type for the embeddings and the output matrix as well.
        #[arg(long)]
        pure: bool,
        /// The type of the embeddings and the output matrix.
        #[arg(long, value_parser = parse_type, conflicts_with = "pure")]
        embedding: Option<TensorType>,
    },
    /// Makes a mixture of experts of any size from a dense model.
    ///
    /// Every expert is the dense feed-forward block with a little noise of its own. The routers
    /// are fitted to how the model reads a text, so that routing is uneven and local as in real
    /// mixtures; what it looks like on the rest of the text is printed.
    Moe {
        /// A dense model of the llama architecture with a byte-pair vocabulary.
        input: PathBuf,
        /// The file to write.
        output: PathBuf,
        /// A text of at least 384 tokens, better 3072: about 13 kB.
        #[arg(long)]
        text: PathBuf,
        /// The architecture to write.
        #[arg(long, value_enum, default_value_t = ArchArg::Llama)]
        arch: ArchArg,
        /// The number of experts in a layer.
        #[arg(long, default_value_t = 8)]
        experts: usize,
        /// The number of experts that a token uses.
        #[arg(long, default_value_t = 2)]
        used: usize,
        /// The type of the experts.
        #[arg(long = "type", value_parser = parse_type, default_value = "Q4_K")]
        ty: TensorType,
        /// The type of all other matrices.
        #[arg(long, value_parser = parse_type, default_value = "Q8_0")]
        other: TensorType,
        /// The share of the output that glm4moe's shared expert makes.
        #[arg(long, default_value_t = 0.6)]
        shared: f32,
        /// The deviation of the factors by which experts differ.
        #[arg(long, default_value_t = 0.05)]
        noise: f32,
        /// The share of bytes in which an expert differs by one bit.
        #[arg(long, default_value_t = 0.02)]
        flips: f32,
        /// Another seed gives other experts and routers.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Makes a dense model larger than a memory limit: wider, and with layers that add zero.
    ///
    /// The defaults turn SmolLM2-135M into 3 billion weights, 1.9 GB.
    Deep {
        /// A dense model of the llama architecture.
        input: PathBuf,
        /// The file to write.
        output: PathBuf,
        /// The number of columns.
        #[arg(long, default_value_t = 2304)]
        columns: usize,
        /// The number of query heads.
        #[arg(long, default_value_t = 36)]
        heads: usize,
        /// The number of feed-forward units.
        #[arg(long, default_value_t = 6144)]
        units: usize,
        /// The number of layers.
        #[arg(long, default_value_t = 54)]
        layers: usize,
        /// The type of the layers' matrices.
        #[arg(long = "type", value_parser = parse_type, default_value = "Q4_K")]
        ty: TensorType,
        /// The type of the embeddings and the output matrix.
        #[arg(long, value_parser = parse_type, default_value = "Q8_0")]
        embedding: TensorType,
        /// The seed of all weights that don't matter.
        #[arg(long, default_value_t = 7)]
        seed: u64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum ArchArg {
    /// Softmax router.
    Llama,
    /// Sigmoid router with selection bias, shared expert, first layer dense.
    Glm4moe,
}

fn parse_type(name: &str) -> Result<TensorType, String> {
    quant::parse_type(name).map_err(|error| error.to_string())
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Tiny { folder, only, seed } => write_tiny(&folder, only.as_deref(), seed),
        Command::Bad { model, folder } => {
            create_folder(&folder)?;
            bad::write_all(&model, &folder)
        }
        Command::Pad { input, output, columns, heads, units, noise } => {
            let shape = match (columns, heads) {
                (Some(hidden), Some(heads)) => Some(widened(&input, hidden, heads, units)?),
                _ => None,
            };
            pad::pad(&input, &output, shape, noise)
        }
        Command::Quant { ty, input, output, pure, embedding } => {
            let embedding = if pure { Some(ty) } else { embedding };
            quant::quantize(&input, &output, Mix { base: ty, embedding, tied: false })
        }
        Command::Moe {
            input,
            output,
            text,
            arch,
            experts,
            used,
            ty,
            other,
            shared,
            noise,
            flips,
            seed,
        } => {
            let options = MoeOptions {
                arch: match arch {
                    ArchArg::Llama => MoeArch::Llama,
                    ArchArg::Glm4moe => MoeArch::Glm4Moe,
                },
                experts,
                used,
                expert_type: ty,
                other_type: other,
                shared,
                noise,
                flips,
                seed,
            };
            let text = std::fs::read_to_string(&text)
                .with_context(|| format!("reading {}", text.display()))?;
            let stats = moe::moe(&input, &text, &output, &options)?;
            eprintln!("{stats}");
            Ok(())
        }
        Command::Deep { input, output, columns, heads, units, layers, ty, embedding, seed } => {
            let mix = Mix { base: ty, embedding: Some(embedding), tied: false };
            let options =
                DeepOptions { hidden: columns, heads, feed_forward: units, layers, mix, seed };
            deep::deep(&input, &output, &options)
        }
    }
}

fn write_tiny(folder: &Path, only: Option<&str>, seed: u64) -> Result<()> {
    create_folder(folder)?;
    let mut entries = tiny::all();
    entries.retain(|entry| only.is_none_or(|part| entry.name.contains(part)));
    if entries.is_empty() {
        let names: Vec<&str> = tiny::all().iter().map(|entry| entry.name).collect();
        bail!("no model's name contains {}; there are {}", only.unwrap_or(""), names.join(", "));
    }
    for mut entry in entries {
        entry.options.seed = seed;
        let model = entry.write_in(folder)?;
        for file in model.files() {
            eprintln!("{}", file.display());
        }
    }
    Ok(())
}

fn create_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))
}

fn widened(input: &Path, hidden: usize, heads: usize, units: Option<usize>) -> Result<Shape> {
    let from = Source::open(input)?.llama_shape()?;
    let feed_forward = units.unwrap_or(from.feed_forward);
    let kv_heads = heads * from.kv_heads / from.heads;
    Ok(Shape { hidden, heads, kv_heads, feed_forward, ..from })
}

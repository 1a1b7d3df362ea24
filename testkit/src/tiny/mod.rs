//! Models with random weights, a few megabytes each, for every architecture under test.
//!
//! The same options give the same bytes on every machine as long as the weights are `F16`, `BF16`
//! or `F32`; other types go through ggml's quantizers, whose last bit may depend on the compiler.

mod chat;
mod layers;
mod models;
pub mod vocab;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use smol_gguf::{Gguf, SplitBy, TensorType};

use layers::Builder;

/// An architecture that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arch {
    /// `llama`, dense, with a vocabulary that merges by score.
    Llama,
    /// `llama` with a mixture of experts behind a softmax router.
    LlamaMoe,
    /// `qwen3`, dense, with normalized queries and keys.
    Qwen3,
    /// `qwen35`: gated delta-net layers, every fourth layer attention.
    Qwen35,
    /// `bailingmoe2`: experts in groups, one shared expert, sigmoid router.
    BailingMoe2,
    /// `bailingmoe3`: delta attention, latent attention in the last layer, experts in groups.
    BailingMoe3,
    /// `granitehybrid`: Mamba-2 layers, one layer attention.
    GraniteHybrid,
    /// `gemma3`: sliding-window attention.
    Gemma3,
    /// `lfm2`: short convolutions, one layer attention.
    Lfm2,
    /// `glm4moe`: experts behind a sigmoid router with selection bias, one shared expert.
    Glm4Moe,
}

impl Arch {
    /// Every architecture.
    pub const ALL: [Self; 10] = [
        Self::Llama,
        Self::LlamaMoe,
        Self::Qwen3,
        Self::Qwen35,
        Self::BailingMoe2,
        Self::BailingMoe3,
        Self::GraniteHybrid,
        Self::Gemma3,
        Self::Lfm2,
        Self::Glm4Moe,
    ];

    /// Returns the value of `general.architecture`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Llama | Self::LlamaMoe => "llama",
            Self::Qwen3 => "qwen3",
            Self::Qwen35 => "qwen35",
            Self::BailingMoe2 => "bailingmoe2",
            Self::BailingMoe3 => "bailingmoe3",
            Self::GraniteHybrid => "granitehybrid",
            Self::Gemma3 => "gemma3",
            Self::Lfm2 => "lfm2",
            Self::Glm4Moe => "glm4moe",
        }
    }

    /// Returns a name that is distinct among [`Arch::ALL`].
    pub fn name(self) -> &'static str {
        if self == Self::LlamaMoe { "llama-moe" } else { self.key() }
    }

    /// Reports whether the model has routed experts.
    pub fn has_experts(self) -> bool {
        matches!(self, Self::LlamaMoe | Self::BailingMoe2 | Self::BailingMoe3 | Self::Glm4Moe)
    }

    /// Reports whether some layers keep a recurrent state instead of keys and values.
    pub fn is_recurrent(self) -> bool {
        matches!(self, Self::Qwen35 | Self::BailingMoe3 | Self::GraniteHybrid | Self::Lfm2)
    }
}

/// The chat template of a tiny model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Template {
    /// One in the style of the architecture; `llama` has none.
    #[default]
    Usual,
    /// No template.
    None,
    /// A template that doesn't parse.
    Broken,
}

/// The head of a block that drafts a further token (multi-token prediction).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftHead {
    /// That of the model.
    Shared,
    /// One of its own.
    Own,
}

/// What can be chosen about a tiny model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TinyOptions {
    /// Another seed gives other weights.
    pub seed: u64,
    /// The type of the matrices; norms, biases, routers and convolutions are `F32`.
    pub weights: TensorType,
    /// Whether the embeddings have that type too, instead of one with more bits.
    pub pure: bool,
    /// Whether the token embedding also makes the logits; `None` is the architecture's habit.
    pub tied: Option<bool>,
    /// Whether a `llama` has a byte-level vocabulary and a ChatML template, as SmolLM2 has.
    pub byte_level: bool,
    /// The number of tokens, at least 700.
    pub vocab: usize,
    /// The number of layers, at least 2; `None` is the least that shows every kind of layer.
    pub layers: Option<u32>,
    /// The number of experts of architectures that have them: a multiple of 4, at least 8.
    pub experts: u32,
    /// The chat template.
    pub template: Template,
    /// The number of files that the model is split into.
    pub shards: u16,
    /// Whether a `qwen35` has a block that drafts a further token.
    pub drafts: Option<DraftHead>,
}

impl Default for TinyOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            weights: TensorType::F16,
            pure: false,
            tied: None,
            byte_level: false,
            vocab: 1024,
            layers: None,
            experts: 8,
            template: Template::Usual,
            shards: 1,
            drafts: None,
        }
    }
}

/// A tiny model that has been written.
#[derive(Debug)]
pub struct TinyModel {
    files: Vec<PathBuf>,
}

impl TinyModel {
    /// Returns the file to load: the model, or its first shard.
    pub fn path(&self) -> &Path {
        &self.files[0]
    }

    /// Returns all files: one, or one a shard.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Returns the file system's record of the file to load.
    ///
    /// # Errors
    /// If the file has been removed.
    pub fn metadata(&self) -> std::io::Result<std::fs::Metadata> {
        File::open(self.path())?.metadata()
    }
}

/// Writes a tiny model to `path`, or to shards named after it.
///
/// # Errors
/// If an option is out of its range or a file can't be written.
pub fn write(path: &Path, arch: Arch, options: &TinyOptions) -> Result<TinyModel> {
    ensure!(options.vocab >= 700, "{} tokens are fewer than 700", options.vocab);
    ensure!(options.layers.is_none_or(|n| (2..=512).contains(&n)), "2 to 512 layers");
    ensure!(
        options.experts >= 8 && options.experts.is_multiple_of(4) && options.experts <= 512,
        "the number of experts is a multiple of 4 from 8 to 512"
    );
    ensure!(options.shards >= 1, "a model has at least one file");
    ensure!(
        options.drafts.is_none() || arch == Arch::Qwen35,
        "of these architectures only qwen35 drafts tokens"
    );
    let mut builder = Builder::new(arch, options);
    chat::set_tokenizer(&mut builder);
    models::build(&mut builder);
    let draft = builder.finish();
    if options.shards == 1 {
        draft.write(path)?;
        return Ok(TinyModel { files: vec![path.to_owned()] });
    }
    let whole = path.with_extension("whole.gguf");
    draft.write(&whole)?;
    let files = split(&whole, &path.with_extension(""), options.shards.into());
    std::fs::remove_file(&whole).context("removing the unsplit model")?;
    Ok(TinyModel { files: files? })
}

/// Splits a model into this many files.
fn split(whole: &Path, prefix: &Path, shards: usize) -> Result<Vec<PathBuf>> {
    let model = Gguf::open(whole)?;
    let tensors = model.tensors().len();
    ensure!(shards <= tensors, "{tensors} tensors can't fill {shards} files");
    let files = smol_gguf::split(&model, prefix, SplitBy::Tensors(tensors.div_ceil(shards)))?;
    ensure!(files.len() == shards, "{tensors} tensors fill {} files, not {shards}", files.len());
    Ok(files)
}

/// A model of the list that tests go through.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// A name that is distinct within the list and fit for a file name.
    pub name: &'static str,
    /// The architecture.
    pub arch: Arch,
    /// The options.
    pub options: TinyOptions,
}

impl Entry {
    /// Writes the model to `NAME.gguf` in a folder.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write_in(&self, folder: &Path) -> Result<TinyModel> {
        write(&folder.join(self.name).with_extension("gguf"), self.arch, &self.options)
    }
}

/// Lists the models that tests go through: each architecture, and variants by weight type, head,
/// vocabulary, template and shards.
pub fn all() -> Vec<Entry> {
    use TensorType::*;
    let usual = TinyOptions::default();
    let mut list: Vec<Entry> = Arch::ALL
        .into_iter()
        .map(|arch| Entry { name: arch.name(), arch, options: usual })
        .collect();
    let mut add = |name, arch, options| list.push(Entry { name, arch, options });
    for (name, weights) in [
        ("llama-q8_0", Q8_0),
        ("llama-q4_0", Q4_0),
        ("llama-q4_k", Q4_K),
        ("llama-q2_k", Q2_K),
        ("llama-tq1_0", TQ1_0),
        ("llama-tq2_0", TQ2_0),
        ("llama-iq4_nl", IQ4_NL),
    ] {
        add(name, Arch::Llama, TinyOptions { weights, ..usual });
    }
    for (name, weights) in [("qwen3-q1_0", Q1_0), ("qwen3-q2_0", Q2_0)] {
        add(name, Arch::Qwen3, TinyOptions { weights, pure: true, ..usual });
    }
    for (name, arch) in [
        ("llama-moe-q4_k", Arch::LlamaMoe),
        ("qwen35-q4_k", Arch::Qwen35),
        ("bailingmoe2-q4_k", Arch::BailingMoe2),
        ("bailingmoe3-q4_k", Arch::BailingMoe3),
        ("granitehybrid-q4_k", Arch::GraniteHybrid),
        ("gemma3-q4_k", Arch::Gemma3),
        ("lfm2-q4_k", Arch::Lfm2),
        ("glm4moe-q4_k", Arch::Glm4Moe),
    ] {
        add(name, arch, TinyOptions { weights: Q4_K, ..usual });
    }
    add("llama-bytes", Arch::Llama, TinyOptions { byte_level: true, ..usual });
    add("llama-untied", Arch::Llama, TinyOptions { tied: Some(false), ..usual });
    add("qwen3-tied", Arch::Qwen3, TinyOptions { tied: Some(true), ..usual });
    add("qwen3-vocab-2k", Arch::Qwen3, TinyOptions { vocab: 2048, ..usual });
    add(
        "qwen3-vocab-49k",
        Arch::Qwen3,
        TinyOptions { vocab: 49_152, weights: Q4_0, tied: Some(true), ..usual },
    );
    add("qwen3-no-template", Arch::Qwen3, TinyOptions { template: Template::None, ..usual });
    add("qwen3-broken-template", Arch::Qwen3, TinyOptions { template: Template::Broken, ..usual });
    add("llama-shards", Arch::Llama, TinyOptions { shards: 3, ..usual });
    list
}

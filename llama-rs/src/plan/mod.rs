//! How a model runs in an amount of RAM: what is where, what is read from the file for each token, and how fast that can
//! be at best.
//!
//! [`ModelBuilder::plan`](crate::ModelBuilder::plan) makes a [`MemoryPlan`] without loading anything, by the code that
//! decides when the model is loaded.

mod advice;
mod context;
mod needs;
mod program;
mod streamed;
mod weights;

use serde::Serialize;

pub(crate) use advice::advice;
pub use context::PlannedContext;
pub(crate) use needs::{Needs, Split};
pub(crate) use program::program_bytes;
pub use program::usable_ram;
pub(crate) use streamed::{StreamWishes, Streamed};
pub(crate) use weights::{Matrix, Weights};

/// How a model will run: its memory by part, what is read for a token, and what would make it faster.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// let plan = llama_rs::Model::builder("model.gguf").ram(900 << 20).plan()?;
/// println!("{} bytes, {:.1} MB a token from flash", plan.parts.total(), plan.flash_mb_per_token);
/// // With flash of 278 MB/s and RAM of 12 GB/s:
/// println!("{:.1} tokens/s", plan.bounds(278.0, 12_000.0).tokens_per_s);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// Bytes of RAM that the process may fill; `None` if nothing limits it, as far as is known.
    pub ram: Option<u64>,
    /// Where the weights are.
    pub mode: PlanMode,
    /// Memory by part.
    pub parts: MemoryParts,
    /// Positions of the context, in tokens.
    pub n_ctx: u32,
    /// Tokens of a prompt that are computed at once, for which `parts` has activations.
    pub n_ubatch: u32,
    /// MB (10^6 bytes) that are read from the file for each token of an answer. For paged experts it is what is read if
    /// all experts are used equally often; texts use some more often, so that less is read.
    pub flash_mb_per_token: f64,
    /// MB (10^6 bytes) of weights that are read from memory for each token of an answer. The cache comes on top, as far
    /// as the context is filled.
    pub ram_mb_per_token: f64,
    /// What would make it faster, the most useful first; empty if all weights are in memory.
    pub advice: Vec<String>,
}

/// Where weights are while the model runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[non_exhaustive]
pub enum PlanMode {
    /// In memory.
    Resident,
    /// In the file, which is mapped: the system reads pages and drops them as it sees fit.
    Mapped,
    /// All but the routed experts in memory, of which a pool holds some.
    Paged {
        /// Bytes of the pool, with the buffers of its readers.
        pool: u64,
        /// Experts that it has room for.
        slots: u64,
        /// Experts of all layers.
        experts: u64,
    },
    /// Some in memory; the others are read for each token, in the order of their use.
    Streamed {
        /// Names of the tensors that are read.
        tensors: Vec<String>,
        /// Whether the first of them is a table of embeddings, of which only the rows of the tokens are read.
        table: bool,
        /// Bytes of memory that they are read into.
        zone: u64,
    },
}

/// Memory by part, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct MemoryParts {
    /// Weights that stay in memory, in the form in which kernels read them.
    pub weights: u64,
    /// The pool of experts with its buffers.
    pub experts: u64,
    /// What streamed weights are read into.
    pub zones: u64,
    /// The key-value cache of attention layers, and the states of recurrent ones.
    pub kv_cache: u64,
    /// Activations of as many tokens as are computed at once, and the logits.
    pub compute: u64,
    /// Program, vocabulary and tables.
    pub program: u64,
}

impl MemoryParts {
    /// Returns the sum: the most that the process will have in memory, when a long prompt is computed and pools are full.
    pub fn total(&self) -> u64 {
        let parts =
            [self.weights, self.experts, self.zones, self.kv_cache, self.compute, self.program];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// How many tokens a second flash and memory allow.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Bounds {
    /// What flash allows; `None` if nothing is read from there.
    pub by_flash: Option<f64>,
    /// What memory allows.
    pub by_ram: f64,
    /// The lesser of both.
    pub tokens_per_s: f64,
    /// Whether no text can be faster. Where experts are paged `by_flash` supposes that all are used equally often: texts
    /// that use some of them most need fewer bytes and can be faster.
    pub is_limit: bool,
}

impl MemoryPlan {
    /// Returns the tokens a second of an answer that flash and memory allow, given how fast they are read, in MB (10^6
    /// bytes) a second.
    ///
    /// # Examples
    /// ```no_run
    /// # fn main() -> llama_rs::Result<()> {
    /// let plan = llama_rs::Model::builder("model.gguf").plan()?;
    /// let bounds = plan.bounds(278.0, 12_000.0);
    /// assert!(bounds.tokens_per_s <= bounds.by_ram);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bounds(&self, flash_mb_s: f64, ram_mb_s: f64) -> Bounds {
        let flash = (self.flash_mb_per_token > 0.0).then(|| flash_mb_s / self.flash_mb_per_token);
        let by_ram = ram_mb_s / self.ram_mb_per_token.max(1e-6);
        let tokens_per_s = flash.map_or(by_ram, |flash| flash.min(by_ram));
        let is_limit = !matches!(self.mode, PlanMode::Paged { .. }) || flash.is_none();
        Bounds { by_flash: flash, by_ram, tokens_per_s, is_limit }
    }
}

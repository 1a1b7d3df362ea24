//! Memory: how much there is, and the weights that are read when they are needed.

use super::pack_cache::PackCacheArgs;
use super::pager::PagerArgs;
use super::stream::StreamArgs;
use crate::failure::Failure;
use smolmaxxing::{ByteSize, Error, ErrorKind, ModelBuilder};

/// Settings of memory, of the expert pager, the weight stream and the cache of packed weights.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Memory")]
pub struct MemoryArgs {
    /// RAM for everything together, as 900MiB or 1.5GB; experts (of a mixture) or matrices (of other
    /// models) that do not fit are read from the file when they are needed
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    ram: Option<ByteSize>,
    #[command(flatten)]
    pub pager: PagerArgs,
    #[command(flatten)]
    stream: StreamArgs,
    /// Threads that read weights which do not fit into memory [default: up to 4]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=64))]
    readers: Option<u32>,
    #[command(flatten)]
    cache: PackCacheArgs,
}

impl MemoryArgs {
    /// Sets up loading of a model.
    pub fn apply(&self, mut model: ModelBuilder) -> ModelBuilder {
        if let Some(ByteSize(ram)) = self.ram {
            model = model.ram(ram);
        }
        if let Some(readers) = self.readers {
            model = model.readers(readers as usize);
        }
        if let Some(stream) = self.stream.stream(self.readers) {
            model = model.weight_stream(stream);
        }
        if let Some(cache) = self.cache.cache() {
            model = model.pack_cache(cache);
        }
        self.pager.apply(model, self.readers)
    }

    /// RAM for everything together, if it is limited.
    pub fn ram(&self) -> Option<u64> {
        self.ram.map(|ram| ram.0)
    }

    /// The same without the options that change what the model says.
    pub fn lossless(&self) -> Self {
        Self { pager: self.pager.lossless(), ..self.clone() }
    }

    /// Whether memory is limited.
    pub fn has_ram(&self) -> bool {
        self.ram.is_some()
    }

    /// Says what to do about a model that does not fit into --ram.
    pub fn explain(&self, error: Error) -> anyhow::Error {
        let (Some(ram), &ErrorKind::OutOfMemory { needed, available }) = (self.ram, error.kind())
        else {
            return error.into();
        };
        // Other limits are not raised by more --ram.
        if available != Some(ram.0) {
            return error.into();
        }
        // Rounded up, and the program is not always of the same size.
        let enough = needed.map(|needed| (needed >> 20) + 2).filter(|mib| *mib > ram.0 >> 20);
        let less = "a smaller context (-c) and --kv-type q8_0 take less";
        let advice = match enough {
            Some(mib) => format!("--ram {mib}MiB would do; {less}"),
            None => less.to_owned(),
        };
        let failure =
            Failure::new(format!("the model does not fit into --ram {ram}")).advice(advice);
        anyhow::Error::new(error).context(failure)
    }
}

//! Packed weights that are kept on flash.

use crate::units::bytes;
use smolmaxxing::{PackCache, PackCacheStatistics};
use std::path::PathBuf;

/// Settings of the cache of packed weights.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PackCacheArgs {
    /// Keep packed weights in this folder, which takes about the size of the model; the next load
    /// maps them instead of reading and packing (see `smol cache`)
    #[arg(long, value_name = "DIR")]
    pack_cache: Option<PathBuf>,
    /// Compare all bytes of the packed weights with their hashes before they are used
    #[arg(long, requires = "pack_cache")]
    pack_cache_verify: bool,
}

impl PackCacheArgs {
    /// The cache, if one was asked for.
    pub fn cache(&self) -> Option<PackCache> {
        let mut cache = PackCache::new(self.pack_cache.as_ref()?);
        cache.verify = self.pack_cache_verify;
        Some(cache)
    }
}

/// What the cache has done, on one line.
pub fn cache_line(statistics: &PackCacheStatistics) -> String {
    let mut line = format!("packed weights: {}", part(statistics));
    for (name, other) in [("experts", &statistics.experts), ("streamed", &statistics.streamed)] {
        if let Some(other) = other {
            line += &format!("; {name}: {}", part(other));
        }
    }
    line
}

/// What it has done for weights that are used in one way.
fn part(statistics: &PackCacheStatistics) -> String {
    let size = |mb: f64| bytes((mb * 1e6) as u64);
    let mut line = format!("{} from the cache", statistics.hits);
    if statistics.mapped_mb > 0.0 {
        line += &format!(" ({})", size(statistics.mapped_mb));
    }
    if statistics.misses > 0 {
        line += &format!(", {} packed now", statistics.misses);
    }
    if statistics.written_mb > 0.0 {
        line += &format!("; {} written for the next load", size(statistics.written_mb));
    }
    if let Some(note) = &statistics.note {
        line += &format!(": {note}");
    }
    line
}

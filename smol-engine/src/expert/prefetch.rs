//! Reading experts before a router has chosen them: whether it pays, and what to read first.
//!
//! Flash that has time to spare reads predicted experts for nothing. Flash that does not makes
//! experts that are needed wait behind them, and every wrong prediction is then lost time.
//! [`Governor`] measures which of the two it is.

mod governor;
mod warm;

pub use governor::Governor;
pub use warm::{WarmExpert, warm_list};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Whether experts are read before a router has chosen them.
///
/// ```
/// use smol_engine::expert::prefetch::Prefetch;
///
/// assert_eq!("on".parse(), Ok(Prefetch::On));
/// assert_eq!(Prefetch::default().to_string(), "auto");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefetch {
    /// Never.
    Off,
    /// Always.
    On,
    /// While measurements say that it pays.
    #[default]
    Auto,
}

impl Prefetch {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Off, Self::On, Self::Auto];

    /// Returns the name, as [`FromStr`] reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for Prefetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Neither `off`, `on` nor `auto`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to prefetch: it must be off, on or auto")]
pub struct UnknownPrefetch(String);

impl FromStr for Prefetch {
    type Err = UnknownPrefetch;

    fn from_str(name: &str) -> Result<Self, UnknownPrefetch> {
        Self::ALL
            .into_iter()
            .find(|prefetch| prefetch.name() == name)
            .ok_or_else(|| UnknownPrefetch(name.to_owned()))
    }
}

/// What reads predicted experts: the pager.
pub trait Prefetcher: Send + Sync {
    /// Asks for `experts` of a layer, the most likely first; never waits.
    ///
    /// The same experts may be asked for again, and those in memory already are among them.
    fn predict(&self, layer: usize, experts: &[u32]);

    /// Returns whether an expert is in memory; cheap enough to ask for each of a layer.
    fn is_resident(&self, layer: usize, expert: u32) -> bool;

    /// Returns what has come of predictions since the start.
    fn prefetch_counts(&self) -> PrefetchCounts;
}

/// What has come of predictions and what reads took, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefetchCounts {
    /// Predicted experts that were chosen and whose read was complete by then.
    pub useful: u64,
    /// Predicted experts that were chosen while their read was under way.
    pub late: u64,
    /// Predicted experts that were read and left memory, or their layer passed, without use.
    pub wasted: u64,
    /// Experts read, predicted or not.
    pub reads: u64,
    /// Time that these reads took, summed; not the time they were queued.
    pub read_time: Duration,
    /// Time that the computation stood still while predicted experts were read that no router had
    /// chosen so far, summed over those reads: they may have kept it from what it needed.
    pub behind: Duration,
    /// Time that the computation stood still for predicted experts whose reads were late.
    pub late_wait: Duration,
    /// Time that the computation stood still for experts.
    pub wait: Duration,
}

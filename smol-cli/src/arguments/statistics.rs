//! What the engines of a model have done, in reports and for people.

use super::pack_cache::cache_line;
use super::pager::pager_line;
use super::stream::stream_line;
use serde::Serialize;
use smolmaxxing::{Model, PackCacheStatistics, PagerStatistics, StreamStatistics};

/// What the engines of a model have done; in JSON a field for each that it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct EngineStatistics {
    /// The expert pager.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pager: Option<PagerStatistics>,
    /// The weight stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamStatistics>,
    /// The cache of packed weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<PackCacheStatistics>,
}

impl EngineStatistics {
    /// Those of a model since it was loaded.
    pub fn of(model: &Model) -> Self {
        Self {
            pager: model.pager_statistics(),
            stream: model.stream_statistics(),
            cache: model.pack_cache_statistics().cloned(),
        }
    }

    /// What has been done since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let pager = self.pager.as_ref().zip(earlier.pager.as_ref());
        let stream = self.stream.as_ref().zip(earlier.stream.as_ref());
        Self {
            pager: pager.map(|(now, earlier)| now.since(earlier)),
            stream: stream.map(|(now, earlier)| now.since(earlier)),
            cache: self.cache.clone(),
        }
    }

    /// A line for each engine.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let lines = [
            self.pager.as_ref().map(pager_line),
            self.stream.as_ref().map(stream_line),
            self.cache.as_ref().map(cache_line),
        ];
        lines.into_iter().flatten()
    }
}

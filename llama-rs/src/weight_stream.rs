//! Weights that are read from the file each time they are used: what can be chosen about that.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};
use smol_engine::io::IoChoice;
use smol_engine::stream::StreamConfig;
use smol_gguf::Metadata;

use crate::byte_size::ByteSize;
use crate::engines;
use crate::error::{Error, Result};
use crate::expert_pager::{checked_readers, has_experts, readers};

/// `[stream]`: how a model that is larger than memory is read from its file, each matrix when it is used, for every token
/// or batch again.
///
/// The model computes the same as with all weights in memory. Flash limits how fast that is: what does not stay in memory
/// is read once for a token, and once for all tokens of a batch.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use llama_rs::{StreamSize, WeightStream};
///
/// let mut stream = WeightStream::default();
/// stream.resident = StreamSize::Bytes(600 << 20);
/// let model = llama_rs::Model::builder("model.gguf").weight_stream(stream).load()?;
/// if let Some(statistics) = model.stream_statistics() {
///     println!("{:.1} MB for a token", statistics.mb_per_pass);
/// }
/// # Ok(())
/// # }
/// ```
/// The same for llama-tools and [`EngineOptions`](crate::EngineOptions):
/// ```
/// let options = llama_rs::EngineOptions::from_toml(
///     r#"
///     [stream]
///     resident = "600MiB"
///     zone = "48MiB"
///     "#,
/// )?;
/// let stream = options.stream.expect("there is such a table");
/// assert_eq!(stream.zone, llama_rs::StreamSize::Bytes(48 << 20));
///
/// let error = llama_rs::EngineOptions::from_toml("[stream]\nzone = 0").unwrap_err();
/// assert_eq!(error.to_string(), "line 2: stream.zone: is 0, which holds no weights");
/// # Ok::<(), llama_rs::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct WeightStream {
    /// `zone`: memory for what is read, with the buffers of the readers. By default that of the two largest matrices, at
    /// least 32 MiB.
    #[serde(deserialize_with = "zone")]
    pub zone: StreamSize,
    /// `resident`: weights that stay in memory; those that cannot be streamed stay in any case. By default what
    /// [`ModelBuilder::ram`](crate::ModelBuilder::ram) leaves, and without it only those that cannot be streamed.
    pub resident: StreamSize,
    /// `readers`: threads that read, 1 to 64; by default what the zone allows, at most 4.
    #[serde(deserialize_with = "readers")]
    pub readers: Option<usize>,
    /// `io`: whether reads go past the page cache, by default where the file system lets that.
    pub io: IoChoice,
    /// `verify`: whether each read is done twice and compared, and weights once more after their use. A difference ends
    /// the computation with an error.
    pub verify: bool,
}

/// An amount of memory; in TOML `"auto"`, a size such as `"600MiB"`, or a number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamSize {
    /// What is best for the model and the memory that there is.
    #[default]
    Auto,
    /// Bytes.
    Bytes(u64),
}

impl StreamSize {
    /// The bytes that were asked for, if any were.
    pub(crate) fn asked(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl WeightStream {
    /// The default with so many readers.
    pub(crate) fn read_by(readers: Option<usize>) -> Self {
        Self { readers, ..Self::default() }
    }

    /// Refuses values that TOML would not have let in.
    pub(crate) fn check(&self) -> Result<()> {
        let zone = checked_zone(self.zone).map(drop).map_err(|fault| ("zone", fault));
        let readers = self.readers.map_or(Ok(0), checked_readers).map(drop);
        zone.and(readers.map_err(|fault| ("readers", fault)))
            .map_err(|(field, fault)| Error::invalid(format!("weight stream: {field} {fault}")))
    }

    /// The engine's options with a zone in bytes.
    pub(crate) fn config(&self, zone: u64) -> StreamConfig {
        let readers = self.readers.unwrap_or(0);
        StreamConfig { zone, readers, io: self.io, verify: self.verify }
    }
}

/// The streaming to load a model with: what was asked for, or that of the [`EngineOptions`](crate::EngineOptions), which are
/// for all models and leave mixtures to the pager. `paging`: whether a pager was asked for.
pub(crate) fn wanted(
    asked: Option<&WeightStream>,
    paging: bool,
    metadata: &Metadata,
) -> Result<Option<WeightStream>> {
    match asked {
        Some(_) if paging => {
            let message =
                "either the experts of a model are paged or its other weights streamed, not both";
            Err(Error::invalid(message))
        }
        Some(stream) => stream.check().map(|()| Some(stream.clone())),
        None => Ok(engines::weight_stream().filter(|_| !has_experts(metadata))),
    }
}

fn checked_zone(zone: StreamSize) -> Result<StreamSize, String> {
    match zone {
        StreamSize::Bytes(0) => Err("is 0, which holds no weights".to_owned()),
        _ => Ok(zone),
    }
}

fn zone<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StreamSize, D::Error> {
    checked_zone(StreamSize::deserialize(deserializer)?).map_err(D::Error::custom)
}

impl<'de> Deserialize<'de> for StreamSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = StreamSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`\"auto\"`, a size such as `\"600MiB\"`, or a number of bytes")
    }

    fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<StreamSize, E> {
        Ok(StreamSize::Bytes(bytes))
    }

    fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<StreamSize, E> {
        u64::try_from(bytes).map(StreamSize::Bytes).map_err(|_| E::custom("is negative"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<StreamSize, E> {
        match text {
            "auto" => Ok(StreamSize::Auto),
            size => size.parse().map(|ByteSize(bytes)| StreamSize::Bytes(bytes)).map_err(E::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::options::EngineOptions;

    fn read(table: &str) -> WeightStream {
        EngineOptions::from_toml(&format!("[stream]\n{table}")).unwrap().stream.unwrap()
    }

    #[test]
    fn no_table_is_no_stream_and_an_empty_one_the_default() {
        assert_eq!(EngineOptions::from_toml("").unwrap().stream, None);
        assert_eq!(read(""), WeightStream::default());
        assert!(WeightStream::default().check().is_ok());
    }

    #[test]
    fn every_key_is_read() {
        let stream = read(
            "zone = \"48MiB\"\nresident = 1_000\nreaders = 3\nio = \"buffered\"\nverify = true",
        );
        let expected = WeightStream {
            zone: StreamSize::Bytes(48 << 20),
            resident: StreamSize::Bytes(1000),
            readers: Some(3),
            io: IoChoice::Buffered,
            verify: true,
        };
        assert_eq!(stream, expected);
        let config = stream.config(77);
        assert_eq!((config.zone, config.readers, config.verify), (77, 3, true));
        assert_eq!(config.io, IoChoice::Buffered);
        assert_eq!(WeightStream::default().config(1).readers, 0);
        assert_eq!(read("zone = \"auto\"\nresident = 0").resident, StreamSize::Bytes(0));
    }

    #[test]
    fn refusals_name_line_and_key() {
        for (line, words) in [
            ("zones = 1", "stream.zones: unknown field `zones`, expected one of `zone`"),
            ("zone = \"48\"", "stream.zone: `48` has no unit"),
            ("zone = -1", "stream.zone: is negative"),
            ("zone = \"0B\"", "stream.zone: is 0, which holds no weights"),
            (
                "resident = true",
                "stream.resident: invalid type: boolean `true`, expected `\"auto\"`",
            ),
            ("readers = 0", "stream.readers: is 0 but must be 1 to 64"),
            ("io = \"mmap\"", "stream.io: unknown variant `mmap`"),
        ] {
            let error = EngineOptions::from_toml(&format!("[stream]\n{line}")).unwrap_err();
            let message = error.to_string();
            assert!(message.starts_with(&format!("line 2: {words}")), "{message}");
        }
    }

    #[test]
    fn what_toml_refuses_a_builder_refuses_too() {
        let with = |zone, readers| WeightStream { zone, readers, ..WeightStream::default() };
        for (stream, words) in [
            (with(StreamSize::Bytes(0), None), "weight stream: zone is 0"),
            (with(StreamSize::Auto, Some(65)), "weight stream: readers is 65"),
        ] {
            let error = stream.check().unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
            assert!(error.message().starts_with(words), "{error}");
        }
    }
}

//! The configuration of the engines: one struct, readable from TOML.

mod locate;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use ggml_sys::{CpuLevel, build_info};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::engines::Engines;
use crate::error::{Error, ErrorKind, Result};
use crate::expert_pager::ExpertPager;
use crate::layouts::LayoutOptions;
use crate::op::Op;
use crate::pack_cache::PackCache;
use crate::weight_stream::WeightStream;

/// A configuration file is text written by hand; anything larger is another kind of file.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// The whole configuration of the engines, one field a part of them.
///
/// The default is what the library does on its own. [`EngineOptions::install`] puts it into effect.
///
/// # Examples
/// ```
/// let options = llama_rs::EngineOptions::from_toml(
///     r#"
///     [cpu]
///     level = "auto"
///
///     [observe]
///     report = "graphs.json"
///     ops = ["MUL_MAT", "MUL_MAT_ID"]
///     "#,
/// )?;
/// assert_eq!(options.observe.ops.as_ref().map(Vec::len), Some(2));
///
/// let error = llama_rs::EngineOptions::from_toml("[cpu]\nlevle = 3").unwrap_err();
/// assert!(error.to_string().starts_with("line 2: cpu.levle: unknown field"), "{error}");
/// # Ok::<(), llama_rs::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct EngineOptions {
    /// `[cpu]`: the code that computes.
    pub cpu: CpuOptions,
    /// `[layouts]`: how weights are packed at load.
    pub layouts: LayoutOptions,
    /// `[pager]`: experts that are read when they are needed; without the table all are in memory. Models without experts
    /// are loaded as ever.
    pub pager: Option<ExpertPager>,
    /// `[pack_cache]`: a folder that keeps packed weights from one load to the next.
    pub pack_cache: Option<PackCache>,
    /// `[stream]`: weights that are read from the file each time they are used; without the table all are in memory.
    /// Models whose experts are paged are not streamed.
    pub stream: Option<WeightStream>,
    /// `[observe]`: a report on what was computed.
    pub observe: ObserveOptions,
}

/// `[cpu]`: the code that computes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct CpuOptions {
    /// `level`: the CPU level whose kernels run.
    pub level: LevelChoice,
}

/// Which CPU level to run; in TOML `"auto"` or the name of a level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LevelChoice {
    /// The highest level of the build that the CPU has.
    #[default]
    Auto,
    /// One of the levels of the build; see [`build_info`].
    Level(&'static CpuLevel),
}

/// `[observe]`: a report on what was computed, as JSON.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ObserveOptions {
    /// `report`: where the report goes; without it nothing is observed.
    pub report: Option<ReportTarget>,
    /// `ops`: the operations whose nodes are counted; all if not given. Fewer cost less.
    pub ops: Option<Vec<Op>>,
}

/// Where a report goes; in TOML `"-"` for standard error or the path of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportTarget {
    /// Standard error.
    StandardError,
    /// A file, which is created or replaced.
    File(PathBuf),
}

impl EngineOptions {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it can't be read; [`ErrorKind::Config`] with line and key for bad syntax, unknown keys,
    /// wrong types, and values that this build does not have.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let unreadable = |error| Error::io(error, "the configuration cannot be read", Some(path));
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(unreadable)?;
        file.take(MAX_FILE_SIZE + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MAX_FILE_SIZE {
            let message = format!("more than {MAX_FILE_SIZE} bytes: this is no configuration");
            return Err(Error::new(ErrorKind::Config, message).with_path(path));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let line = locate::line(error.as_bytes(), error.utf8_error().valid_up_to());
            Error::new(ErrorKind::Config, format!("line {line}: not UTF-8")).with_path(path)
        })?;
        Self::from_toml(&text).map_err(|error| error.with_path(path))
    }

    /// Reads a TOML document.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] as [`EngineOptions::from_file`] says.
    pub fn from_toml(text: &str) -> Result<Self> {
        let options: Self = toml::from_str(text).map_err(|error| {
            let message = locate::describe(text, error.span(), error.message());
            Error::new(ErrorKind::Config, message)
        })?;
        let observe = &options.observe;
        let fault = match &observe.ops {
            Some(_) if observe.report.is_none() => "needs `report`: without one nothing is counted",
            Some(ops) if ops.is_empty() => "is empty; leave the key out to count all operations",
            _ => return Ok(options),
        };
        let message = locate::describe_key(text, &["observe", "ops"], fault);
        Err(Error::new(ErrorKind::Config, message))
    }

    /// Puts the options into effect for the process, before the first model is loaded.
    ///
    /// # Errors
    /// [`ErrorKind::Cpu`] if the CPU can't run this build; [`ErrorKind::Config`] if it can't run the chosen level, or if
    /// that comes too late; [`ErrorKind::Io`] if the report can't be created.
    pub fn install(&self) -> Result<Engines> {
        Engines::install(self)
    }
}

impl<'de> Deserialize<'de> for LevelChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name == "auto" {
            return Ok(Self::Auto);
        }
        let levels = build_info().cpu_levels;
        levels.iter().find(|level| level.name == name).map(Self::Level).ok_or_else(|| {
            let known: Vec<_> = levels.iter().map(|level| format!("`{}`", level.name)).collect();
            let way_out = match levels.len() {
                1 => "; the cargo feature multi-level builds several",
                _ => "",
            };
            D::Error::custom(format!(
                "this build has no CPU level `{name}`, but `auto` and {}{way_out}",
                known.join(", "),
            ))
        })
    }
}

impl<'de> Deserialize<'de> for ReportTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "" => Err(D::Error::custom("the path of the report is empty; `-` is standard error")),
            "-" => Ok(Self::StandardError),
            path => Ok(Self::File(path.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let error = EngineOptions::from_toml(text).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Config);
        error.to_string()
    }

    #[test]
    fn an_empty_document_is_the_default() {
        assert_eq!(EngineOptions::from_toml("").unwrap(), EngineOptions::default());
        assert_eq!(EngineOptions::from_toml("[cpu]\n[observe]").unwrap(), EngineOptions::default());
    }

    #[test]
    fn every_key_is_read() {
        let level = build_info().cpu_levels[0];
        let text =
            format!("cpu.level = \"{}\"\n[observe]\nreport = \"-\"\nops = [\"ROPE\"]", level.name);
        let options = EngineOptions::from_toml(&text).unwrap();
        assert_eq!(options.cpu.level, LevelChoice::Level(&build_info().cpu_levels[0]));
        assert_eq!(options.observe.report, Some(ReportTarget::StandardError));
        assert_eq!(options.observe.ops, Some(vec![Op::from_name("ROPE").unwrap()]));
        let options = EngineOptions::from_toml("observe.report = \"a/b\"").unwrap();
        assert_eq!(options.observe.report, Some(ReportTarget::File("a/b".into())));
    }

    #[test]
    fn refusals_name_line_and_key() {
        for (text, start) in [
            ("\n[expert]\n", "line 2: expert: unknown field"),
            ("[cpu]\nlevel = \"auto\"\nspeed = 1", "line 3: cpu.speed: unknown field"),
            ("[cpu]\n\nlevel = 3", "line 3: cpu.level: invalid type: integer `3`"),
            ("cpu = 3", "line 1: cpu: invalid type"),
            ("[cpu]\nlevel = \"z80\"", "line 2: cpu.level: this build has no CPU level `z80`"),
            ("observe = { report = \"\" }", "line 1: observe.report: the path"),
            (
                "[observe]\nreport = \"-\"\nops = [\n  \"ROPE\",\n  \"mul_mat\",\n]",
                "line 5: observe.ops: `mul_mat` is not an operation of ggml; did you mean `MUL_MAT`?",
            ),
            ("[observe]\nops = [\"ROPE\"]", "line 2: observe.ops: needs `report`"),
            ("[observe]\nreport = \"-\"\nops = []", "line 3: observe.ops: is empty"),
            ("[observe]\nops = \"ROPE\"\nreport = \"-\"", "line 2: observe.ops: invalid type"),
            (
                "[cpu]\nlevel = \"auto\"\nlevel = \"auto\"",
                "line 3: `level = \"auto\"`: duplicate key",
            ),
            ("[cpu]\nlevel = ", "line 2: `level =`: "),
            ("what", "line 1: `what`: "),
        ] {
            let message = refusal(text);
            assert!(message.starts_with(start), "{message:?} should start with {start:?}");
        }
    }

    #[test]
    fn files_that_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let error = EngineOptions::from_file(folder.path().join("none.toml")).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Io(std::io::ErrorKind::NotFound));
        assert!(error.to_string().contains("none.toml"), "{error}");
        let path = folder.path().join("bytes.toml");
        std::fs::write(&path, b"[cpu]\n\xff").unwrap();
        let error = EngineOptions::from_file(&path).unwrap_err();
        assert!(error.to_string().ends_with("bytes.toml: line 2: not UTF-8"), "{error}");
        std::fs::write(&path, vec![b'\n'; MAX_FILE_SIZE as usize + 1]).unwrap();
        let error = EngineOptions::from_file(&path).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Config);
    }
}

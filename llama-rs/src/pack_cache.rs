//! Packed weights that are kept on flash from one load to the next.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
pub use smol_engine::pack_cache::{CacheFile, CacheState};
use smol_engine::pack_cache::{Folder, Key, PackedFile, Prefetch, Source, Unusable, Weight};

use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::ffi::mapping::MappingGuard;
use crate::ffi::model::RawModel;
use crate::ffi::pack_cache::{self as raw, Placed};
use crate::files::{FileState, ModelFiles};
use crate::layouts::LayoutOptions;
#[cfg(feature = "tools")]
use crate::options::EngineOptions;
use crate::plain_weights::PlainWeights;
#[cfg(feature = "tools")]
use crate::plan::Weights;

/// `[pack_cache]`: a folder that keeps packed weights, so that the next load maps them and neither reads nor packs.
///
/// Each model has one file there, for each CPU and choice of layouts, about as large as its packed weights. The load that
/// finds none writes it. A file that is damaged, or of another state of the model or of this library, is replaced; where
/// none can be written, as on a full disk, loading goes on without. Mapped weights are no memory of the process's own: the
/// system may drop them and read them again. Where the file is found, large weights that are not packed are mapped too, from
/// the model's file, unless [`LoadMode::Read`](crate::LoadMode::Read) is asked for. Weights that are streamed are read from
/// the file, packed, each time they are used; experts that are paged from a second one. None of them is packed while the
/// model runs.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// let model = llama_rs::Model::builder("model.gguf").pack_cache("cache/packed").load()?;
/// println!("{:?}", model.pack_cache_statistics());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PackCache {
    /// `dir`: the folder, which is created if need be.
    pub dir: PathBuf,
    /// `verify`: whether all bytes of a file are compared with their hashes before it is used, by default false. That
    /// finds what a faulty disk has changed, and reads the whole file.
    #[serde(default)]
    pub verify: bool,
}

/// What a cache of packed weights did for a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PackCacheStatistics {
    /// The file.
    pub file: String,
    /// Weights that were mapped.
    pub hits: usize,
    /// Weights that were packed.
    pub misses: usize,
    /// Megabytes that were mapped.
    pub mapped_mb: f64,
    /// Megabytes that were written, for the next load.
    pub written_mb: f64,
    /// Why weights were packed or not kept, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The same for experts that are paged: a hit is a tensor that the pager reads packed, and nothing is mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<Box<PackCacheStatistics>>,
    /// The same for weights that are streamed: a hit is a matrix that is read packed each time it is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streamed: Option<Box<PackCacheStatistics>>,
}

impl PackCache {
    /// Names a folder.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), verify: false }
    }

    /// Lists the files of the folder, and whether they are of use to this build on this CPU; with
    /// [`verify`](Self::verify) after reading all of their bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the folder can't be read, [`ErrorKind::Cpu`](crate::ErrorKind::Cpu) if
    /// the CPU can't run this build.
    pub fn list(&self) -> Result<Vec<CacheFile>> {
        crate::ffi::call::init()?;
        let files = Folder::new(&self.dir).list(&cpu(), &build(), self.verify);
        files.map_err(|error| Error::io(error, "cannot read the cache", Some(&self.dir)))
    }

    /// Removes the files of the folder, but nothing else that is in it; returns how many they were, and their bytes.
    /// Models that use them are not disturbed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if the folder can't be read or a file can't be removed.
    pub fn clear(&self) -> Result<(usize, u64)> {
        let cleared = Folder::new(&self.dir).clear();
        cleared.map_err(|error| Error::io(error, "cannot clear the cache", Some(&self.dir)))
    }
}

impl<P: Into<PathBuf>> From<P> for PackCache {
    fn from(dir: P) -> Self {
        Self::new(dir)
    }
}

/// The file of a model's weights of one kind.
pub(crate) struct ModelCache {
    folder: Folder,
    path: PathBuf,
    key: Key,
    verify: bool,
}

/// What a cache may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Weights that are in memory, or are streamed.
    Weights,
    /// Experts as a pager reads them.
    Experts,
}

impl ModelCache {
    /// The file for a model that is about to be loaded with these layouts.
    pub(crate) fn new(
        cache: &PackCache,
        kind: Kind,
        files: &ModelFiles,
        fingerprint: u128,
        layouts: &LayoutOptions,
        repack: bool,
    ) -> Self {
        let paths = files.paths();
        let source = |path: &PathBuf| {
            let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
            Source::of(&whole).unwrap_or_default()
        };
        let choice = choice(layouts, repack);
        let key = Key {
            model: format!("{fingerprint:032x}"),
            sources: paths.iter().map(source).collect(),
            cpu: cpu(),
            build: build(),
            layouts: match kind {
                Kind::Weights => choice,
                Kind::Experts => format!("experts; {choice}"),
            },
        };
        let folder = Folder::new(&cache.dir);
        let path = folder.file(paths.first().map_or(Path::new("model"), PathBuf::as_path), &key);
        Self { folder, path, key, verify: cache.verify }
    }

    /// The same for the model that upstream's code is about to load, if a cache was asked for and anything is packed.
    #[cfg(feature = "tools")]
    pub(crate) fn for_upstream(
        kind: Kind,
        files: &ModelFiles,
        options: &EngineOptions,
        repack: bool,
    ) -> Result<Option<Self>> {
        let cache = options.pack_cache.as_ref().filter(|_| repack || options.layouts.enabled);
        let Some(cache) = cache else { return Ok(None) };
        let fingerprint = files.fingerprint()?;
        Ok(Some(Self::new(cache, kind, files, fingerprint, &options.layouts, repack)))
    }

    /// Statistics in which nothing has happened yet.
    pub(crate) fn statistics(&self) -> PackCacheStatistics {
        PackCacheStatistics {
            file: self.path.to_string_lossy().into_owned(),
            hits: 0,
            misses: 0,
            mapped_mb: 0.0,
            written_mb: 0.0,
            note: None,
            experts: None,
            streamed: None,
        }
    }

    /// Opens the file once it has all of these weights, for an engine that reads from it. Those that it lacks are written:
    /// `pack` writes the bytes of the one of a number. `None`: they can't be, and the statistics, which count those that
    /// `is_read` now, say why.
    pub(crate) fn complete(
        &self,
        wanted: &[Weight],
        is_read: impl Fn(&Weight) -> bool,
        statistics: &mut PackCacheStatistics,
        pack: impl Fn(usize, &mut dyn Write) -> std::io::Result<()>,
    ) -> Option<PackedFile> {
        let whole = |file: &PackedFile| wanted.iter().all(|weight| file.find(weight).is_some());
        let found = self.find(statistics);
        let is_there =
            |weight: &Weight| found.as_ref().is_some_and(|file| file.find(weight).is_some());
        let missing: Vec<_> =
            (0..wanted.len()).filter(|number| !is_there(&wanted[*number])).collect();
        let read = wanted.iter().filter(|weight| is_read(weight)).count();
        statistics.misses = missing.iter().filter(|number| is_read(&wanted[**number])).count();
        statistics.hits = read - statistics.misses;
        if missing.is_empty() {
            return found;
        }
        let added: Vec<_> = missing.iter().map(|number| &wanted[*number]).collect();
        let written = self
            .write(found.as_ref(), &added, statistics, |number, out| pack(missing[number], out));
        written.then(|| PackedFile::open(&self.path, &self.key).ok())?.filter(whole)
    }

    /// Opens the file, if it fits; notes why not.
    fn find(&self, statistics: &mut PackCacheStatistics) -> Option<PackedFile> {
        let error = match PackedFile::open(&self.path, &self.key) {
            Ok(file) if !self.verify => return Some(file),
            Ok(file) => match file.verify() {
                Ok(()) => return Some(file),
                Err(error) => error,
            },
            Err(error) => error,
        };
        if !matches!(error, Unusable::Missing) {
            tracing::warn!("{}: not used and made anew: {error}", self.path.display());
        }
        statistics.note = Some(error.to_string());
        None
    }

    /// Writes the file with these weights, whose bytes `pack` writes by number, and with all others that an older one has;
    /// or notes why that can't be done.
    fn write(
        &self,
        old: Option<&PackedFile>,
        weights: &[&Weight],
        statistics: &mut PackCacheStatistics,
        pack: impl Fn(usize, &mut dyn Write) -> std::io::Result<()>,
    ) -> bool {
        let names: HashSet<_> = weights.iter().map(|weight| &weight.name).collect();
        let kept = old.into_iter().flat_map(PackedFile::weights);
        let kept: Vec<_> = kept.filter(|weight| !names.contains(&weight.name)).collect();
        let bytes = kept.iter().chain(weights).map(|weight| weight.bytes).sum();
        let written = self.folder.write(&self.path, &self.key, bytes, |writer| {
            for weight in kept {
                // What a fault of the disk has changed must not get a hash that fits.
                if let Some(bytes) = old.and_then(|old| old.verified(weight)) {
                    writer.add(weight, |out| out.write_all(bytes))?;
                }
            }
            let mut numbers = weights.iter().enumerate();
            numbers.try_for_each(|(number, weight)| writer.add(weight, |out| pack(number, out)))
        });
        match written {
            Ok(len) => {
                statistics.written_mb = megabytes(len);
                true
            }
            Err(error) => {
                tracing::warn!("{}: packed weights are not kept: {error}", self.path.display());
                statistics.note = Some(format!("not kept: {error}"));
                false
            }
        }
    }
}

/// The packed matrices of the model at `path`, which upstream's code is about to load whole; written now as far as they are
/// not there. `None`: nothing of it is packed, or no cache was asked for.
#[cfg(feature = "tools")]
pub(crate) fn packed_for_upstream(
    path: &Path,
    options: &EngineOptions,
    repack: bool,
) -> Result<Option<(Option<PackedFile>, PackCacheStatistics)>> {
    let files = ModelFiles::open(path)?;
    let cache = ModelCache::for_upstream(Kind::Weights, &files, options, repack)?;
    let Some(cache) = cache else { return Ok(None) };
    let weights = Weights::find(files.shards(), files.metadata());
    let names: Vec<_> = weights.matrices.iter().map(|matrix| &*matrix.name).collect();
    let mut statistics = cache.statistics();
    let found =
        crate::streaming::complete(&files, &names, repack, &cache, |_| true, &mut statistics, None);
    let file = found.map(|(file, weights)| {
        statistics.mapped_mb = megabytes(weights.iter().map(|weight| weight.bytes).sum());
        file
    });
    Ok(Some((file, statistics)))
}

/// The weights of a model that are mapped. Outlives the model.
pub(crate) struct CachedWeights {
    cache: ModelCache,
    found: Option<Found>,
    statistics: PackCacheStatistics,
}

struct Found {
    /// Ends before what it reads.
    _prefetch: Option<Prefetch>,
    guard: MappingGuard,
    /// Keeps the file's identity: another one may come under its name.
    state: FileState,
    file: PackedFile,
    /// The weights that are not packed, if they are mapped too.
    plain: Option<PlainWeights>,
}

/// How the weights of a cache are mapped.
pub(crate) struct Mapped<'a> {
    /// The model's files, if what is not packed is to be mapped too.
    pub(crate) plain: Option<&'a ModelFiles>,
    /// Whether the whole file will be used.
    pub(crate) whole: bool,
    /// Bytes of memory that can be filled, if known.
    pub(crate) available: Option<u64>,
}

impl CachedWeights {
    /// Looks for the file of a model that is about to be loaded, and begins to read it.
    pub(crate) fn open(
        cache: ModelCache,
        experts: Option<PackCacheStatistics>,
        mapped: &Mapped<'_>,
    ) -> Self {
        let mut statistics = cache.statistics();
        statistics.experts = experts.map(Box::new);
        let found = cache.find(&mut statistics).and_then(|file| {
            let state = FileState::of(&cache.path).ok()?;
            let fits = mapped.available.is_none_or(|available| available > state.len());
            let _prefetch = (mapped.whole && fits).then(|| file.prefetch());
            let guard = MappingGuard::new(vec![cache.path.clone()]);
            guard.refresh();
            let plain = mapped.plain.and_then(PlainWeights::map);
            Some(Found { _prefetch, guard, state, file, plain })
        });
        Self { cache, found, statistics }
    }

    /// Loads the model; returns where its packed weights are.
    pub(crate) fn during_load<T>(
        &self,
        load: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Vec<Placed>)> {
        let found = self.found.as_ref();
        raw::during_load(found.map(|found| (&found.file, found.plain.as_ref())), load)
    }

    /// Keeps the weights of a loaded model for the next load, if they are not there yet.
    pub(crate) fn keep(
        &mut self,
        model: &RawModel,
        mut placed: Vec<Placed>,
        cancel: Option<&CancelToken>,
    ) {
        // A weight that a model holds twice is kept once.
        let mut names = std::collections::HashSet::new();
        placed.retain(|one| names.insert(one.weight.name.clone()));
        let (mapped, packed): (Vec<_>, Vec<_>) = placed.iter().partition(|one| one.cached);
        self.statistics.hits = mapped.len();
        self.statistics.misses = packed.len();
        self.statistics.mapped_mb = megabytes(mapped.iter().map(|one| one.weight.bytes).sum());
        if self.statistics.misses == 0 {
            // Unless they are read while the model runs.
            let others = [&self.statistics.experts, &self.statistics.streamed];
            if placed.is_empty() && others.iter().all(|other| other.is_none()) {
                self.statistics.note = Some("no weight of this model is packed".to_owned());
            }
            return;
        }
        let weights: Vec<_> = packed.iter().map(|one| &one.weight).collect();
        let old = self.found.as_ref().map(|found| &found.file);
        self.cache.write(old, &weights, &mut self.statistics, |number, out| {
            go_on(cancel)?;
            out.write_all(packed[number].bytes(model))
        });
    }

    /// Notes what the cache did for weights that are streamed.
    pub(crate) fn note_streamed(&mut self, streamed: Option<PackCacheStatistics>) {
        self.statistics.streamed = streamed.map(Box::new);
    }

    pub(crate) fn statistics(&self) -> &PackCacheStatistics {
        &self.statistics
    }

    /// Refuses to compute with weights that are not in the file any more, or to trust what was computed with them.
    /// `files` are those of the model.
    pub(crate) fn check_unchanged(&self, files: &[FileState]) -> Result<()> {
        let Some(found) = &self.found else { return Ok(()) };
        found.state.check_not_shortened()?;
        if found.guard.was_hit() {
            return Err(crate::model::files_lost(&self.cache.path));
        }
        found.plain.iter().try_for_each(|plain| plain.check_unchanged(files))
    }
}

/// Ends the writing of a cache when the load is cancelled.
pub(crate) fn go_on(cancel: Option<&CancelToken>) -> std::io::Result<()> {
    match cancel.is_some_and(CancelToken::is_cancelled) {
        true => Err(std::io::Error::other("loading was cancelled")),
        false => Ok(()),
    }
}

/// All that packed bytes of llama.cpp's own layouts depend on, beside the weights.
fn cpu() -> String {
    format!("{}; {}", ggml_sys::cpu::selected().name, raw::cpu_features())
}

fn build() -> String {
    let build = ggml_sys::build_info();
    format!("{} {} {}", env!("CARGO_PKG_VERSION"), build.llama_commit, build.patch_set)
}

/// Which layouts are allowed; the order of names that are preferred or avoided does not matter.
fn choice(layouts: &LayoutOptions, repack: bool) -> String {
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names.dedup();
        names.join(",")
    };
    let upstream = if repack { "repack" } else { "no repack" };
    match layouts.enabled {
        true => format!(
            "prefer {}; avoid {}; {upstream}",
            sorted(&layouts.prefer),
            sorted(&layouts.avoid)
        ),
        false => format!("off; {upstream}"),
    }
}

fn megabytes(bytes: u64) -> f64 {
    (bytes as f64 / 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EngineOptions;

    #[test]
    fn the_folder_comes_from_toml() {
        let read = |text: &str| EngineOptions::from_toml(text).map(|options| options.pack_cache);
        assert_eq!(read("").unwrap(), None);
        let cache = read("[pack_cache]\ndir = \"a/b\"\nverify = true").unwrap().unwrap();
        assert_eq!(cache, PackCache { dir: "a/b".into(), verify: true });
        assert_eq!(read("pack_cache.dir = \"c\"").unwrap(), Some(PackCache::new("c")));
        for (line, words) in [
            ("dirs = 1", "line 2: pack_cache.dirs: unknown field `dirs`"),
            ("verify = true", "line 1: pack_cache: missing field `dir`"),
        ] {
            let error = read(&format!("[pack_cache]\n{line}")).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[test]
    fn choices_of_layouts_differ_by_what_is_allowed() {
        let mut layouts =
            LayoutOptions { prefer: vec!["b".into(), "a".into()], ..Default::default() };
        let first = choice(&layouts, true);
        layouts.prefer.reverse();
        assert_eq!(choice(&layouts, true), first);
        assert_ne!(choice(&layouts, false), first);
        layouts.avoid.push("c".into());
        assert_ne!(choice(&layouts, true), first);
        layouts.enabled = false;
        assert!(choice(&layouts, true).starts_with("off"));
    }

    #[test]
    fn sizes_are_megabytes_with_three_decimals() {
        assert_eq!(megabytes(1_234_567), 1.235);
    }
}

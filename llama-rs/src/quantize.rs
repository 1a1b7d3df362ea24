//! Making a model file smaller by rounding its weights.

use std::path::{Path, PathBuf};

use smol_engine::machine::Cpu;
use smol_gguf::Depth;

use crate::error::{Error, Result};
use crate::ffi::quantize::quantize;
use crate::files::{ModelFiles, c_path, gguf_error};

/// The mix of types that a quantized file gets, by llama.cpp's names. Each tensor gets the type that the mix gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // the names are the types'
pub enum FileType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q6K,
    Q5KM,
    Q5KS,
    Q5_1,
    Q5_0,
    Q4KM,
    Q4KS,
    Q4_1,
    Q4_0,
    Iq4Nl,
    Iq4Xs,
    Q3KL,
    Q3KM,
    Q3KS,
    Q2K,
    Tq2_0,
    Tq1_0,
    Q2_0,
    Q1_0,
}

impl FileType {
    const NAMES: [(Self, &'static str, ggml_sys::llama_ftype); 23] = [
        (Self::F32, "F32", ggml_sys::LLAMA_FTYPE_ALL_F32),
        (Self::F16, "F16", ggml_sys::LLAMA_FTYPE_MOSTLY_F16),
        (Self::Bf16, "BF16", ggml_sys::LLAMA_FTYPE_MOSTLY_BF16),
        (Self::Q8_0, "Q8_0", ggml_sys::LLAMA_FTYPE_MOSTLY_Q8_0),
        (Self::Q6K, "Q6_K", ggml_sys::LLAMA_FTYPE_MOSTLY_Q6_K),
        (Self::Q5KM, "Q5_K_M", ggml_sys::LLAMA_FTYPE_MOSTLY_Q5_K_M),
        (Self::Q5KS, "Q5_K_S", ggml_sys::LLAMA_FTYPE_MOSTLY_Q5_K_S),
        (Self::Q5_1, "Q5_1", ggml_sys::LLAMA_FTYPE_MOSTLY_Q5_1),
        (Self::Q5_0, "Q5_0", ggml_sys::LLAMA_FTYPE_MOSTLY_Q5_0),
        (Self::Q4KM, "Q4_K_M", ggml_sys::LLAMA_FTYPE_MOSTLY_Q4_K_M),
        (Self::Q4KS, "Q4_K_S", ggml_sys::LLAMA_FTYPE_MOSTLY_Q4_K_S),
        (Self::Q4_1, "Q4_1", ggml_sys::LLAMA_FTYPE_MOSTLY_Q4_1),
        (Self::Q4_0, "Q4_0", ggml_sys::LLAMA_FTYPE_MOSTLY_Q4_0),
        (Self::Iq4Nl, "IQ4_NL", ggml_sys::LLAMA_FTYPE_MOSTLY_IQ4_NL),
        (Self::Iq4Xs, "IQ4_XS", ggml_sys::LLAMA_FTYPE_MOSTLY_IQ4_XS),
        (Self::Q3KL, "Q3_K_L", ggml_sys::LLAMA_FTYPE_MOSTLY_Q3_K_L),
        (Self::Q3KM, "Q3_K_M", ggml_sys::LLAMA_FTYPE_MOSTLY_Q3_K_M),
        (Self::Q3KS, "Q3_K_S", ggml_sys::LLAMA_FTYPE_MOSTLY_Q3_K_S),
        (Self::Q2K, "Q2_K", ggml_sys::LLAMA_FTYPE_MOSTLY_Q2_K),
        (Self::Tq2_0, "TQ2_0", ggml_sys::LLAMA_FTYPE_MOSTLY_TQ2_0),
        (Self::Tq1_0, "TQ1_0", ggml_sys::LLAMA_FTYPE_MOSTLY_TQ1_0),
        (Self::Q2_0, "Q2_0", ggml_sys::LLAMA_FTYPE_MOSTLY_Q2_0),
        (Self::Q1_0, "Q1_0", ggml_sys::LLAMA_FTYPE_MOSTLY_Q1_0),
    ];

    /// Returns all mixes.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.into_iter().map(|(ty, _, _)| ty)
    }

    /// Returns the name, such as `Q4_K_M`.
    pub fn as_str(self) -> &'static str {
        self.entry().1
    }

    /// Returns the mix with this name, in any case of letters.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = Self::NAMES.into_iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(ty, _, _)| ty)
    }

    fn entry(self) -> (Self, &'static str, ggml_sys::llama_ftype) {
        // Every variant has an entry: see the test.
        Self::NAMES[self as usize]
    }
}

/// Quantizes a model file.
///
/// # Examples
/// ```no_run
/// use llama_rs::{FileType, Quantize};
///
/// Quantize::new(FileType::Q4KM).run("model-f16.gguf", "model-q4.gguf")?;
/// # Ok::<(), llama_rs::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until run() is called"]
pub struct Quantize {
    file_type: FileType,
    threads: Option<u32>,
    allow_requantize: bool,
    pure: bool,
}

impl Quantize {
    /// Makes a quantizer for a mix.
    pub fn new(file_type: FileType) -> Self {
        Self { file_type, threads: None, allow_requantize: false, pure: false }
    }

    /// Sets the number of threads, by default [`Cpu::default_threads`].
    pub fn threads(mut self, threads: u32) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets whether weights that are quantized already may be quantized again, which adds up the errors.
    pub fn allow_requantize(mut self, allow: bool) -> Self {
        self.allow_requantize = allow;
        self
    }

    /// Sets whether all matrices get the mix's main type, without exceptions for sensitive ones.
    pub fn pure(mut self, pure: bool) -> Self {
        self.pure = pure;
        self
    }

    /// Reads a model and writes the quantized one. The output appears under its name only when it is complete.
    ///
    /// # Errors
    /// As [`ModelBuilder::load`](crate::ModelBuilder::load) about the input; [`ErrorKind::InvalidArgument`](
    /// crate::ErrorKind::InvalidArgument) if both are one file or there are too many threads;
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) about the output.
    pub fn run(self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let cores = Cpu::probe();
        let default = u32::try_from(cores.default_threads()).unwrap_or(1);
        let threads = self.threads.unwrap_or(default);
        if threads == 0 || threads as usize > cores.logical.len() {
            let most = cores.logical.len();
            return Err(Error::invalid(format!("{threads} threads: must be 1 to {most}")));
        }
        let files = ModelFiles::open(from)?;
        let report = smol_gguf::check_shards(files.shards(), Depth::Header);
        report.into_result().map_err(|error| gguf_error(error, from))?;
        if files.shards().iter().filter_map(|file| file.path()).any(|path| same_file(path, to)) {
            return Err(Error::invalid("the output is the input").with_path(to));
        }
        let input = files.c_paths()?.swap_remove(0);
        let part = Part::beside(to);
        let output = c_path(&part.path)?;
        let (_, _, ftype) = self.file_type.entry();
        quantize(&input, &output, ftype, threads, self.allow_requantize, self.pure)
            .map_err(|error| error.with_path(from))?;
        std::fs::rename(&part.path, to)
            .map_err(|error| Error::io(error, "cannot write the model", Some(to)))
    }
}

/// A file that is being written; removed again unless it was renamed.
struct Part {
    path: PathBuf,
}

impl Part {
    fn beside(to: &Path) -> Self {
        let mut name = to.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.part", std::process::id()));
        Self { path: to.with_file_name(name) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_type_has_its_entry() {
        for ty in FileType::all() {
            assert_eq!(ty.entry().0, ty);
            assert_eq!(FileType::from_name(&ty.as_str().to_lowercase()), Some(ty));
        }
        assert_eq!(FileType::from_name("Q9_9"), None);
    }
}

//! Upstream's command-line tools with the engines inside (feature `tools`).

use std::ffi::CString;
use std::path::PathBuf;

pub use ggml_sys::tools::Tool;
use smol_engine::pack_cache::PackedFile;

use crate::engines::Engines;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::pack_cache::during_load;
use crate::ffi::{exit, log};
use crate::options::EngineOptions;
use crate::pack_cache::packed_for_upstream;
use crate::{paging, streaming};

/// Runs a tool with the arguments of a program, the first being its name, and returns its exit code.
///
/// Without options nothing of this crate is installed: the tool works as upstream's own. With options the overlay and the
/// engines are, before the tool starts, and the report is written when it ends, also when it ends by calling `exit`. A
/// signal that ends the process leaves the report empty.
///
/// The process is the tool's: see [`ggml_sys::tools::run`]. For a second tool start a second process.
///
/// # Errors
/// [`ErrorKind::Cpu`] if the CPU can't run this build; what [`EngineOptions::install`] refuses; [`ErrorKind::Io`] if the
/// report can't be written; [`ErrorKind::Internal`] for a C++ exception that the tool let out.
pub fn run(tool: Tool, args: &[CString], options: Option<&EngineOptions>) -> Result<i32> {
    ggml_sys::cpu::check().map_err(|e| Error::new(ErrorKind::Cpu, e.to_string()))?;
    let mut args = args.to_vec();
    let mut packed = None;
    if let Some(options) = options {
        check_options(options)?;
        let mut engines = options.install()?;
        let tables = [
            ("pager", options.pager.is_some()),
            ("stream", options.stream.is_some()),
            ("pack_cache", options.pack_cache.is_some()),
        ];
        for (table, wanted) in tables {
            if wanted && set_up(tool, &mut args, options, table, (&mut engines, &mut packed))? {
                break;
            }
        }
        // The tool prints in its own way.
        log::uninstall();
        exit::hold(engines)?;
    }
    let run = || {
        ggml_sys::tools::run(tool, &args)
            .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))
    };
    let code = match packed {
        // The model may live until the process ends, when the tool calls `exit`.
        Some(file) => {
            let file: &'static PackedFile = Box::leak(Box::new(file));
            during_load(Some((file, None)), run).map(|(code, _)| code)
        }
        None => run(),
    };
    let finished = exit::release().map_or(Ok(()), |engines| engines.finish());
    let code = code?;
    finished?;
    Ok(code)
}

/// Sets up the pager or the stream of the model that the tool will load, or the cache of one that lies in memory, whichever
/// `table` of the options is about; whether the model can have it. Of what is read on demand the tool is told not to map the
/// file, which would read all of it.
fn set_up(
    tool: Tool,
    args: &mut Vec<CString>,
    options: &EngineOptions,
    table: &str,
    (engines, packed): (&mut Engines, &mut Option<PackedFile>),
) -> Result<bool> {
    let refused = |message: String| Error::new(ErrorKind::Config, format!("{table}: {message}"));
    if tool.name() == Tool::QUANTIZE.name() {
        return Err(refused(format!("{tool} computes nothing with weights")));
    }
    let path = model_path(args).map_err(refused)?;
    let repack = !args.iter().any(|arg| matches!(arg.as_bytes(), b"-nr" | b"--no-repack"));
    if table == "pack_cache" {
        let (file, statistics) = packed_for_upstream(&path, options, repack)?.unzip();
        engines.set_cache(statistics);
        *packed = file.flatten();
        return Ok(packed.is_some());
    }
    let own = |arg: &CString| LOAD_MODES.iter().any(|mode| arg.as_bytes() == mode.as_bytes());
    if let Some(arg) = args.iter().find(|arg| own(arg)) {
        let arg = arg.to_string_lossy();
        return Err(refused(format!("weights are not mapped; leave {arg} out")));
    }
    let (found, cached) = if table == "pager" {
        let (pager, cached) = paging::page_for_upstream(&path, options, repack)?.unzip();
        engines.set_pager(pager.clone());
        (pager.is_some(), cached)
    } else {
        let (stream, cached) = streaming::stream_for_upstream(&path, options, repack)?.unzip();
        engines.set_stream(stream.clone());
        (stream.is_some(), cached)
    };
    engines.set_cache(cached.flatten());
    if found {
        args.splice(1..1, [c"--load-mode".to_owned(), c"none".to_owned()]);
    }
    Ok(found)
}

/// Options of the tools that say how the file gets into memory.
const LOAD_MODES: [&str; 8] =
    ["-lm", "--load-mode", "-mmp", "--mmap", "--no-mmap", "--mlock", "-dio", "--direct-io"];

/// The one model that a tool is to load.
fn model_path(args: &[CString]) -> Result<PathBuf, String> {
    let is_option = |arg: &CString| matches!(arg.as_bytes(), b"-m" | b"--model");
    let mut models = args.iter().zip(args.iter().skip(1)).filter(|(arg, _)| is_option(arg));
    match (models.next(), models.next()) {
        (Some((_, path)), None) if !path.as_bytes().contains(&b',') => {
            Ok(PathBuf::from(path.to_string_lossy().into_owned()))
        }
        _ => Err("exactly one model must be named, by -m FILE".to_owned()),
    }
}

/// Refuses what upstream's code decides before an engine is asked.
fn check_options(options: &EngineOptions) -> Result<()> {
    match options.pager.as_ref().and_then(|pager| pager.experts) {
        Some(experts) => Err(Error::new(
            ErrorKind::Config,
            format!(
                "pager.experts: the tools have an option for that, --override-kv ARCH.expert_used_count=int:{experts}, with \
                 the model's architecture for ARCH"
            ),
        )),
        None => Ok(()),
    }
}

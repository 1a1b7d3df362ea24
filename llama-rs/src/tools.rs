//! Upstream's command-line tools with the engines inside (feature `tools`).

use std::ffi::CString;

pub use ggml_sys::tools::Tool;

use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{exit, log};
use crate::options::EngineOptions;

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
    if let Some(options) = options {
        check_options(options)?;
        let engines = options.install()?;
        // The tool prints in its own way.
        log::uninstall();
        exit::hold(engines)?;
    }
    let code = ggml_sys::tools::run(tool, args)
        .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()));
    let finished = exit::release().map_or(Ok(()), |engines| engines.finish());
    let code = code?;
    finished?;
    Ok(code)
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

//! `smol recut`: a GGUF file in another form, and the room of what two files hold.

mod edits;
mod experts;
mod file_type;
mod head;
mod input;
mod pattern;
mod report;
mod rewrite;
mod setting;

use crate::cli::Global;
use crate::failure::Failure;
use crate::interrupt;
use anyhow::Result;
use clap::ArgGroup;
use indicatif::ProgressBar;
use smolmaxxing::ByteSize;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rewrite a GGUF file, or free the room of experts that another file holds
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "smol recut EDITS [OPTIONS] <IN> <OUT>\n       \
                      smol recut --punch|--fill <FILE> --copy <COPY> [OPTIONS]",
    after_help = "Examples:\n  smol recut --requantize '*=q4_K' in.gguf out.gguf\n  \
                  curl -L URL | smol recut --split 2GB - out\n  \
                  smol recut --experts-last mixture.gguf last.gguf\n  \
                  smol recut --head-from texts/ --keep 32768 in.gguf out.gguf",
    group(ArgGroup::new("edits").multiple(true)),
    group(ArgGroup::new("in_place").args(["punch", "fill"]).conflicts_with_all(["edits", "input"]))
)]
pub struct Args {
    /// The model: path of a .gguf file (any file of a split model), name of a model, URL, or `-`
    /// for standard input
    #[arg(value_name = "IN", required_unless_present = "in_place", requires = "edits")]
    input: Option<OsString>,
    /// The file to write; with --split what the names of the files start with
    #[arg(value_name = "OUT", required_unless_present = "in_place")]
    output: Option<PathBuf>,
    /// Replace OUT if it is there
    #[arg(short, long, conflicts_with = "in_place")]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Put routed experts behind all else, aligned for reads past the page cache
    #[arg(long, group = "edits", help_heading = "Edits")]
    experts_last: bool,
    /// Write several files of about this size, such as 4GB, that load as one model
    #[arg(long, group = "edits", value_name = "SIZE", help_heading = "Edits")]
    split: Option<ByteSize>,
    #[command(flatten)]
    edits: edits::EditArgs,
    #[command(flatten)]
    head: head::HeadArgs,
    /// Free the room of the experts in FILE, which COPY holds too; FILE can't be run any more
    #[arg(long, value_name = "FILE", requires = "copy", help_heading = "Freed experts")]
    punch: Option<PathBuf>,
    /// Put the experts back into FILE, so that it is as it was before `--punch`
    #[arg(long, value_name = "FILE", requires = "copy", help_heading = "Freed experts")]
    fill: Option<PathBuf>,
    /// A file with the same experts, such as the result of `--experts-last`
    #[arg(long, value_name = "COPY", requires = "in_place", help_heading = "Freed experts")]
    copy: Option<PathBuf>,
}

/// Does one of the two.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    match (&args.input, &args.output, &args.punch, &args.fill, &args.copy) {
        (Some(input), Some(output), ..) => rewrite::run(input, output, args, global)?,
        (_, _, Some(file), _, Some(copy)) => experts::punch(file, copy, args.json)?,
        (_, _, _, Some(file), Some(copy)) => experts::fill(file, copy, args.json)?,
        _ => return Err(Failure::usage("nothing to do").advice("see `smol recut --help`").into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows how far work has come, and breaks it off after Ctrl-C.
struct Work {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

impl Work {
    fn new(bar: ProgressBar) -> Result<Self> {
        Ok(Self { bar, stop: interrupt::stop_on_ctrl_c()? })
    }

    fn reached(&self, position: u64) -> ControlFlow<()> {
        self.bar.set_position(position);
        if self.stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// Gives an error of files its advice; one of work that was broken off says what it left.
fn explained<T>(result: smol_gguf::Result<T>, stopped: &str) -> Result<T> {
    use smol_gguf::ErrorKind;
    result.map_err(|error| match error.kind() {
        ErrorKind::Stopped => Failure::stopped(stopped).into(),
        ErrorKind::NothingToFree { .. } | ErrorKind::NoExperts => anyhow::Error::new(error)
            .context(Failure::new("there are no experts whose room could be freed")),
        ErrorKind::NotACopy { .. } | ErrorKind::OtherCopy { .. } => anyhow::Error::new(error)
            .context(
                Failure::new("the copy doesn't hold these experts")
                    .advice("name the file that `smol recut --experts-last` wrote from this one"),
            ),
        _ => error.into(),
    })
}

/// Prints one JSON object.
fn print_json(value: &serde_json::Value) -> Result<()> {
    crate::report::print(true, value, |_| Ok(()))
}

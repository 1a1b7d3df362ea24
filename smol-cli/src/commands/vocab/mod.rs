//! `smol vocab`: which tokens of a model's vocabulary some text needs.

mod ids;
mod select;
mod texts;

use crate::cli::Global;
use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

pub use ids::read_ids;
pub use texts::select;

/// Choose the tokens that a model should be able to write
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Select(select::Args),
}

/// Runs the command.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    match &args.command {
        Command::Select(args) => select::run(args, global),
    }
}

//! `smol trace`: records of which experts a model uses.

pub mod record;
pub mod sim;

use crate::cli::Global;
use anyhow::Result;
use clap::Subcommand;
use std::process::ExitCode;

/// Record which experts a model uses, and simulate other pools
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Record(Box<record::Args>),
    Sim(sim::Args),
}

/// Runs the command.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    match &args.command {
        Command::Record(args) => record::run(args, global),
        Command::Sim(args) => sim::run(args),
    }
}

//! `smol completions`: scripts that let shells complete the command line.

use crate::cli::Cli;
use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::io::Write as _;
use std::process::ExitCode;

/// Print a script that lets a shell complete smol's command line
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell to print it for
    shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> Result<ExitCode> {
    // Into memory first: the generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "smol", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

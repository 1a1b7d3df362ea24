//! The command line's grammar, and the start of each command.

use crate::cache::Cache;
use crate::catalogue::Catalogue;
use crate::commands::{
    bench, cache, chat, completions, doctor, inspect, kernels, models, perplexity, plan, pull,
    recut, run, tokenize, trace, vocab,
};
use crate::{interrupt, memory};
use anyhow::Result;
use clap::{Parser, Subcommand};
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the largest language model that a small device can hold.
#[derive(Debug, Parser)]
#[command(name = "smol", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

/// Options of all commands.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Folder for fetched models [default: smolmaxxing in the user's cache folder]
    #[arg(long, global = true, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// List of known models to use instead of the built-in one
    #[arg(long, global = true, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    /// Tell what happens inside, on standard error
    #[arg(short, long, global = true)]
    verbose: bool,
}

impl Global {
    /// Returns the folder that models are kept in.
    pub fn cache(&self) -> Result<Cache> {
        Cache::new(self.cache.as_deref())
    }

    /// Returns the list of known models.
    pub fn catalogue(&self) -> Result<Catalogue> {
        Catalogue::load(self.catalogue.as_deref())
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Chat(Box<chat::Args>),
    Perplexity(perplexity::Args),
    Bench(bench::Args),
    Plan(Box<plan::Args>),
    Inspect(inspect::Args),
    Kernels(kernels::Args),
    Tokenize(tokenize::Args),
    Trace(trace::Args),
    Vocab(vocab::Args),
    Pull(pull::Args),
    Recut(recut::Args),
    Models(models::Args),
    Cache(cache::Args),
    Doctor(doctor::Args),
    Completions(completions::Args),
}

/// Reads the command line and runs the command.
pub fn run() -> Result<ExitCode> {
    // Help, version and usage errors print themselves and exit, the latter with code 2.
    let Cli { command, global } = Cli::parse();
    if global.verbose {
        show_log();
    } else {
        // Errors carry the lines that matter.
        smolmaxxing::log::logging().silence();
    }
    interrupt::let_large_writes_fail();
    if !matches!(command, Command::Models(_) | Command::Completions(_)) {
        memory::check()?;
    }
    match command {
        Command::Run(args) => run::run(&args, &global),
        Command::Chat(args) => chat::run(&args, &global),
        Command::Perplexity(args) => perplexity::run(&args, &global),
        Command::Bench(args) => bench::run(&args, &global),
        Command::Plan(args) => plan::run(&args, &global),
        Command::Inspect(args) => inspect::run(&args, &global),
        Command::Kernels(args) => kernels::run(&args),
        Command::Tokenize(args) => tokenize::run(&args, &global),
        Command::Trace(args) => trace::run(&args, &global),
        Command::Vocab(args) => vocab::run(&args, &global),
        Command::Pull(args) => pull::run(&args, &global),
        Command::Recut(args) => recut::run(&args, &global),
        Command::Cache(args) => cache::run(&args),
        Command::Models(args) => models::run(&args, &global),
        Command::Doctor(args) => doctor::run(&args, &global),
        Command::Completions(args) => completions::run(&args),
    }
}

/// Prints the library's events and llama.cpp's lines on standard error.
fn show_log() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .init();
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory as _;

    #[test]
    fn grammar_is_consistent() {
        Cli::command().debug_assert();
    }
}

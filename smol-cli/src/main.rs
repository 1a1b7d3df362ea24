//! `smol`: the command line of smolmaxxing.

mod arguments;
mod cache;
mod catalogue;
mod cli;
mod commands;
mod failure;
mod fetch;
mod interrupt;
mod memory;
mod model;
mod progress;
mod report;
mod running;
mod space;
mod speeds;
mod table;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(code) => code,
        Err(error) => failure::report(&error),
    }
}

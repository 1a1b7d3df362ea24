//! Checks models and prints what is wrong: `cargo run --example check -- [--full] FILE...`

use std::process::ExitCode;

use smol_gguf::{Depth, check_file};

#[allow(clippy::print_stdout)] // an example's output
fn main() -> ExitCode {
    let mut depth = Depth::Header;
    let mut all_usable = true;
    for arg in std::env::args_os().skip(1) {
        if arg == "--full" {
            depth = Depth::Full;
            continue;
        }
        match check_file(&arg, depth) {
            Ok(report) => {
                for finding in report.findings() {
                    println!("{finding}");
                }
                if report.is_usable() {
                    println!("{}: usable", arg.display());
                }
                all_usable &= report.is_usable();
            }
            Err(error) => {
                println!("error: {error}");
                all_usable = false;
            }
        }
    }
    if all_usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! Upstream's `llama-bench`, with the engines that `--smol-config` asks for.

use std::process::ExitCode;

fn main() -> ExitCode {
    llama_tools::main(llama_rs::tools::Tool::BENCH)
}

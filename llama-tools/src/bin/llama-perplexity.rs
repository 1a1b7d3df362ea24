//! Upstream's `llama-perplexity`, with the engines that `--smol-config` asks for.

use std::process::ExitCode;

fn main() -> ExitCode {
    llama_tools::main(llama_rs::tools::Tool::PERPLEXITY)
}

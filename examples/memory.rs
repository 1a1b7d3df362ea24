//! A model in a limited amount of memory: how it will run, and what it has read from flash.
//!
//!     cargo run --release -p smolmaxxing --example memory -- MODEL 900MiB
#![allow(clippy::print_stdout)]

use smolmaxxing::plan::{PlanMode, PlannedContext};
use smolmaxxing::{ByteSize, GenerateOptions, Model, Result, SamplerBuilder, Session};

/// Tokens of the context: what does not go into it is left to weights.
const CONTEXT: u32 = 1024;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(Ok(ByteSize(ram)))) =
        (arguments.next(), arguments.next().map(|size| size.parse()))
    else {
        eprintln!("usage: memory MODEL SIZE, with a size such as 900MiB");
        std::process::exit(2);
    };
    let planned = PlannedContext { n_ctx: Some(CONTEXT), ..PlannedContext::default() };
    let builder = || Model::builder(&path).ram(ram).planned_context(planned);

    // The same decision as load() makes, without loading. A model that cannot run in so little memory is an error.
    let plan = builder().plan()?;
    let how = match &plan.mode {
        PlanMode::Resident => "in memory".to_owned(),
        PlanMode::Paged { slots, experts, .. } => format!("{slots} of {experts} experts in memory"),
        PlanMode::Streamed { tensors, .. } => format!("{} matrices streamed", tensors.len()),
        other => format!("{other:?}"),
    };
    let total = plan.parts.total() as f64 / 1e6;
    println!("{how}, {total:.0} MB, {:.0} MB a token from flash", plan.flash_mb_per_token);

    let model = builder().load()?;
    let context = model.context().n_ctx(CONTEXT).build()?;
    let mut session = Session::new(context, SamplerBuilder::greedy().build(&model)?)?;
    let options = GenerateOptions { max_tokens: Some(32), ..GenerateOptions::default() };
    let answer = session.generate("The capital of France is", &options)?.complete()?;
    println!("{}", answer.text);
    println!("{:.1} tokens/s", answer.stats.generation_tps());
    if let Some(pager) = model.pager_statistics() {
        println!("{:.1} MB a token, {:.1} % missed", pager.mb_per_token, pager.miss_rate * 100.0);
    }
    if let Some(stream) = model.stream_statistics() {
        println!("{:.1} MB a token", stream.mb_per_pass);
    }
    Ok(())
}

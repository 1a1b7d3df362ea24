//! `smol bench`: speed of evaluating prompts and of generating, as llama-bench measures it.

mod clock;
mod report;

use crate::arguments::{EngineStatistics, LayoutArgs, MemoryArgs, clamped_threads, load_model};
use crate::cli::Global;
use crate::failure::notice;
use crate::interrupt;
use crate::model::ModelArg;
use crate::progress;
use crate::running::Running;
use anyhow::Result;
use report::{Row, Samples};
use smol_engine::machine::{Cpu, bytes_read_from_disk, peak_rss};
use smolmaxxing::plan::PlannedContext;
use smolmaxxing::{Batch, CancelToken, Context, Model, SeqId, Token};
use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

/// Measure the speed of a model
///
/// `ppN` evaluates a prompt of N random tokens, `tgN` generates N tokens one by one: the tests and
/// columns of llama-bench.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    layouts: LayoutArgs,
    /// Lengths of prompts; 0 leaves the test out
    #[arg(short = 'p', long, value_name = "TOKENS", value_delimiter = ',', default_value = "512",
        value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    prompt: Vec<u32>,
    /// Numbers of tokens to generate; 0 leaves the test out
    #[arg(short = 'n', long, value_name = "TOKENS", value_delimiter = ',', default_value = "128",
        value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    generate: Vec<u32>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repetitions: u32,
    /// Numbers of threads [default: as many as there are big cores]
    #[arg(short, long, value_name = "N", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..))]
    threads: Vec<u32>,
    /// Print a JSON list with the field names of llama-bench
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryArgs,
}

/// Most tokens that are evaluated at once.
const N_BATCH: u32 = 2048;

/// A test of one kind and length.
#[derive(Debug, Clone, Copy)]
enum Test {
    Prompt(u32),
    Generate(u32),
}

impl Test {
    fn tokens(self) -> u32 {
        match self {
            Self::Prompt(tokens) | Self::Generate(tokens) => tokens,
        }
    }
}

/// Measures and prints a row a test.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let threads: Vec<_> = match &args.threads[..] {
        [] => vec![clamped_threads(None)],
        asked => asked.iter().map(|&threads| clamped_threads(Some(threads))).collect(),
    };
    let prompts = args.prompt.iter().map(|&tokens| Test::Prompt(tokens));
    let generations = args.generate.iter().map(|&tokens| Test::Generate(tokens));
    let tests: Vec<_> =
        prompts.chain(generations).filter(|test: &Test| test.tokens() > 0).collect();
    let path = args.model.path(global)?;
    let cancel = CancelToken::new();
    interrupt::cancel_on_ctrl_c(&cancel)?;
    let _running = Running::start(global, "bench", &path, args.memory.ram());
    let start = Instant::now();
    let n_ctx = tests.iter().map(|test| test.tokens()).max();
    let planned = PlannedContext { n_ctx, ..PlannedContext::default() };
    let model = load_model(&path, &cancel, |model| {
        args.memory.apply(model.layouts(args.layouts.options(global))).planned_context(planned)
    });
    let model = model.map_err(|error| args.memory.explain(error))?;
    let load = start.elapsed();

    let repetitions = u64::from(args.repetitions);
    let bar = progress::steps("bench", (threads.len() * tests.len()) as u64 * repetitions);
    let cpu = Cpu::probe().name.unwrap_or_default();
    let mut rows = Vec::new();
    for &threads in &threads {
        for &test in &tests {
            let (n_prompt, n_gen) = match test {
                Test::Prompt(tokens) => (tokens, 0),
                Test::Generate(tokens) => (0, tokens),
            };
            let time = SystemTime::now();
            let samples = measure(&model, test, threads, args.repetitions, &cancel, || bar.inc(1));
            rows.push(Row {
                cpu: cpu.clone(),
                path: path.clone(),
                description: model.description(),
                size: model.size(),
                params: model.n_params(),
                n_batch: N_BATCH,
                n_ubatch: model.default_n_ubatch(),
                threads,
                n_prompt,
                n_gen,
                time,
                samples: samples.inspect_err(|_| bar.finish_and_clear())?,
                load,
                peak_rss: peak_rss(),
            });
        }
    }
    bar.finish_and_clear();
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", report::table(&rows))?;
        if io::stderr().is_terminal() {
            EngineStatistics::of(&model).lines().for_each(notice);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    model: &Model,
    test: Test,
    threads: u32,
    repetitions: u32,
    cancel: &CancelToken,
    mut done: impl FnMut(),
) -> Result<Samples> {
    let context = model
        .context()
        .n_ctx(test.tokens())
        .n_batch(N_BATCH)
        .threads(threads, threads)
        .cancel(cancel);
    let mut context = context.build()?;
    let mut tokens = RandomTokens::new(model);
    // The first run pays for page faults and thread starts.
    let warm_up = match test {
        Test::Prompt(n) => Test::Prompt(n),
        Test::Generate(_) => Test::Generate(1),
    };
    once(&mut context, warm_up, &mut tokens)?;
    let before = EngineStatistics::of(model);
    let read_before = bytes_read_from_disk();
    let mut times = Vec::new();
    for _ in 0..repetitions {
        context.kv().clear()?;
        let start = Instant::now();
        once(&mut context, test, &mut tokens)?;
        times.push(start.elapsed());
        done();
    }
    let read = read_before.zip(bytes_read_from_disk()).map(|(before, after)| after - before);
    let engines = EngineStatistics::of(model).since(&before);
    Ok(Samples { tokens: test.tokens(), times, bytes_read: read, engines })
}

fn once(context: &mut Context, test: Test, tokens: &mut RandomTokens) -> Result<()> {
    match test {
        Test::Prompt(n) => {
            let prompt: Vec<_> = (0..n).map(|i| tokens.next(i == 0)).collect();
            context.prefill(SeqId::FIRST, &prompt)?;
        }
        Test::Generate(n) => {
            let mut batch = Batch::new();
            for position in 0..n {
                batch.clear();
                batch.push(tokens.next(position == 0), position as i32, SeqId::FIRST, true);
                context.decode(&batch)?;
            }
        }
    }
    Ok(())
}

/// Tokens without a meaning, the same ones each time.
struct RandomTokens {
    first: Option<Token>,
    n_vocab: u64,
    state: u64,
}

impl RandomTokens {
    fn new(model: &Model) -> Self {
        let vocab = model.vocab();
        let first = vocab.add_bos().then(|| vocab.bos()).flatten();
        Self { first, n_vocab: vocab.len().max(1) as u64, state: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Returns the next token; a text starts with the token that the model wants there.
    fn next(&mut self, starts: bool) -> Token {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let random = Token((self.state % self.n_vocab) as i32);
        if starts { self.first.unwrap_or(random) } else { random }
    }
}

//! `smol chat`: a conversation.

mod input;
mod transcript;

use crate::arguments::{
    ComputeArgs, EngineStatistics, LayoutArgs, MemoryArgs, SamplingArgs, bits_per_weight,
    load_model,
};
use crate::cli::Global;
use crate::commands::run::{stream, summary};
use crate::failure::{Failure, notice, print_error};
use crate::interrupt;
use crate::model::ModelArg;
use crate::running::Running;
use anyhow::Result;
use input::{Input, Line};
use smol_engine::machine::peak_rss;
use smolmaxxing::chat::Message;
use smolmaxxing::generation::{Finish, GenerateOptions, Stats};
use smolmaxxing::loops::LoopOptions;
use smolmaxxing::session::{ChatOptions, Session};
use smolmaxxing::{CancelToken, Error, ErrorKind};
use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Chat with a model
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArg,
    #[command(flatten)]
    layouts: LayoutArgs,
    /// First message; further ones come from the terminal or, a line each, from standard input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<OsString>,
    /// Instructions that hold for the whole conversation
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<OsString>,
    /// Most tokens of an answer [default: until its end, or until the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true)]
    tokens: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    compute: ComputeArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

const HELP: &str = "\
/help        show this
/reset       forget the conversation
/save FILE   write the conversation to a file
/load FILE   go on with a conversation from a file
/stats       counts and speeds of the last answer, and memory
/quit        leave (as does Ctrl-D; Ctrl-C stops an answer or drops a line)
";

/// Chats until the input ends.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let system = utf8(args.system.as_ref(), "--system")?;
    let prompt = utf8(args.prompt.as_ref(), "-p")?;
    let path = args.model.path(global)?;
    let cancel = CancelToken::new();
    let idle = interrupt::cancel_on_ctrl_c(&cancel)?;
    let _running = Running::start(global, "chat", &path, args.memory.ram());
    let model = load_model(&path, &cancel, |model| {
        let model = model.layouts(args.layouts.options(global));
        args.memory.apply(model).planned_context(args.compute.planned())
    });
    let model = model.map_err(|error| args.memory.explain(error))?;
    let sampler = args.sampling.builder(bits_per_weight(&model)).build(&model)?;
    let context =
        args.compute.build(&model, &cancel).map_err(|error| args.memory.explain(error))?;
    let mut session = Session::new(context, sampler)?;
    if let Some(warning) = session.chat_template().warning() {
        notice(warning);
    }
    let mut input = Input::new(global, idle)?;
    if input.is_interactive() {
        let context = session.context().n_ctx();
        let described = model.description();
        let name = model.metadata().get_str("general.name").unwrap_or(&described);
        writeln!(io::stdout(), "{name}, context {context} tokens; /help lists the commands")?;
    }
    let first: Vec<_> = system.map(Message::system).into_iter().collect();
    let mut chat =
        Chat { session, messages: first.clone(), first, last: None, cancel, tokens: args.tokens };
    let mut given = prompt.map(str::to_owned);
    let mut code = ExitCode::SUCCESS;
    let interactive = input.is_interactive();
    let mut on_error = |error| {
        // A script sees by the exit code what a person has read.
        if !interactive {
            code = ExitCode::FAILURE;
        }
        stay(error)
    };
    while !interrupt::must_end() {
        let line = match given.take() {
            // A Ctrl-C from before it is for its answer.
            Some(text) => text,
            None => match input.next()? {
                Line::Text(text) => {
                    chat.cancel.reset();
                    text
                }
                Line::End => break,
            },
        };
        let line = line.trim();
        match line.strip_prefix('/') {
            _ if line.is_empty() => {}
            Some("quit" | "exit") => break,
            Some(command) => {
                if let Err(error) = chat.command(command) {
                    on_error(error)?;
                }
            }
            None => {
                if let Err(error) = chat.turn(line) {
                    on_error(error)?;
                }
            }
        }
    }
    input.save_history();
    if interrupt::must_end() {
        code = ExitCode::from(interrupt::exit_code());
    }
    if io::stderr().is_terminal() {
        EngineStatistics::of(&model).lines().for_each(notice);
    }
    Ok(code)
}

/// An argument's text.
fn utf8<'a>(text: Option<&'a OsString>, flag: &str) -> Result<Option<&'a str>> {
    let utf8 = |text: &'a OsString| {
        let message = format!("the text of {flag} is not UTF-8");
        text.to_str().ok_or_else(|| Failure::usage(message).advice("convert it to UTF-8"))
    };
    Ok(text.map(utf8).transpose()?)
}

/// Tells an error and goes on, unless nobody listens any more.
fn stay(error: anyhow::Error) -> Result<()> {
    if error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe) {
        return Err(error);
    }
    print_error(&error);
    Ok(())
}

struct Chat {
    session: Session,
    messages: Vec<Message>,
    /// What the conversation starts with.
    first: Vec<Message>,
    last: Option<(Finish, Stats)>,
    cancel: CancelToken,
    /// Most tokens of an answer.
    tokens: Option<usize>,
}

impl Chat {
    /// Answers what the user says. After an error the conversation is as before.
    fn turn(&mut self, text: &str) -> Result<()> {
        self.messages.push(Message::user(text));
        let answer = self.answer();
        match &answer {
            Ok(answer) => self.messages.push(Message::assistant(answer)),
            Err(_) => drop(self.messages.pop()),
        }
        answer.map(drop)
    }

    fn answer(&mut self) -> Result<String> {
        let generate = GenerateOptions {
            max_tokens: self.tokens,
            loop_detector: Some(LoopOptions::default()),
            cancel: Some(self.cancel.clone()),
            ..GenerateOptions::default()
        };
        let options = ChatOptions { generate, ..ChatOptions::default() };
        let generation = self.session.chat(&self.messages, &options).map_err(too_long)?;
        let mut answer = String::new();
        let (finish, stats) = stream(generation, |piece| {
            answer.push_str(piece);
            let mut out = io::stdout().lock();
            out.write_all(piece.as_bytes())?;
            out.flush()
        })?;
        writeln!(io::stdout())?;
        match finish {
            Finish::Length if self.tokens.is_none_or(|n| stats.generated_tokens < n) => {
                notice("the context is full; /reset starts over");
            }
            Finish::Loop(_) => notice("stopped, as the answer repeats itself"),
            _ => {}
        }
        self.last = Some((finish, stats));
        Ok(answer)
    }

    /// Runs a command, given without its slash.
    fn command(&mut self, line: &str) -> Result<()> {
        let (command, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let file = || match argument.trim() {
            "" => Err(Failure::usage(format!("/{command} needs the name of a file"))),
            name => Ok(Path::new(name)),
        };
        match command {
            "help" => io::stdout().write_all(HELP.as_bytes())?,
            "reset" => {
                self.session.clear()?;
                self.messages.clone_from(&self.first);
                self.last = None;
            }
            "save" => transcript::save(file()?, &self.messages)?,
            "load" => {
                self.messages = transcript::load(file()?)?;
                notice(format_args!("{} messages", self.messages.len()));
            }
            "stats" => self.print_stats()?,
            _ => {
                let message = format!("there is no command /{command}");
                return Err(Failure::usage(message).advice("/help lists the commands").into());
            }
        }
        Ok(())
    }

    fn print_stats(&self) -> Result<()> {
        let mut out = io::stdout().lock();
        match &self.last {
            Some((finish, stats)) => writeln!(out, "{}", summary(*finish, stats))?,
            None => writeln!(out, "no answer yet")?,
        }
        let (used, n_ctx) = (self.session.tokens().len(), self.session.context().n_ctx());
        writeln!(out, "context: {used} of {n_ctx} tokens")?;
        for line in EngineStatistics::of(self.session.context().model()).lines() {
            writeln!(out, "{line}")?;
        }
        if let Some(bytes) = peak_rss() {
            writeln!(out, "memory: {:.0} MB at most", bytes as f64 / 1e6)?;
        }
        Ok(())
    }
}

/// Says what to do about a conversation that has become too long.
fn too_long(error: Error) -> anyhow::Error {
    if !matches!(error.kind(), ErrorKind::PromptTooLong { .. }) {
        return error.into();
    }
    let failure = Failure::new("the conversation no longer fits into the context")
        .advice("/reset starts over; a larger context is set with -c");
    anyhow::Error::new(error).context(failure)
}

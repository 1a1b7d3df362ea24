//! An answer, token by token.

use std::fmt;
use std::time::{Duration, Instant};

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::loops::{LoopDetector, LoopOptions, Repetition};
use crate::sampler;
use crate::session::{Session, rate};
use crate::text::{StopMatcher, StopScan, Utf8Stream};
use crate::token::Token;

/// How an answer is generated and when it ends.
///
/// # Examples
/// ```
/// use llama_rs::generation::GenerateOptions;
/// let options = GenerateOptions { max_tokens: Some(64), stop: vec!["\n".into()], ..Default::default() };
/// assert!(!options.logprobs);
/// ```
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// Most tokens of the answer; `None` goes on until the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer. They are not part of it.
    pub stop: Vec<String>,
    /// Computes the log-probability of each token under the model's own distribution. Costs a pass over all logits.
    pub logprobs: bool,
    /// Goes on after tokens that end a text.
    pub ignore_eog: bool,
    /// Gives the text of special tokens instead of nothing.
    pub special_text: bool,
    /// Ends answers that repeat themselves for ever.
    pub loop_detector: Option<LoopOptions>,
    /// Stops the evaluation of the prompt and the answer from another thread.
    pub cancel: Option<CancelToken>,
}

/// A token of an answer and the text that it completes.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// Text that is complete now: whole characters, and no possible beginning of a stop string. Often empty.
    pub text: String,
    /// The token, or `None` for text that was held back when the answer was cancelled.
    pub token: Option<Token>,
    /// Natural logarithm of the token's probability under the model's own distribution, if asked for.
    pub logprob: Option<f32>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The model ended its text.
    Eos,
    /// The limit of tokens is reached, or the context is full.
    Length,
    /// The stop string of this index was found.
    Stop(usize),
    /// The text is complete by its grammar, which allows nothing else.
    Grammar,
    /// A [`CancelToken`] stopped it.
    Cancelled,
    /// The loop detector found a text that repeats itself.
    Loop(Repetition),
}

impl Finish {
    /// Returns the reason as one word: `eos`, `length`, `stop`, `grammar`, `cancelled` or `loop`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Length => "length",
            Self::Stop(_) => "stop",
            Self::Grammar => "grammar",
            Self::Cancelled => "cancelled",
            Self::Loop(_) => "loop",
        }
    }
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the evaluation of a prompt cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PromptStats {
    pub(crate) reused: usize,
    pub(crate) time: Duration,
}

/// Counts and times of an answer so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, tokens that were in memory already.
    pub reused_tokens: usize,
    /// Tokens of the answer, without the one that ends it.
    pub generated_tokens: usize,
    /// Of the answer, tokens that were evaluated to find the next one; the last token of an answer usually is not.
    pub evaluated_tokens: usize,
    /// Time to evaluate the prompt.
    pub prompt_time: Duration,
    /// Time to generate the answer: evaluation and sampling, without the time of the code that takes the pieces.
    pub generation_time: Duration,
}

impl Stats {
    /// Returns how many tokens of the prompt were evaluated a second; reused ones do not count.
    pub fn prompt_tps(&self) -> f64 {
        rate(self.prompt_tokens - self.reused_tokens, self.prompt_time)
    }

    /// Returns how many tokens were evaluated a second to generate the answer; 0 for an answer of one token, which comes
    /// out of the prompt's evaluation.
    pub fn generation_tps(&self) -> f64 {
        rate(self.evaluated_tokens, self.generation_time)
    }
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub finish: Finish,
    /// Its counts and times.
    pub stats: Stats,
}

/// The iterator over the pieces of an answer.
///
/// Each step evaluates one token. Dropping it stops the answer: the session keeps the text up to there and stays
/// usable.
///
/// # Examples
/// ```no_run
/// # fn run(session: &mut llama_rs::session::Session) -> llama_rs::Result<()> {
/// use llama_rs::generation::GenerateOptions;
///
/// let options = GenerateOptions { max_tokens: Some(32), ..Default::default() };
/// let mut generation = session.generate("Once upon a time", &options)?;
/// while let Some(piece) = generation.next() {
///     print!("{}", piece?.text);
/// }
/// println!(" [{}]", generation.finish_reason().unwrap());
/// println!("{:.1} tokens/s", generation.stats().generation_tps());
/// # Ok(())
/// # }
/// ```
#[must_use = "an iterator does nothing until used"]
pub struct Generation<'a> {
    session: &'a mut Session,
    max_tokens: usize,
    logprobs: bool,
    ignore_eog: bool,
    special_text: bool,
    loops: Option<LoopDetector>,
    cancel: Option<CancelToken>,
    // The context's own token, which `cancel` replaces while this lives.
    context_cancel: Option<CancelToken>,
    utf8: Utf8Stream,
    stops: StopMatcher,
    stats: Stats,
    finish: Option<Finish>,
    failed: bool,
}

impl<'a> Generation<'a> {
    pub(crate) fn start(
        session: &'a mut Session,
        prompt: Vec<Token>,
        options: &GenerateOptions,
    ) -> Result<Self> {
        let stops = StopMatcher::new(options.stop.iter().cloned())?;
        let loops = options.loop_detector.map(LoopDetector::new).transpose()?;
        let context_cancel = session.context.cancel_token().cloned();
        if options.cancel.is_some() {
            session.context.set_cancel_token(options.cancel.clone());
        }
        let mut this = Self {
            session,
            max_tokens: options.max_tokens.unwrap_or(usize::MAX),
            logprobs: options.logprobs,
            ignore_eog: options.ignore_eog,
            special_text: options.special_text,
            loops,
            cancel: options.cancel.clone(),
            context_cancel,
            utf8: Utf8Stream::new(),
            stops,
            stats: Stats::default(),
            finish: None,
            failed: false,
        };
        this.evaluate_prompt(prompt)?;
        Ok(this)
    }

    fn evaluate_prompt(&mut self, prompt: Vec<Token>) -> Result<()> {
        self.session.sampler.reset_text()?;
        let window = self.session.sampler.window();
        let tail = prompt[prompt.len().saturating_sub(window)..].to_vec();
        self.stats.prompt_tokens = prompt.len();
        if self.is_cancelled() {
            self.finish = Some(Finish::Cancelled);
            return Ok(());
        }
        match self.session.evaluate_prompt(prompt) {
            Ok(prompt) => {
                self.stats.reused_tokens = prompt.reused;
                self.stats.prompt_time = prompt.time;
            }
            Err(error) if error.is_cancelled() => self.finish = Some(Finish::Cancelled),
            Err(error) => return Err(error),
        }
        for token in tail {
            self.session.sampler.accept_prompt(token)?;
        }
        if self.max_tokens == 0 && self.finish.is_none() {
            self.finish = Some(Finish::Length);
        }
        Ok(())
    }

    /// Returns why the answer ended, or `None` while it goes on or after an error.
    pub fn finish_reason(&self) -> Option<Finish> {
        self.finish
    }

    /// Returns the counts and times so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Generates the rest and returns its text.
    ///
    /// # Errors
    /// The first error of a step.
    pub fn collect_text(self) -> Result<String> {
        self.complete().map(|answer| answer.text)
    }

    /// Generates the rest and returns it with the reason of its end.
    ///
    /// # Errors
    /// The first error of a step.
    pub fn complete(mut self) -> Result<Answer> {
        let mut text = String::new();
        for piece in &mut self {
            text.push_str(&piece?.text);
        }
        // An iterator that ends without an error has a reason.
        let finish = self.finish.unwrap_or(Finish::Cancelled);
        Ok(Answer { text, finish, stats: self.stats })
    }

    fn is_cancelled(&self) -> bool {
        [&self.cancel, &self.context_cancel].into_iter().flatten().any(CancelToken::is_cancelled)
    }

    /// Ends the answer; text that was held back is released.
    fn finish_with(&mut self, finish: Finish, text: &mut String) {
        self.finish = Some(finish);
        let mut rest = String::new();
        self.utf8.finish(&mut rest);
        if !rest.is_empty() {
            // Only U+FFFD can come here, and no stop string is looked for in it.
            let _ = self.stops.push(&rest, text);
        }
        self.stops.finish(text);
    }

    fn cancelled(&mut self) -> Option<Piece> {
        let mut text = String::new();
        self.finish_with(Finish::Cancelled, &mut text);
        (!text.is_empty()).then_some(Piece { text, token: None, logprob: None })
    }

    fn step(&mut self) -> Result<Option<Piece>> {
        if self.is_cancelled() {
            return Ok(self.cancelled());
        }
        let evaluated_before = self.session.evaluated_tokens();
        match self.session.evaluate_last() {
            Ok(()) => {
                self.stats.evaluated_tokens += self.session.evaluated_tokens() - evaluated_before;
            }
            Err(error) if error.is_cancelled() => return Ok(self.cancelled()),
            Err(error) => return Err(error),
        }
        let Session { context, sampler, vocab, .. } = &mut *self.session;
        let logits = context.outputs().last_logits().ok_or_else(|| {
            Error::new(ErrorKind::Internal, "the evaluation of a token gave no logits")
        })?;
        let token = sampler.sample(logits)?;
        let logprob = match self.logprobs {
            true => Some(sampler::log_softmax(logits, token)? as f32),
            false => None,
        };
        let mut piece = Piece { text: String::new(), token: Some(token), logprob };
        if vocab.is_eog(token) && !self.ignore_eog {
            let by_grammar = sampler.ended_by_grammar();
            let finish = if by_grammar { Finish::Grammar } else { Finish::Eos };
            self.finish_with(finish, &mut piece.text);
            return Ok(Some(piece));
        }
        sampler.accept(token)?;
        let bytes = vocab.token_bytes(token, self.special_text)?;
        self.session.history.push(token);
        self.stats.generated_tokens += 1;
        let mut decoded = String::new();
        self.utf8.push(&bytes, &mut decoded);
        if let StopScan::Stopped(index) = self.stops.push(&decoded, &mut piece.text) {
            self.finish = Some(Finish::Stop(index));
            return Ok(Some(piece));
        }
        let repetition = self.loops.as_mut().and_then(|loops| loops.push(token));
        let finish = if self.session.sampler.grammar_is_done() {
            Some(Finish::Grammar)
        } else if let Some(repetition) = repetition {
            Some(Finish::Loop(repetition))
        } else if self.stats.generated_tokens >= self.max_tokens || !self.session.has_room() {
            Some(Finish::Length)
        } else {
            None
        };
        if let Some(finish) = finish {
            self.finish_with(finish, &mut piece.text);
        }
        Ok(Some(piece))
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.finish.is_some() || self.failed {
            return None;
        }
        let started = Instant::now();
        let step = self.step();
        self.stats.generation_time += started.elapsed();
        self.failed = step.is_err();
        step.transpose()
    }
}

impl std::iter::FusedIterator for Generation<'_> {}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if self.cancel.is_some() {
            let token = self.context_cancel.take();
            self.session.context.set_cancel_token(token);
        }
    }
}

impl fmt::Debug for Generation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("stats", &self.stats)
            .field("finish", &self.finish)
            .finish_non_exhaustive()
    }
}

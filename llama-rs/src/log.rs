//! What llama.cpp and ggml print: where it goes, and the lines that errors carry.
//!
//! Lines go to [`tracing`] unless the application chooses otherwise with [`logging`].

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Lines that one call keeps for its error; the oldest go first.
const CAPTURED_LINES: usize = 256;
/// Warnings and errors of compute threads that are kept for whichever call fails.
const SHARED_LINES: usize = 64;

/// The severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LogLevel {
    /// Details for developers.
    Debug,
    /// Ordinary progress.
    Info,
    /// Something unexpected that was handled.
    Warn,
    /// The cause of a failure.
    Error,
}

/// The library that printed a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LogSource {
    /// llama.cpp: models, contexts, vocabularies.
    Llama,
    /// ggml: tensors, buffers, threads.
    Ggml,
}

impl LogSource {
    /// Returns the name, which is also the target of `tracing` events: `llama.cpp` or `ggml`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Llama => "llama.cpp",
            Self::Ggml => "ggml",
        }
    }
}

/// One line printed by llama.cpp or ggml, without its line break.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// Its severity.
    pub level: LogLevel,
    /// Who printed it.
    pub source: LogSource,
    /// Its text.
    pub text: String,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The application's choice of where the lines go; see [`logging`].
#[derive(Debug)]
#[must_use = "choose a destination with one of the methods"]
pub struct Logging(());

/// Chooses where the lines of llama.cpp and ggml go. The choice holds for the whole process.
///
/// Without a choice they go to `tracing`: informational lines at `DEBUG`, because llama.cpp prints hundreds of them
/// while it loads a model.
///
/// # Examples
/// ```
/// use std::sync::{Arc, Mutex};
///
/// let lines = Arc::new(Mutex::new(Vec::new()));
/// let sink = Arc::clone(&lines);
/// llama_rs::log::logging().to_fn(move |line| sink.lock().unwrap().push(line.to_string()));
/// llama_rs::log::logging().silence();
/// ```
pub fn logging() -> Logging {
    Logging(())
}

impl Logging {
    /// Sends each line to `tracing`, with the target `llama.cpp` or `ggml`.
    pub fn to_tracing(self) {
        set_sink(Sink::Tracing);
    }

    /// Sends each line to a function, on the thread that printed it.
    ///
    /// A panic of the function is contained; lines then go to `tracing` again.
    pub fn to_fn(self, sink: impl Fn(&LogLine) + Send + Sync + 'static) {
        set_sink(Sink::Function(Arc::new(sink)));
    }

    /// Drops the lines. Errors still carry those of the failing call.
    pub fn silence(self) {
        set_sink(Sink::Silent);
    }
}

#[derive(Clone)]
enum Sink {
    Tracing,
    Function(Arc<dyn Fn(&LogLine) + Send + Sync>),
    Silent,
}

static SINK: RwLock<Sink> = RwLock::new(Sink::Tracing);
static SHARED: Mutex<SharedLines> = Mutex::new(SharedLines { next: 0, lines: VecDeque::new() });

fn set_sink(sink: Sink) {
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = sink;
}

/// Warnings and errors of threads that capture nothing themselves, numbered from the start of the process.
struct SharedLines {
    next: u64,
    lines: VecDeque<(u64, LogLine)>,
}

/// A message that has not ended with a line break yet.
struct Partial {
    level: LogLevel,
    source: LogSource,
    text: String,
}

thread_local! {
    static PARTIAL: RefCell<Option<Partial>> = const { RefCell::new(None) };
    static CAPTURE: RefCell<Option<VecDeque<LogLine>>> = const { RefCell::new(None) };
}

/// Collects the lines that this thread prints until it is finished or dropped.
pub(crate) struct Capture {
    outer: Option<VecDeque<LogLine>>,
    shared_from: u64,
    open: bool,
}

/// Starts to collect lines; an enclosing capture of the same thread pauses and gets them too in the end.
pub(crate) fn capture() -> Capture {
    let outer = CAPTURE.with(|slot| slot.borrow_mut().replace(VecDeque::new()));
    let shared_from = SHARED.lock().unwrap_or_else(PoisonError::into_inner).next;
    Capture { outer, shared_from, open: true }
}

impl Capture {
    /// Ends the collection and returns its lines, and what compute threads complained about meanwhile.
    pub(crate) fn finish(mut self) -> Vec<LogLine> {
        flush_partial();
        let own = self.close();
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let since = self.shared_from;
        let others = shared.lines.iter().filter(|(number, _)| *number >= since);
        own.into_iter().chain(others.map(|(_, line)| line.clone())).collect()
    }

    fn close(&mut self) -> VecDeque<LogLine> {
        self.open = false;
        let mut outer = self.outer.take();
        CAPTURE.with(|slot| {
            let own = slot.borrow_mut().take().unwrap_or_default();
            if let Some(outer) = &mut outer {
                own.iter().for_each(|line| push_bounded(outer, line.clone(), CAPTURED_LINES));
            }
            *slot.borrow_mut() = outer;
            own
        })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.open {
            self.close();
        }
    }
}

fn push_bounded<T>(lines: &mut VecDeque<T>, line: T, limit: usize) {
    if lines.len() == limit {
        lines.pop_front();
    }
    lines.push_back(line);
}

/// What a message from C is: the start of a line of some level, or the rest of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    Start(LogLevel),
    Continuation,
}

/// Takes a message from C, which may hold a part of a line or several lines.
pub(crate) fn receive(source: LogSource, fragment: Fragment, text: &str) {
    // A thread that ends may log after its thread-locals are gone; such lines are dropped.
    let lines = PARTIAL.try_with(|slot| {
        let Ok(mut slot) = slot.try_borrow_mut() else { return Vec::new() };
        assemble(&mut slot, source, fragment, text)
    });
    for line in lines.unwrap_or_default() {
        deliver(line);
    }
}

fn assemble(
    slot: &mut Option<Partial>,
    source: LogSource,
    fragment: Fragment,
    text: &str,
) -> Vec<LogLine> {
    let mut done = Vec::new();
    let mut current = match (fragment, slot.take()) {
        (Fragment::Continuation, Some(partial)) => partial,
        (Fragment::Continuation, None) => {
            Partial { level: LogLevel::Info, source, text: String::new() }
        }
        (Fragment::Start(level), earlier) => {
            done.extend(earlier.and_then(finished));
            Partial { level, source, text: String::new() }
        }
    };
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n') {
        current.text.push_str(line);
        let (level, source) = (current.level, current.source);
        done.extend(finished(std::mem::replace(
            &mut current,
            Partial { level, source, text: String::new() },
        )));
        rest = after;
    }
    current.text.push_str(rest);
    if !current.text.is_empty() {
        *slot = Some(current);
    }
    done
}

/// The line of a message that is complete; empty lines are not worth one.
fn finished(partial: Partial) -> Option<LogLine> {
    let text = partial.text.trim_end();
    if text.is_empty() {
        return None;
    }
    Some(LogLine { level: partial.level, source: partial.source, text: text.to_owned() })
}

fn flush_partial() {
    let line = PARTIAL.with(|slot| slot.borrow_mut().take()).and_then(finished);
    if let Some(line) = line {
        deliver(line);
    }
}

fn deliver(line: LogLine) {
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner).clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| match &sink {
        Sink::Tracing => trace(&line),
        Sink::Function(function) => function(&line),
        Sink::Silent => {}
    }));
    if outcome.is_err() && matches!(sink, Sink::Function(_)) {
        set_sink(Sink::Tracing);
        let _ = catch_unwind(|| {
            tracing::error!(target: "llama.cpp", "the log function panicked; logging to tracing");
        });
    }
    record(line);
}

/// Keeps the line for the error of the call that is running on this thread, or of any call.
fn record(line: LogLine) {
    let mut line = Some(line);
    let _ = CAPTURE.try_with(|slot| {
        let Ok(mut slot) = slot.try_borrow_mut() else { return };
        if let Some(lines) = slot.as_mut() {
            lines.extend(line.take());
            if lines.len() > CAPTURED_LINES {
                lines.pop_front();
            }
        }
    });
    let Some(line) = line.filter(|line| line.level >= LogLevel::Warn) else { return };
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let number = shared.next;
    shared.next += 1;
    push_bounded(&mut shared.lines, (number, line), SHARED_LINES);
}

fn trace(line: &LogLine) {
    let text = line.text.as_str();
    match (line.source, line.level) {
        (LogSource::Llama, LogLevel::Debug) => tracing::trace!(target: "llama.cpp", "{text}"),
        (LogSource::Llama, LogLevel::Info) => tracing::debug!(target: "llama.cpp", "{text}"),
        (LogSource::Llama, LogLevel::Warn) => tracing::warn!(target: "llama.cpp", "{text}"),
        (LogSource::Llama, LogLevel::Error) => tracing::error!(target: "llama.cpp", "{text}"),
        (LogSource::Ggml, LogLevel::Debug) => tracing::trace!(target: "ggml", "{text}"),
        (LogSource::Ggml, LogLevel::Info) => tracing::debug!(target: "ggml", "{text}"),
        (LogSource::Ggml, LogLevel::Warn) => tracing::warn!(target: "ggml", "{text}"),
        (LogSource::Ggml, LogLevel::Error) => tracing::error!(target: "ggml", "{text}"),
    }
}

/// The line that tells the cause among those of a failing call, without the C++ function's name in front.
pub(crate) fn cause(log: &[LogLine]) -> Option<&str> {
    // The first error is the cause; those after it tell which callers gave up.
    let line = log.iter().find(|line| line.level == LogLevel::Error)?;
    let text = line.text.trim();
    Some(match text.split_once(": ") {
        Some((function, rest)) if is_function_name(function) => rest.trim(),
        _ => text,
    })
}

fn is_function_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:~<>".contains(&byte))
        && text.bytes().any(|byte| byte == b'_' || byte == b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(parts: &[(Fragment, &str)]) -> Vec<(LogLevel, String)> {
        let mut slot = None;
        let mut lines = Vec::new();
        for (fragment, text) in parts {
            lines.extend(assemble(&mut slot, LogSource::Llama, *fragment, text));
        }
        lines.extend(slot.and_then(finished));
        lines.into_iter().map(|line| (line.level, line.text)).collect()
    }

    #[test]
    fn continuations_join_the_line_they_belong_to() {
        let lines = texts(&[
            (Fragment::Start(LogLevel::Warn), "load: "),
            (Fragment::Continuation, "a, "),
            (Fragment::Continuation, "b\nnext"),
            (Fragment::Continuation, "\n"),
        ]);
        assert_eq!(lines, [(LogLevel::Warn, "load: a, b".into()), (LogLevel::Warn, "next".into())]);
    }

    #[test]
    fn a_new_message_ends_an_unfinished_one() {
        let lines = texts(&[
            (Fragment::Start(LogLevel::Info), "first"),
            (Fragment::Start(LogLevel::Error), "second\n"),
            (Fragment::Continuation, "third"),
        ]);
        assert_eq!(
            lines,
            [
                (LogLevel::Info, "first".into()),
                (LogLevel::Error, "second".into()),
                (LogLevel::Info, "third".into()),
            ]
        );
    }

    #[test]
    fn captures_nest_and_stay_bounded() {
        let outer = capture();
        receive(LogSource::Ggml, Fragment::Start(LogLevel::Info), "one\n");
        let inner = capture();
        for number in 0..CAPTURED_LINES + 5 {
            let text = format!("inner {number}\n");
            receive(LogSource::Ggml, Fragment::Start(LogLevel::Info), &text);
        }
        let own = |lines: Vec<LogLine>| -> Vec<LogLine> {
            lines.into_iter().filter(|line| line.level == LogLevel::Info).collect()
        };
        let inner = own(inner.finish());
        assert_eq!(inner.len(), CAPTURED_LINES);
        assert_eq!(inner.last().unwrap().text, format!("inner {}", CAPTURED_LINES + 4));
        receive(LogSource::Ggml, Fragment::Start(LogLevel::Info), "unfinished");
        let outer = own(outer.finish());
        assert_eq!(outer.last().unwrap().text, "unfinished");
        assert_eq!(outer.len(), CAPTURED_LINES);
    }

    #[test]
    fn complaints_of_other_threads_reach_the_failing_call() {
        let capture = capture();
        std::thread::spawn(|| {
            receive(LogSource::Ggml, Fragment::Start(LogLevel::Error), "worker is unhappy\n");
            receive(LogSource::Ggml, Fragment::Start(LogLevel::Info), "worker chats\n");
        })
        .join()
        .unwrap();
        let lines = capture.finish();
        assert!(lines.iter().any(|line| line.text == "worker is unhappy"));
        assert!(lines.iter().all(|line| line.text != "worker chats"));
    }

    #[test]
    fn the_cause_is_the_first_error_without_its_function() {
        let line =
            |level, text: &str| LogLine { level, source: LogSource::Llama, text: text.into() };
        let log = [
            line(LogLevel::Info, "llama_model_loader: loaded meta data"),
            line(LogLevel::Error, "llama_model_load: error loading model: missing tensor 'x'"),
            line(LogLevel::Error, "llama_model_load_from_file_impl: failed to load model"),
        ];
        assert_eq!(cause(&log), Some("error loading model: missing tensor 'x'"));
        assert_eq!(cause(&log[..1]), None);
        assert_eq!(cause(&[line(LogLevel::Error, "plain: text")]), Some("plain: text"));
    }
}

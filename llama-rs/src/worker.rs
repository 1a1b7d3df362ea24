//! A session on a thread of its own, for programs that must not wait.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{self, JoinHandle};

use crate::cancel::CancelToken;
use crate::chat::Message;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::{Finish, GenerateOptions, Generation, Piece, Stats};
use crate::session::{ChatOptions, Prompt, Session};

/// Pieces that may wait to be taken before the answer pauses.
const BUFFERED: usize = 64;

/// A session that runs on its own thread. Requests are answered one after the other.
///
/// Dropping it lets the thread finish the answers under way and end; [`join`](Self::join) gives the session back.
///
/// # Examples
/// ```no_run
/// # fn run(session: llama_rs::session::Session) -> llama_rs::Result<()> {
/// use llama_rs::generation::GenerateOptions;
/// use llama_rs::worker::Worker;
///
/// let worker = Worker::spawn(session)?;
/// let stream = worker.generate("Once upon a time", GenerateOptions::default())?;
/// for piece in stream {
///     print!("{}", piece?.text);
/// }
/// let session = worker.join()?;
/// # Ok(())
/// # }
/// ```
pub struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<Session>,
}

struct Job {
    request: Request,
    events: SyncSender<Event>,
    cancel: CancelToken,
}

enum Request {
    Generate(Prompt, GenerateOptions),
    Chat(Vec<Message>, ChatOptions),
}

enum Event {
    Piece(Piece),
    Failed(Error),
    Done(Finish, Stats),
}

impl Worker {
    /// Moves a session to a new thread.
    ///
    /// # Errors
    /// `Io` if the system cannot start a thread.
    pub fn spawn(session: Session) -> Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("llama-session".into())
            .spawn(move || serve(session, &queue))
            .map_err(|error| Error::io(error, "starting a thread failed", None))?;
        Ok(Self { jobs, thread })
    }

    /// Asks for the answer to a prompt; returns at once.
    ///
    /// A token in `options.cancel` is used as it is: cancelling it, or dropping the stream, stops the answer.
    ///
    /// # Errors
    /// `Internal` if the thread has ended, which only a panic makes it do.
    pub fn generate(
        &self,
        prompt: impl Into<Prompt>,
        mut options: GenerateOptions,
    ) -> Result<Stream> {
        let cancel = options.cancel.get_or_insert_default().clone();
        self.send(Request::Generate(prompt.into(), options), cancel)
    }

    /// Asks for the answer to a conversation; returns at once.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn chat(&self, messages: Vec<Message>, mut options: ChatOptions) -> Result<Stream> {
        let cancel = options.generate.cancel.get_or_insert_default().clone();
        self.send(Request::Chat(messages, options), cancel)
    }

    fn send(&self, request: Request, cancel: CancelToken) -> Result<Stream> {
        let (events, receiver) = mpsc::sync_channel(BUFFERED);
        let job = Job { request, events, cancel: cancel.clone() };
        self.jobs.send(job).map_err(|_| thread_ended())?;
        Ok(Stream { events: Some(receiver), cancel, end: None })
    }

    /// Waits for the answers asked for and gives the session back. Streams that are neither read nor dropped keep it
    /// waiting.
    ///
    /// # Errors
    /// `Internal` if the thread panicked.
    pub fn join(self) -> Result<Session> {
        drop(self.jobs);
        self.thread.join().map_err(|_| thread_ended())
    }
}

fn thread_ended() -> Error {
    Error::new(ErrorKind::Internal, "the session's thread has panicked")
}

fn serve(mut session: Session, queue: &Receiver<Job>) -> Session {
    for job in queue {
        let Job { request, events, cancel } = job;
        if cancel.is_cancelled() {
            // Dropped or cancelled before its turn: the prompt is not worth evaluating.
            let _ = events.send(Event::Done(Finish::Cancelled, Stats::default()));
            continue;
        }
        let generation = match request {
            Request::Generate(prompt, options) => session.generate(prompt, &options),
            Request::Chat(messages, options) => session.chat(&messages, &options),
        };
        // A failed send means that the stream is gone: so is the interest in the answer.
        let _ = match generation {
            Ok(generation) => forward(generation, &events),
            Err(error) => events.send(Event::Failed(error)),
        };
    }
    session
}

fn forward(
    mut generation: Generation<'_>,
    events: &SyncSender<Event>,
) -> Result<(), mpsc::SendError<Event>> {
    for piece in &mut generation {
        match piece {
            Ok(piece) => events.send(Event::Piece(piece))?,
            Err(error) => return events.send(Event::Failed(error)),
        }
    }
    let finish = generation.finish_reason().unwrap_or(Finish::Cancelled);
    events.send(Event::Done(finish, generation.stats()))
}

/// The pieces of an answer that another thread generates. Dropping it cancels the answer.
pub struct Stream {
    // None once the answer has ended.
    events: Option<Receiver<Event>>,
    cancel: CancelToken,
    end: Option<(Finish, Stats)>,
}

impl Stream {
    /// Stops the answer; pieces that are under way still come.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Returns the token that stops the answer, to give to other threads.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Returns why the answer ended; `None` until then and after an error.
    pub fn finish_reason(&self) -> Option<Finish> {
        self.end.map(|(finish, _)| finish)
    }

    /// Returns the counts and times; `None` until the answer has ended and after an error.
    pub fn stats(&self) -> Option<Stats> {
        self.end.map(|(_, stats)| stats)
    }
}

impl Iterator for Stream {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.events.as_ref()?.recv();
        if !matches!(event, Ok(Event::Piece(_))) {
            self.events = None;
        }
        match event {
            Ok(Event::Piece(piece)) => Some(Ok(piece)),
            Ok(Event::Failed(error)) => Some(Err(error)),
            Ok(Event::Done(finish, stats)) => {
                self.end = Some((finish, stats));
                None
            }
            Err(_) => Some(Err(thread_ended())),
        }
    }
}

impl std::iter::FusedIterator for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.events.is_some() {
            self.cancel.cancel();
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("end", &self.end).finish_non_exhaustive()
    }
}

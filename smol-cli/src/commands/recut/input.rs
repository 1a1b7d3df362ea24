//! Where the model to rewrite comes from: files, a pipe, or a web server.

use crate::cli::Global;
use crate::failure::Failure;
use crate::fetch::HttpStream;
use crate::model;
use anyhow::{Context as _, Result};
use smol_gguf::{ByteStream, ErrorKind, Gguf, ShardName, Shards};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// A model, and what it is called.
pub(super) struct Input {
    pub(super) shards: Shards,
    pub(super) name: PathBuf,
}

/// What the command line names.
pub(super) enum Source {
    Pipe,
    Url(String),
    File(PathBuf),
}

impl Source {
    /// Finds the input, fetching a model that is given by its name: `-` is standard input.
    pub(super) fn find(input: &OsStr, global: &Global) -> Result<Self> {
        if input == "-" {
            return Ok(Self::Pipe);
        }
        match input.to_str().filter(|text| is_url(text)) {
            Some(url) => Ok(Self::Url(url.to_owned())),
            None => Ok(Self::File(model::resolve(input, global)?)),
        }
    }

    /// Reads the headers; `stop` breaks off waiting for them.
    pub(super) fn open(self, stop: &Arc<AtomicBool>) -> Result<Input> {
        match self {
            Self::Pipe => {
                let name = PathBuf::from("standard input");
                let stdin = Interruptible::new(|| Ok(io::stdin()), stop)?;
                let file = Gguf::from_stream(&name, stdin)?;
                let shards = Shards::assemble(vec![file]).with_context(|| {
                    Failure::new("a split model doesn't come through one pipe")
                        .advice("give the name of one of its files")
                })?;
                Ok(Input { shards, name })
            }
            Self::Url(url) => Ok(Input { shards: download(&url, stop)?, name: url.into() }),
            Self::File(path) => Ok(Input { shards: Shards::open(&path)?, name: path }),
        }
    }
}

impl Input {
    /// Returns the path of the model, if it is in files.
    pub(super) fn path(&self) -> Option<&Path> {
        (!self.shards.first().is_stream()).then_some(&*self.name)
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Opens all files of a model on a web server.
fn download(url: &str, stop: &Arc<AtomicBool>) -> Result<Shards> {
    let open = |url: &str| -> Result<Gguf> {
        let address = url.to_owned();
        let stream = Interruptible::new(move || HttpStream::open(&address), stop)?;
        Ok(Gguf::from_stream(url, stream)?)
    };
    let given = open(url)?;
    let count = Shards::count_of(&given)?;
    if count <= 1 {
        return Ok(Shards::assemble(vec![given])?);
    }
    // What follows the name, such as `?download=true`, belongs to each of them.
    let (plain, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let (folder, file) = plain.rsplit_once('/').unwrap_or(("", plain));
    let name = ShardName::parse(file).filter(|name| name.count() == count).ok_or_else(|| {
        let message = format!("{url} is one of {count} files of a model, but isn't named so");
        Failure::new(message).advice("the names end with -00001-of-00003.gguf and so on")
    })?;
    let mut files = Vec::new();
    for index in 0..count {
        let file = name.sibling(index);
        files.push(if index == name.index() {
            given.clone()
        } else {
            open(&format!("{folder}/{}{query}", file.display()))?
        });
    }
    Ok(Shards::assemble(files)?)
}

/// A stream that Ctrl-C breaks off while it waits, for a connection or for bytes.
struct Interruptible {
    wishes: Sender<Wish>,
    replies: Receiver<io::Result<Vec<u8>>>,
    len: Option<u64>,
    stop: Arc<AtomicBool>,
}

enum Wish {
    /// That many bytes, or fewer.
    Read(usize),
    Skip(u64),
}

impl Interruptible {
    fn new<S: ByteStream>(
        open: impl FnOnce() -> Result<S> + Send + 'static,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let (wishes, wished) = channel();
        let (reply, replies) = channel();
        let (tell, opened) = channel();
        // Not joined: it may wait for ever, and ends with the program.
        std::thread::Builder::new().name("input".into()).spawn(move || {
            let mut stream = match open() {
                Ok(stream) => {
                    let _ = tell.send(Ok(stream.total_len()));
                    stream
                }
                Err(error) => {
                    let _ = tell.send(Err(error));
                    return;
                }
            };
            for wish in wished {
                let result = match wish {
                    Wish::Skip(n) => stream.skip(n).map(|()| Vec::new()),
                    Wish::Read(n) => {
                        let mut bytes = vec![0; n];
                        stream.read(&mut bytes).map(|n| {
                            bytes.truncate(n);
                            bytes
                        })
                    }
                };
                if reply.send(result).is_err() {
                    return;
                }
            }
        })?;
        let len = received(&opened, stop)??;
        Ok(Self { wishes, replies, len, stop: stop.clone() })
    }

    fn wait(&self, wish: Wish) -> io::Result<Vec<u8>> {
        let received = match self.wishes.send(wish) {
            Ok(()) => received(&self.replies, &self.stop),
            Err(_) => Err(gone()),
        };
        received.map_err(io::Error::from)?
    }
}

/// Waits for what the thread that reads has to say.
fn received<T>(from: &Receiver<T>, stop: &AtomicBool) -> smol_gguf::Result<T> {
    const STEP: Duration = Duration::from_millis(50);
    loop {
        match from.recv_timeout(STEP) {
            Ok(reply) => return Ok(reply),
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                return Err(ErrorKind::Stopped.into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn gone() -> smol_gguf::Error {
    io::Error::other("the thread that reads has ended").into()
}

impl Read for Interruptible {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        const MOST: usize = 1 << 20;
        let bytes = loop {
            match self.wait(Wish::Read(buf.len().min(MOST))) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        buf[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl ByteStream for Interruptible {
    fn total_len(&self) -> Option<u64> {
        self.len
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        self.wait(Wish::Skip(n)).map(drop)
    }
}

//! Bytes that come once, front to back.

use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::{Mutex, PoisonError};

use crate::error::{ErrorKind, Result};

/// Bytes that can be read once, front to back, such as a pipe or a download.
///
/// # Examples
///
/// ```no_run
/// use smol_gguf::{Gguf, Rewriter};
///
/// let source = Gguf::from_stream("standard input", std::io::stdin())?;
/// let mut plan = Rewriter::new(&source);
/// plan.set("general.name", "renamed").write_file("renamed.gguf")?;
/// # Ok::<(), smol_gguf::Error>(())
/// ```
pub trait ByteStream: Read + Send {
    /// Returns the number of all bytes from the start on, if that is known.
    fn total_len(&self) -> Option<u64> {
        None
    }

    /// Moves on by `n` bytes, which nobody needs. By default they are read all the same.
    ///
    /// # Errors
    ///
    /// When reading fails, or the bytes end before.
    fn skip(&mut self, mut n: u64) -> io::Result<()> {
        let mut unused = vec![0; n.min(1 << 18) as usize];
        while n > 0 {
            let len = n.min(unused.len() as u64) as usize;
            self.read_exact(&mut unused[..len])?;
            n -= len as u64;
        }
        Ok(())
    }
}

impl ByteStream for io::Stdin {}
impl ByteStream for Box<dyn Read + Send> {}

/// Bytes in memory, which stand for a pipe in tests.
impl ByteStream for Cursor<Vec<u8>> {}

/// A stream at its position.
pub(crate) struct Stream(Mutex<State>);

struct State {
    /// What was read to see whether there is more.
    start: Cursor<Vec<u8>>,
    rest: BufReader<Box<dyn ByteStream>>,
    position: u64,
}

impl Stream {
    /// So much is read before anything else.
    const START: u64 = 64 << 10;

    /// Takes a stream at its first byte, and returns how many there are, if that is known.
    pub(crate) fn new(mut bytes: Box<dyn ByteStream>) -> io::Result<(Self, Option<u64>)> {
        let mut start = Vec::new();
        (&mut bytes).take(Self::START).read_to_end(&mut start)?;
        let all = start.len() as u64;
        let len = if all < Self::START { Some(all) } else { bytes.total_len() };
        let rest = BufReader::with_capacity(1 << 18, bytes);
        Ok((Self(Mutex::new(State { start: Cursor::new(start), rest, position: 0 })), len))
    }

    /// Reads on from where the last call has stopped.
    pub(crate) fn reader(&self) -> impl Read + '_ {
        Next(self)
    }

    /// Fills `buf` from the bytes at `at`, which must not be behind those that were read before.
    pub(crate) fn read_exact_at(&self, buf: &mut [u8], at: u64) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        let Some(ahead) = at.checked_sub(state.position) else {
            return Err(ErrorKind::StreamPassed { at, position: state.position }.into());
        };
        let wanted = at.saturating_add(buf.len() as u64);
        state.skip(ahead).and_then(|()| state.read_exact(buf)).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                ErrorKind::StreamEnded { at: state.position, wanted }.into()
            }
            _ => error.into(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn skip(&mut self, n: u64) -> io::Result<()> {
        let known = self.start.get_ref().len() as u64 - self.start.position();
        let first = n.min(known);
        self.start.set_position(self.start.position() + first);
        let buffered = (n - first).min(self.rest.buffer().len() as u64);
        self.rest.consume(buffered as usize);
        self.position += first + buffered;
        let left = n - first - buffered;
        if left > 0 {
            self.rest.get_mut().skip(left)?;
            self.position += left;
        }
        Ok(())
    }
}

impl Read for State {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut n = self.start.read(buf)?;
        if n == 0 {
            n = self.rest.read(buf)?;
        }
        self.position += n as u64;
        Ok(n)
    }
}

struct Next<'a>(&'a Stream);

impl Read for Next<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.lock().read(buf)
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("position", &self.lock().position).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(len: usize) -> Vec<u8> {
        // Copied rather than counted, which takes Miri minutes.
        let mut bytes = (0..251).collect::<Vec<u8>>().repeat(len.div_ceil(251));
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn reads_and_skips_forward() {
        let bytes = numbered(700_000);
        let (stream, len) = Stream::new(Box::new(Cursor::new(bytes.clone()))).unwrap();
        assert_eq!(len, None);
        for (at, len) in [(0, 10), (10, 5), (70_000, 3), (70_003, 400_000), (600_000, 100_000)] {
            let mut buf = vec![0; len];
            stream.read_exact_at(&mut buf, at as u64).unwrap();
            assert!(buf == bytes[at..at + len], "{at}");
        }
        let error = stream.read_exact_at(&mut [0], 5).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::StreamPassed { at: 5, position: 700_000 }));
        let error = stream.read_exact_at(&mut [0; 9], 700_000).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::StreamEnded { at: 700_000, wanted: 700_009 }));
    }

    #[test]
    fn the_length_of_short_ones_is_known() {
        let (_, len) = Stream::new(Box::new(Cursor::new(numbered(100)))).unwrap();
        assert_eq!(len, Some(100));
    }
}

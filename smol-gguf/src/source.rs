//! Where the bytes of a file come from.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::mapped::MappedFile;
use crate::positioned;
use crate::stream::Stream;

/// A file's bytes: in memory, mapped, read on demand or once, or out of reach.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Bytes(Arc<[u8]>),
    Mapped(Arc<MappedFile>),
    File(Arc<PositionedFile>),
    Stream(Arc<Stream>),
    HeaderOnly,
}

impl Source {
    /// Returns the bytes from `start` on as a slice, if they are in memory.
    pub(crate) fn slice(&self, start: u64, len: u64) -> Option<&[u8]> {
        let all: &[u8] = match self {
            Self::Bytes(bytes) => bytes,
            Self::Mapped(map) => map,
            Self::File(_) | Self::Stream(_) | Self::HeaderOnly => return None,
        };
        let start = usize::try_from(start).ok()?;
        all.get(start..)?.get(..usize::try_from(len).ok()?)
    }

    /// Fills `buf` from the bytes at `start`.
    pub(crate) fn read_exact_at(&self, buf: &mut [u8], start: u64) -> io::Result<()> {
        match self {
            Self::File(file) => return file.read_exact_at(buf, start),
            Self::Stream(stream) => return Ok(stream.read_exact_at(buf, start)?),
            _ => {}
        }
        let bytes = self
            .slice(start, buf.len() as u64)
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    /// Returns bytes as a slice where they are in memory, as a copy otherwise.
    pub(crate) fn bytes(&self, start: u64, len: u64) -> io::Result<Cow<'_, [u8]>> {
        if let Some(slice) = self.slice(start, len) {
            return Ok(Cow::Borrowed(slice));
        }
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut buf = Vec::new();
        buf.try_reserve_exact(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        buf.resize(len, 0);
        self.read_exact_at(&mut buf, start)?;
        Ok(Cow::Owned(buf))
    }
}

/// A file that several readers use at once, each at its own position.
#[derive(Debug)]
pub(crate) struct PositionedFile {
    file: File,
    /// Where reads move the file's position, they take turns.
    #[cfg(not(any(unix, windows)))]
    turn: std::sync::Mutex<()>,
}

impl PositionedFile {
    pub(crate) fn new(file: File) -> Self {
        Self {
            file,
            #[cfg(not(any(unix, windows)))]
            turn: std::sync::Mutex::new(()),
        }
    }

    /// Returns the file, of which nobody may move the position.
    #[cfg(target_os = "linux")]
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    fn read_exact_at(&self, buf: &mut [u8], start: u64) -> io::Result<()> {
        #[cfg(not(any(unix, windows)))]
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        positioned::read_exact_at(&self.file, buf, start)
    }
}

//! Reads and writes at a place in a file, all bytes or an error.
//!
//! Where the system has no such calls they move the file's position, so that nobody else may use
//! the file meanwhile.

pub(crate) use sys::{read_exact_at, write_all_at};

#[cfg(unix)]
mod sys {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(crate) fn read_exact_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<()> {
        file.read_exact_at(buf, at)
    }

    pub(crate) fn write_all_at(file: &File, buf: &[u8], at: u64) -> io::Result<()> {
        file.write_all_at(buf, at)
    }
}

#[cfg(windows)]
mod sys {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;

    pub(crate) fn read_exact_at(file: &File, mut buf: &mut [u8], mut at: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match file.seek_read(buf, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    pub(crate) fn write_all_at(file: &File, mut buf: &[u8], mut at: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match file.seek_write(buf, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    buf = &buf[n..];
                    at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

#[cfg(not(any(unix, windows)))]
mod sys {
    use std::fs::File;
    use std::io::{self, Read, Seek, SeekFrom, Write};

    pub(crate) fn read_exact_at(mut file: &File, buf: &mut [u8], at: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(buf)
    }

    pub(crate) fn write_all_at(mut file: &File, buf: &[u8], at: u64) -> io::Result<()> {
        file.seek(SeekFrom::Start(at))?;
        file.write_all(buf)
    }
}

//! Reports on standard output: as text, or as one line of JSON.

use anyhow::Result;
use serde::Serialize;
use std::io::{self, Write};

/// Prints a report: as JSON if that was asked for, else as what `text` writes.
pub fn print<T: Serialize>(
    json: bool,
    report: &T,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    // The lines may be many, and each would be written on its own.
    write(&mut io::BufWriter::new(io::stdout().lock()), json, report, text)
}

fn write<T: Serialize>(
    out: &mut dyn Write,
    json: bool,
    report: &T,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    if json {
        serde_json::to_writer(&mut *out, report)?;
        writeln!(out)?;
    } else {
        text(out)?;
    }
    // Errors without a word about where are known to be of the output (failure.rs).
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_json_or_the_text() {
        let printed = |json| {
            let mut out = Vec::new();
            write(&mut out, json, &[1, 2], |out| writeln!(out, "1 and 2")).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!((printed(true), printed(false)), ("[1,2]\n".into(), "1 and 2\n".into()));
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for json in [true, false] {
            assert!(write(&mut Full, json, &1, |out| writeln!(out, "1")).is_err());
        }
    }
}

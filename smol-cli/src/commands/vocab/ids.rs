//! Files of token ids: one a line, and `#` before what is for people.

use crate::arguments::read_text;
use crate::failure::Failure;
use anyhow::Result;
use smolmaxxing::Token;
use std::io::{self, Write};
use std::path::Path;

/// Reads the ids of a file.
pub fn read_ids(path: &Path) -> Result<Vec<u32>> {
    parse(&read_text(path)?).map_err(|message| {
        Failure::new(format!("{}: {message}", path.display()))
            .advice("a file of ids has one number a line, as `smol vocab select` writes it")
            .into()
    })
}

fn parse(text: &str) -> Result<Vec<u32>, String> {
    let mut ids = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let id = line.split_once('#').map_or(line, |(id, _)| id).trim();
        if !id.is_empty() {
            let number = index + 1;
            ids.push(id.parse().map_err(|_| format!("line {number} is no token id: {id:.40}"))?);
        }
    }
    if ids.is_empty() { Err("there are no token ids".into()) } else { Ok(ids) }
}

/// Writes ids, below a line for people.
pub(super) fn write_ids(out: &mut dyn Write, title: &str, ids: &[Token]) -> io::Result<()> {
    writeln!(out, "# {title}")?;
    ids.iter().try_for_each(|id| writeln!(out, "{}", id.0))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut file = Vec::new();
        write_ids(&mut file, "model\u{e9}", &[Token(3), Token(70_000)]).unwrap();
        assert_eq!(parse(std::str::from_utf8(&file).unwrap()).unwrap(), [3, 70_000]);
        assert_eq!(parse("\n 7 # seven\r\n\n8").unwrap(), [7, 8]);
        for (text, message) in [
            ("1\ntwo", "line 2 is no token id: two"),
            ("-1", "line 1 is no token id: -1"),
            ("# 5", "there are no token ids"),
        ] {
            assert_eq!(parse(text).unwrap_err(), message);
        }
    }
}

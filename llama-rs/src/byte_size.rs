//! Sizes that people write: `900MiB`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::memory::human;

/// Units of a size, each with its bytes. A letter alone is a power of 1024, as systemd, Docker and Java have it.
const UNITS: [(&str, u64); 13] = [
    ("b", 1),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// A number of bytes, read from a text such as `900MiB`, `1.5 GB` or `64K`.
///
/// `kB`, `MB`, `GB` and `TB` are powers of 1000; `KiB`, `MiB`, `GiB`, `TiB` and the letters alone powers of 1024; `B` is
/// bytes. Upper and lower case mean the same. A text needs a unit: `900` by itself is never what was meant. In TOML a
/// whole number is bytes.
///
/// # Examples
/// ```
/// use llama_rs::ByteSize;
///
/// assert_eq!("900MiB".parse(), Ok(ByteSize(900 << 20)));
/// assert_eq!("1.5 GB".parse(), Ok(ByteSize(1_500_000_000)));
/// let error = "900".parse::<ByteSize>().unwrap_err();
/// assert_eq!(error.to_string(), "`900` has no unit; write 900MiB, 900MB or 900B");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a text is no [`ByteSize`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseByteSizeError {
    message: String,
}

impl fmt::Display for ParseByteSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ParseByteSizeError {}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&human(self.0))
    }
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = |message: String| Err(ParseByteSizeError { message });
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (&text[..digits], text[digits..].trim_start());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty()
            || fraction.contains('.')
            || (number.contains('.') && fraction.is_empty())
        {
            return refused(format!("`{text}` is no size; write it as 900MiB or 1.5GB"));
        }
        if unit.is_empty() {
            return refused(format!("`{text}` has no unit; write {text}MiB, {text}MB or {text}B"));
        }
        let lower = unit.to_ascii_lowercase();
        let Some((_, bytes)) = UNITS.iter().find(|(name, _)| *name == lower) else {
            return refused(format!(
                "`{unit}` is no unit of sizes; there are B, kB, MB, GB, TB, KiB, MiB, GiB and TiB"
            ));
        };
        match scaled(whole, fraction, *bytes) {
            Some(bytes) => Ok(Self(bytes)),
            None => refused(format!("`{text}` is larger than any memory")),
        }
    }
}

/// The decimal number `whole.fraction` times `unit`, rounded down; `None` if that is no `u64`.
fn scaled(whole: &str, fraction: &str, unit: u64) -> Option<u64> {
    let unit = u128::from(unit);
    let whole = whole.parse::<u64>().ok().map(u128::from)?.checked_mul(unit)?;
    // More digits than these are less than a byte, even of a tebibyte.
    let fraction = &fraction[..fraction.len().min(18)];
    let part = match fraction.parse::<u128>() {
        Ok(digits) => digits * unit / 10_u128.pow(fraction.len() as u32),
        Err(_) => 0,
    };
    u64::try_from(whole + part).ok()
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size such as \"900MiB\", or a number of bytes")
    }

    fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        u64::try_from(bytes).map(ByteSize).map_err(|_| E::custom("a size cannot be negative"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<ByteSize>().unwrap().0
    }

    #[test]
    fn units_are_decimal_or_binary() {
        for (text, expected) in [
            ("0B", 0),
            ("17b", 17),
            ("900MiB", 900 << 20),
            ("900 mib", 900 << 20),
            (" 900M ", 900 << 20),
            ("900MB", 900_000_000),
            ("64k", 64 << 10),
            ("64kB", 64_000),
            ("1.5GiB", 3 << 29),
            ("1.5g", 3 << 29),
            ("0.1GB", 100_000_000),
            ("2TB", 2_000_000_000_000),
            ("1.0000000000000000000000001TiB", 1 << 40),
            ("18446744073709551615B", u64::MAX),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_way_out() {
        for (text, words) in [
            ("", "is no size; write it as 900MiB"),
            ("MiB", "is no size"),
            ("-1MiB", "is no size"),
            ("+1MiB", "is no size"),
            (".5GiB", "is no size"),
            ("5.GiB", "is no size"),
            ("1.2.3GiB", "is no size"),
            ("1e3MB", "`e3MB` is no unit"),
            ("900", "`900` has no unit; write 900MiB"),
            ("1,5GB", "`,5GB` is no unit"),
            ("900 Mbit", "`Mbit` is no unit of sizes; there are B, kB"),
            ("900µB", "`µB` is no unit"),
            ("18446744073709551616B", "larger than any memory"),
            ("99999999999TiB", "larger than any memory"),
            ("99999999999999999999999999999999MB", "larger than any memory"),
        ] {
            let message = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn toml_has_texts_and_whole_numbers() {
        #[derive(Debug, Deserialize)]
        struct Table {
            size: ByteSize,
        }
        let parse = |text: &str| toml::from_str::<Table>(text).map(|table| table.size.0);
        assert_eq!(parse("size = 4096"), Ok(4096));
        assert_eq!(parse("size = \"4KiB\""), Ok(4096));
        for (text, words) in [
            ("size = -1", "cannot be negative"),
            ("size = 1.5", "expected a size such as \"900MiB\", or a number of bytes"),
            ("size = true", "expected a size"),
            ("size = \"many\"", "is no size"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn sizes_are_shown_with_a_unit() {
        assert_eq!(ByteSize(900 << 20).to_string(), "900.0 MiB");
    }
}

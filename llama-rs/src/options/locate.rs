//! Where in a TOML document an error is: line and key.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// The line of a byte, from 1.
pub(super) fn line(text: &[u8], at: usize) -> usize {
    text[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The message with the line and the key that `span` points to.
pub(super) fn describe(text: &str, span: Option<Range<usize>>, message: &str) -> String {
    let message = message.trim_end().replace('\n', " ");
    let Some(span) = span else { return message };
    let number = line(text.as_bytes(), span.start);
    // What is no TOML has no keys: show the line.
    let table = DeTable::parse(text).ok();
    if let Some(key) = table.and_then(|table| key_at(table.get_ref(), span.start)) {
        return format!("line {number}: {key}: {message}");
    }
    let shown = text.lines().nth(number - 1).unwrap_or_default().trim();
    format!("line {number}: `{shown}`: {message}")
}

/// The message with the line of a key.
pub(super) fn describe_key(text: &str, key: &[&str], message: &str) -> String {
    let (table, _) = DeTable::parse_recoverable(text);
    let mut table = Some(table.get_ref());
    let mut number = 1;
    for part in key {
        let found = table.and_then(|table| table.iter().find(|(key, _)| key.get_ref() == *part));
        if let Some((key, _)) = found {
            number = line(text.as_bytes(), key.span().start);
        }
        table = found.and_then(|(_, value)| value.get_ref().as_table());
    }
    format!("line {number}: {}: {message}", key.join("."))
}

/// The dotted key whose name or value is at a byte, the innermost one.
fn key_at(table: &DeTable<'_>, at: usize) -> Option<String> {
    for (key, value) in table {
        if let DeValue::Table(inner) = value.get_ref()
            && let Some(rest) = key_at(inner, at)
        {
            return Some(format!("{}.{rest}", key.get_ref()));
        }
        if key.span().contains(&at) || value.span().contains(&at) {
            return Some(key.get_ref().to_string());
        }
    }
    None
}

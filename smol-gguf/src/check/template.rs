//! Chat templates. A broken one leaves the model usable with another.

use crate::Value;
use crate::error::ErrorKind;

use super::model::key_type;
use super::{Model, Report};

const KEY: &str = "tokenizer.chat_template";

pub(super) fn check(model: &Model<'_>, report: &mut Report) {
    for (key, value) in model.metadata().iter() {
        let named = key.strip_prefix(KEY).is_some_and(|rest| {
            rest.is_empty() || (rest.starts_with('.') && !matches!(value, Value::Array(_)))
        });
        if !named {
            continue;
        }
        match value.as_bytes() {
            Some(text) => {
                if let Some((open, at)) = unclosed(text) {
                    let kind = ErrorKind::ChatTemplate { key: key.into(), open, at: at as u64 };
                    report.warning(model.first(), kind);
                }
            }
            None => report.warning(model.first(), key_type(key, value, "str")),
        }
    }
}

/// Returns the first tag that is never closed, and where it opens.
fn unclosed(text: &[u8]) -> Option<(&'static str, usize)> {
    let mut at = 0;
    while let Some(&[a, b]) = text.get(at..at + 2) {
        let (open, close): (&str, &[u8]) = match (a, b) {
            (b'{', b'{') => ("{{", b"}}"),
            (b'{', b'%') => ("{%", b"%}"),
            (b'{', b'#') => ("{#", b"#}"),
            _ => {
                at += 1;
                continue;
            }
        };
        let start = at + 2;
        // Comments have no strings in which the closing mark could be quoted.
        let Some(end) = find_close(text, start, close, open != "{#") else {
            return Some((open, at));
        };
        at = end + 2;
        let tag = text[start..end].trim_ascii();
        let tag = tag.strip_prefix(b"-").unwrap_or(tag);
        let tag = tag.strip_suffix(b"-").unwrap_or(tag).trim_ascii();
        if open == "{%" && tag == b"raw" {
            let rest = text[at..].windows(6).position(|w| w == b"endraw");
            at += rest.unwrap_or(text.len() - at);
        }
    }
    None
}

fn find_close(text: &[u8], mut at: usize, close: &[u8], strings: bool) -> Option<usize> {
    let mut quote = None;
    while at < text.len() {
        match (quote, text[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), c) if c == q => quote = None,
            (None, c @ (b'"' | b'\'')) if strings => quote = Some(c),
            (None, _) if text[at..].starts_with(close) => return Some(at),
            _ => {}
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::unclosed;

    #[test]
    fn unclosed_tags_are_found() {
        assert_eq!(unclosed(b"{% for m in messages %}{{ m.content "), Some(("{{", 23)));
        assert_eq!(unclosed(b"text {# comment"), Some(("{#", 5)));
        assert_eq!(unclosed(b"{% if x"), Some(("{%", 0)));
        assert_eq!(unclosed(b"{{ 'quoted }}"), Some(("{{", 0)));
    }

    #[test]
    fn good_templates_pass() {
        for text in [
            "",
            "{",
            "plain { text }",
            "{{ '}}' }}{{ \"{%\" }}",
            "{{ 'it\\'s }}' }}",
            "{%- for m in messages -%}{{- m['content'] }}{%- endfor %}",
            "{# it's fine #}x",
            "{% raw %}{{ unclosed {% endraw %}",
            "{{ {'a': 1}['a'] }}",
        ] {
            assert_eq!(unclosed(text.as_bytes()), None, "{text}");
        }
    }
}

//! JSON as Python's `json.dumps` writes it, which is what models saw in training.

use serde_json::Value;

/// Writes a value: `{"a": 1, "b": [2, 3]}`, or over several lines with `indent` spaces for each level.
pub(super) fn dump(value: &Value, indent: Option<usize>) -> String {
    let mut out = String::new();
    write(value, indent, 0, &mut out);
    out
}

fn write(value: &Value, indent: Option<usize>, level: usize, out: &mut String) {
    match value {
        Value::Array(list) => {
            write_items(('[', ']'), list, indent, level, out, |item, out| {
                write(item, indent, level + 1, out);
            });
        }
        Value::Object(map) => {
            write_items(('{', '}'), map, indent, level, out, |(key, item), out| {
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                write(item, indent, level + 1, out);
            });
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

fn write_items<I: IntoIterator>(
    (open, close): (char, char),
    items: I,
    indent: Option<usize>,
    level: usize,
    out: &mut String,
    mut item: impl FnMut(I::Item, &mut String),
) {
    out.push(open);
    let mut first = true;
    for value in items {
        if !first {
            out.push(',');
        }
        match indent {
            Some(width) => new_line(width * (level + 1), out),
            None if !first => out.push(' '),
            None => {}
        }
        first = false;
        item(value, out);
    }
    if let Some(width) = indent.filter(|_| !first) {
        new_line(width * level, out);
    }
    out.push(close);
}

fn new_line(spaces: usize, out: &mut String) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', spaces));
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn separators_are_pythons() {
        let value = json!({"a": [1, 2.0, null, true], "b": {}, "c": [], "d": "é<\"\n"});
        assert_eq!(
            dump(&value, None),
            r#"{"a": [1, 2.0, null, true], "b": {}, "c": [], "d": "é<\"\n"}"#
        );
    }

    #[test]
    fn indentation_is_pythons() {
        let value = json!({"a": [1, {"b": 2}], "c": {}});
        assert_eq!(
            dump(&value, Some(2)),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": {}\n}"
        );
    }
}

//! Jinja as Hugging Face sets it up, on minijinja.

use std::error::Error as StdError;
use std::fmt;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, context};

use crate::chat::{Message, RenderOptions, SpecialTexts, python_json, strftime, template_error};
use crate::error::Result;

const NAME: &str = "chat";

/// Steps that a rendering may take: thousands of messages, and an end to loops over huge ranges.
const FUEL: u64 = 10_000_000;

/// A compiled template.
pub(super) struct Engine {
    environment: Environment<'static>,
    special: SpecialTexts,
}

/// The words that a template passed to `raise_exception`.
#[derive(Debug)]
struct Refusal(String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Refusal {}

impl Engine {
    pub(super) fn new(source: &str, special: &SpecialTexts) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| template_error(describe(&e)))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| template_error(describe(&e)))?;
        Ok(Self { environment, special: special.clone() })
    }

    /// Renders plain conversations: a template that fails on all of them for another reason than its own refusal is
    /// broken.
    pub(super) fn probe(&self) -> Result<()> {
        let turns = [Message::user("a"), Message::assistant("b"), Message::user("c")];
        let options = RenderOptions::default();
        let mut fault = None;
        for messages in [&turns[..], &turns[..1]] {
            match self.run(messages, &options) {
                Ok(_) => return Ok(()),
                Err(error) if refusal(&error).is_some() => return Ok(()),
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or(Ok(()), |error| Err(template_error(describe(&error))))
    }

    pub(super) fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String> {
        self.run(messages, options).map_err(|error| match refusal(&error) {
            Some(words) => template_error(format_args!("refuses these messages: {words}")),
            None => template_error(describe(&error)),
        })
    }

    fn run(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, minijinja::Error> {
        let now = options.now.unwrap_or_else(SystemTime::now);
        let messages: Vec<Value> =
            messages.iter().map(|message| Value::from(Serde(message.to_value()))).collect();
        let fixed = context! {
            messages,
            add_generation_prompt => options.add_generation_prompt,
            bos_token => self.special.bos.as_str(),
            eos_token => self.special.eos.as_str(),
            strftime_now => Value::from_function(move |format: &str| strftime::format(now, format)),
            tools => options.tools.as_ref().map(|tools| Value::from(Serde(tools))),
        };
        let variables = Value::from(Serde(&options.variables));
        self.environment.get_template(NAME)?.render(context! { ..variables, ..fixed })
    }
}

fn raise_exception(words: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, words.clone())
        .with_source(Refusal(words)))
}

fn to_json(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Accepted and without effect: the text stays readable and in the order given.
    let _: Option<bool> = options.get("ensure_ascii")?;
    let _: Option<bool> = options.get("sort_keys")?;
    options.assert_all_used()?;
    let value = serde_json::to_value(value).map_err(|error| {
        minijinja::Error::new(ErrorKind::BadSerialization, "this value has no JSON form")
            .with_source(error)
    })?;
    Ok(Value::from(python_json::dump(&value, indent)))
}

fn refusal(error: &minijinja::Error) -> Option<&Refusal> {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(inner) = cause {
        if let Some(refusal) = inner.downcast_ref() {
            return Some(refusal);
        }
        cause = inner.source();
    }
    None
}

fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("is broken in line {line}: {what}"),
        None => format!("is broken: {what}"),
    }
}

/// Replaces `{% generation %}` and its end, which mark trained text and print nothing, by a block that is always taken.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let inner = tag.trim_start_matches(['-', '+']);
        let control = &tag[..tag.len() - inner.len()];
        let word = inner.trim_start();
        for (name, replacement) in [("generation", " if true "), ("endgeneration", " endif ")] {
            let Some(after) = word.strip_prefix(name) else { continue };
            let end = after.trim_start();
            if end.trim_start_matches(['-', '+']).starts_with("%}") {
                out.push_str(control);
                out.push_str(replacement);
                rest = end;
                break;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_keep_their_white_space_control() {
        assert_eq!(
            without_generation_tags(
                "a{%- generation -%}b{% endgeneration %}{% set generation = 1 %}{%"
            ),
            "a{%- if true -%}b{% endif %}{% set generation = 1 %}{%"
        );
    }
}

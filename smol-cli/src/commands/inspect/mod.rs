//! `smol inspect`: what is in a GGUF file, and whether it can be trusted.

mod layouts;

use crate::cli::Global;
use crate::model;
use crate::report::print;
use crate::units::{bytes, grouped};
use anyhow::Result;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use smol_gguf::{Array, Depth, Finding, Metadata, Shards, TensorInfo, TensorType, Value};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Show what is in a GGUF file, and check it
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Path of a .gguf file (any file of a split model), or name of a model
    #[arg(value_name = "FILE")]
    file: OsString,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Check all that could make a program crash or compute garbage, weights included
    #[arg(long)]
    check: bool,
    /// Load the model, and show how each matrix is packed or why it is not
    #[arg(long, conflicts_with = "check")]
    layouts: bool,
}

/// Longest array that JSON gets in full.
const MAX_JSON_ARRAY: usize = 1024;
/// Longest array and string that people get in full.
const MAX_TEXT_ARRAY: usize = 8;
const MAX_TEXT_CHARS: usize = 100;

/// Prints the contents; exits with 1 if a check finds an error.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let path = model::resolve(&args.file, global)?;
    if args.layouts {
        return layouts::run(&path, args.json, global);
    }
    let shards = if args.check { Shards::open(&path)? } else { Shards::read_headers(&path)? };
    let findings = args.check.then(|| smol_gguf::check_shards(&shards, Depth::Full));
    let usable = findings.as_ref().is_none_or(smol_gguf::Report::is_usable);
    let contents = Contents {
        path: &path,
        shards: &shards,
        findings: findings.as_ref().map(smol_gguf::Report::findings),
    };
    print(args.json, &contents, |out| contents.print(out))?;
    Ok(if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Contents<'a> {
    path: &'a Path,
    shards: &'a Shards,
    /// `None` unless a check was asked for.
    findings: Option<&'a [Finding]>,
}

impl Contents<'_> {
    fn parameters(&self) -> u64 {
        self.shards.tensors().fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.n_elements()))
    }

    fn tensor_bytes(&self) -> u64 {
        self.shards.iter().fold(0, |sum, file| sum.saturating_add(file.tensor_bytes()))
    }

    fn bits_per_weight(&self) -> f64 {
        let bits = self.tensor_bytes() as f64 * 8.0 / self.parameters().max(1) as f64;
        (bits * 1000.0).round() / 1000.0
    }

    /// Tensor types with their number of tensors and bytes, largest first.
    fn types(&self) -> Vec<(TensorType, u64, u64)> {
        let mut types: Vec<(TensorType, u64, u64)> = Vec::new();
        for (_, tensor) in self.shards.tensors() {
            match types.iter_mut().find(|(ty, ..)| *ty == tensor.ty()) {
                Some((_, count, size)) => {
                    *count += 1;
                    *size = size.saturating_add(tensor.n_bytes());
                }
                None => types.push((tensor.ty(), 1, tensor.n_bytes())),
            }
        }
        types.sort_by_key(|(_, _, size)| std::cmp::Reverse(*size));
        types
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let metadata = self.shards.metadata();
        let first = self.shards.first();
        let mut line = |name: &str, value: &str| writeln!(out, "{name:14} {value}");
        line("file", &self.path.display().to_string())?;
        if self.shards.len() > 1 {
            line("files", &self.shards.len().to_string())?;
        }
        let size = self.shards.file_len();
        line("size", &format!("{} bytes ({})", grouped(size), bytes(size)))?;
        line("format", &format!("GGUF version {}", first.version()))?;
        line("architecture", &shortened(metadata.architecture().unwrap_or("unknown")))?;
        if let Some(name) = metadata.get_str("general.name") {
            line("name", &shortened(name))?;
        }
        let bits = self.bits_per_weight();
        line("parameters", &format!("{} at {bits} bits", grouped(self.parameters())))?;
        for (ty, count, size) in self.types() {
            line("", &format!("{:8} {count:5} tensors {:>10}", ty.name(), bytes(size)))?;
        }
        writeln!(out, "\nmetadata ({})", metadata.len())?;
        let width = metadata.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(48);
        for (key, value) in metadata.iter() {
            writeln!(out, "  {:width$} = {}", shortened(key), shown(value))?;
        }
        writeln!(out, "\ntensors ({})", self.shards.tensors().count())?;
        for (_, tensor) in self.shards.tensors() {
            let shape: Vec<_> = tensor.shape().iter().map(ToString::to_string).collect();
            writeln!(
                out,
                "  {:36} {:8} {:>20} {:>10}",
                shortened(tensor.name()),
                tensor.ty().name(),
                shape.join(" x "),
                bytes(tensor.n_bytes())
            )?;
        }
        let Some(findings) = self.findings else { return Ok(()) };
        writeln!(out, "\ncheck")?;
        for finding in findings {
            writeln!(out, "  {finding}")?;
        }
        match findings.is_empty() {
            true => writeln!(out, "  no fault found"),
            false => Ok(()),
        }
    }
}

/// A value on one line.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("\"{}\"", shortened(&text.to_string_lossy())),
        Value::Array(array) if array.len() <= MAX_TEXT_ARRAY => {
            let elements: Vec<_> = array.iter().map(|element| shown(&element)).collect();
            format!("[{}]", elements.join(", "))
        }
        value => value.to_string(),
    }
}

/// Text from a file, without what could command the terminal, and not too long.
fn shortened(text: &str) -> String {
    let mut shown = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == MAX_TEXT_CHARS {
            shown.push_str("...");
            break;
        }
        match c {
            c if c.is_control() => shown.extend(c.escape_default()),
            // They reorder what is around them.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    shown
}

impl Serialize for Contents<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let metadata = self.shards.metadata();
        let tensors: Vec<_> =
            self.shards.iter().enumerate().flat_map(JsonTensor::of_file).collect();
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("file", &self.path.to_string_lossy())?;
        map.serialize_entry("files", &self.shards.len())?;
        map.serialize_entry("size", &self.shards.file_len())?;
        map.serialize_entry("version", &self.shards.first().version())?;
        map.serialize_entry("alignment", &self.shards.first().alignment())?;
        map.serialize_entry("architecture", &metadata.architecture())?;
        map.serialize_entry("name", &metadata.get_str("general.name"))?;
        map.serialize_entry("parameters", &self.parameters())?;
        map.serialize_entry("tensor_bytes", &self.tensor_bytes())?;
        map.serialize_entry("bits_per_weight", &self.bits_per_weight())?;
        map.serialize_entry("metadata", &JsonMetadata(metadata))?;
        map.serialize_entry("tensors", &tensors)?;
        if let Some(findings) = self.findings {
            let findings: Vec<_> = findings.iter().map(JsonFinding).collect();
            map.serialize_entry("findings", &findings)?;
        }
        map.end()
    }
}

struct JsonMetadata<'a>(&'a Metadata);

impl Serialize for JsonMetadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, JsonValue(value))))
    }
}

/// Long arrays, such as vocabularies, become an object with their type and length.
struct JsonValue<'a>(&'a Value);

impl Serialize for JsonValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(array) if array.len() <= MAX_JSON_ARRAY => match array {
                Array::F32(values) => serializer.collect_seq(values),
                array => {
                    let values: Vec<_> = array.iter().collect();
                    serializer.collect_seq(values.iter().map(JsonValue))
                }
            },
            Value::Array(array) => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("array", array.ty().name())?;
                map.serialize_entry("len", &array.len())?;
                map.end()
            }
            Value::String(text) => serializer.serialize_str(&text.to_string_lossy()),
            Value::Bool(value) => serializer.serialize_bool(*value),
            // As itself: converted to f64 it gets digits that nobody wrote.
            Value::F32(value) => serializer.serialize_f32(*value),
            Value::F64(value) => serializer.serialize_f64(*value),
            value => match (value.as_u64(), value.as_i64()) {
                (Some(value), _) => serializer.serialize_u64(value),
                (None, Some(value)) => serializer.serialize_i64(value),
                (None, None) => serializer.serialize_str(&value.to_string()),
            },
        }
    }
}

#[derive(serde::Serialize)]
struct JsonTensor<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    ty: &'static str,
    shape: &'a [u64],
    bytes: u64,
    /// Which file of a split model it is in, from 0.
    file: usize,
    /// From the start of that file's data section.
    offset: u64,
}

impl<'a> JsonTensor<'a> {
    fn of_file((file, gguf): (usize, &'a smol_gguf::Gguf)) -> impl Iterator<Item = Self> {
        gguf.tensors().iter().map(move |tensor: &TensorInfo| Self {
            name: tensor.name(),
            ty: tensor.ty().name(),
            shape: tensor.shape(),
            bytes: tensor.n_bytes(),
            file,
            offset: tensor.offset(),
        })
    }
}

struct JsonFinding<'a>(&'a Finding);

impl Serialize for JsonFinding<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("severity", &self.0.severity().to_string())?;
        map.serialize_entry("message", &self.0.error().to_string())?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_files_cannot_command_the_terminal() {
        assert_eq!(shortened("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(shortened("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(shortened(&"é".repeat(200)), format!("{}...", "é".repeat(100)));
    }

    #[test]
    fn json_keeps_floats_as_written_and_shortens_vocabularies() {
        let json = |value: Value| serde_json::to_string(&JsonValue(&value)).unwrap();
        assert_eq!(json(Value::F32(0.1)), "0.1");
        assert_eq!(json(Value::U64(u64::MAX)), u64::MAX.to_string());
        assert_eq!(json(Value::I32(-3)), "-3");
        assert_eq!(json(Value::Array(Array::F32(vec![0.1, 2.0]))), "[0.1,2.0]");
        assert_eq!(json(Value::Array(Array::Bool(vec![true]))), "[true]");
        assert_eq!(
            json(Value::Array(Array::I32(vec![0; 5000]))),
            "{\"array\":\"i32\",\"len\":5000}"
        );
    }
}

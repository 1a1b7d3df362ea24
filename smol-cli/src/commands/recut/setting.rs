//! Metadata keys given on the command line.

use anyhow::{Context as _, Result, anyhow, bail};
use smol_gguf::{Array, Metadata, Value, ValueType};
use std::str::FromStr;

/// `KEY=VALUE`, `KEY=TYPE:VALUE` or `KEY=@FILE`.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    key: String,
    text: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                Ok(Self { key: key.to_owned(), text: value.to_owned() })
            }
            _ => Err("it must be KEY=VALUE".into()),
        }
    }
}

impl Setting {
    /// The key that is set.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// Sets the key. A key that is there keeps its type.
    pub(super) fn apply(&self, metadata: &mut Metadata) -> Result<()> {
        let value = self.value(metadata).with_context(|| format!("cannot set `{}`", self.key))?;
        metadata.set(self.key.clone(), value);
        Ok(())
    }

    fn value(&self, metadata: &Metadata) -> Result<Value> {
        if let Some(path) = self.text.strip_prefix('@') {
            let text = std::fs::read(path).with_context(|| format!("cannot read {path}"))?;
            return Ok(Value::String(text.into()));
        }
        if let Some((ty, text)) = self.text.split_once(':')
            && let Some(ty) = type_named(ty)
        {
            return scalar(text, ty);
        }
        match metadata.get(&self.key) {
            Some(Value::Array(old)) => array(&self.text, old.ty()),
            Some(old) => scalar(&self.text, old.ty()),
            None => Ok(guessed(&self.text)),
        }
    }
}

/// Types of single values by the names that `smol inspect` shows.
fn type_named(name: &str) -> Option<ValueType> {
    let types = (0..13).filter_map(ValueType::from_id);
    types.filter(|ty| *ty != ValueType::Array).find(|ty| ty.name() == name)
}

fn scalar(text: &str, ty: ValueType) -> Result<Value> {
    fn number<T: FromStr>(text: &str, ty: ValueType, make: fn(T) -> Value) -> Result<Value> {
        text.trim().parse().map(make).map_err(|_| anyhow!("`{text}` is no {ty}"))
    }
    match ty {
        ValueType::U8 => number(text, ty, Value::U8),
        ValueType::I8 => number(text, ty, Value::I8),
        ValueType::U16 => number(text, ty, Value::U16),
        ValueType::I16 => number(text, ty, Value::I16),
        ValueType::U32 => number(text, ty, Value::U32),
        ValueType::I32 => number(text, ty, Value::I32),
        ValueType::F32 => number(text, ty, Value::F32),
        ValueType::Bool => number(text, ty, Value::Bool),
        ValueType::U64 => number(text, ty, Value::U64),
        ValueType::I64 => number(text, ty, Value::I64),
        ValueType::F64 => number(text, ty, Value::F64),
        ValueType::String => Ok(Value::from(text)),
        _ => bail!("values of type {ty} can't be given here"),
    }
}

/// Reads a JSON array whose elements are of a type.
fn array(text: &str, ty: ValueType) -> Result<Value> {
    let elements: Vec<serde_json::Value> = serde_json::from_str(text)
        .map_err(|_| anyhow!("`{text}` is no array such as [1, 2], which the key has"))?;
    let as_text = |element: &serde_json::Value| match element {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let scalars = elements.iter().map(|element| scalar(&as_text(element), ty));
    let scalars: Vec<Value> = scalars.collect::<Result<_>>()?;
    macro_rules! collected {
        ($($variant:ident),*) => {
            match ty {
                $(ValueType::$variant => Array::$variant(scalars.into_iter().filter_map(|v| match v {
                    Value::$variant(v) => Some(v),
                    _ => None,
                }).collect()),)*
                ValueType::String => {
                    Array::String(scalars.iter().filter_map(Value::as_bytes).collect())
                }
                _ => bail!("arrays of type {ty} can't be given here"),
            }
        };
    }
    Ok(Value::Array(collected!(U8, I8, U16, I16, U32, I32, F32, Bool, U64, I64, F64)))
}

/// The type that a new key most likely has.
fn guessed(text: &str) -> Value {
    if let Ok(v) = text.parse() {
        return Value::U32(v);
    }
    if let Ok(v) = text.parse() {
        return Value::I32(v);
    }
    if let Ok(v) = text.parse() {
        return Value::Bool(v);
    }
    match text.parse() {
        Ok(v) if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => Value::F32(v),
        _ => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(metadata: &mut Metadata, text: &str) -> Result<Value> {
        let setting: Setting = text.parse().map_err(anyhow::Error::msg)?;
        setting.apply(metadata)?;
        Ok(metadata.get(&setting.key).unwrap().clone())
    }

    #[test]
    fn keys_keep_their_types() {
        let mut metadata = Metadata::new();
        metadata.set("n", 7u16);
        metadata.set("s", "7");
        metadata.set("a", vec![1i32, 2]);
        metadata.set("t", vec!["x"]);
        assert_eq!(set(&mut metadata, "n=9").unwrap(), Value::U16(9));
        assert_eq!(set(&mut metadata, "s=9").unwrap(), Value::from("9"));
        assert_eq!(set(&mut metadata, "s=a=b").unwrap(), Value::from("a=b"));
        assert_eq!(set(&mut metadata, "a=[3, -4]").unwrap(), Value::from(vec![3i32, -4]));
        assert_eq!(set(&mut metadata, r#"t=["y", "z"]"#).unwrap(), Value::from(vec!["y", "z"]));
        for bad in ["n=-1", "n=70000", "n=x", "a=3", "a=[0.5]", "n", "=3", "n=@no-such-file"] {
            assert!(set(&mut metadata, bad).is_err(), "{bad}");
        }
        assert_eq!(set(&mut metadata, "n=f64:0.5").unwrap(), Value::F64(0.5));
    }

    #[test]
    fn types_of_new_keys_are_guessed_or_given() {
        for (text, value) in [
            ("k=3", Value::U32(3)),
            ("k=-3", Value::I32(-3)),
            ("k=0.5", Value::F32(0.5)),
            ("k=-1e-5", Value::F32(-1e-5)),
            ("k=true", Value::Bool(true)),
            ("k=infinite", Value::from("infinite")),
            ("k=", Value::from("")),
            ("k=str:3", Value::from("3")),
            ("k=u64:3", Value::U64(3)),
            ("k=http://x", Value::from("http://x")),
        ] {
            assert_eq!(set(&mut Metadata::new(), text).unwrap(), value, "{text}");
        }
    }
}

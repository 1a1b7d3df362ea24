//! JSON schemas, enforced by llguidance.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::grammar::{Constraint, Mask};
use crate::model::Model;
use crate::sampler::bitset::BitSet;
use crate::token::Token;

/// Keywords that are enforced, and where their value holds further schemas.
const ENFORCED: &[(&str, Inside)] = &[
    ("$ref", Inside::Nothing),
    ("additionalItems", Inside::Schema),
    ("additionalProperties", Inside::Schema),
    ("allOf", Inside::List),
    ("anyOf", Inside::List),
    ("const", Inside::Nothing),
    ("enum", Inside::Nothing),
    ("exclusiveMaximum", Inside::Nothing),
    ("exclusiveMinimum", Inside::Nothing),
    ("format", Inside::Nothing),
    ("items", Inside::SchemaOrList),
    ("maxItems", Inside::Nothing),
    ("maxLength", Inside::Nothing),
    ("maxProperties", Inside::Nothing),
    ("maximum", Inside::Nothing),
    ("minItems", Inside::Nothing),
    ("minLength", Inside::Nothing),
    ("minProperties", Inside::Nothing),
    ("minimum", Inside::Nothing),
    ("multipleOf", Inside::Nothing),
    ("oneOf", Inside::List),
    ("pattern", Inside::Nothing),
    ("patternProperties", Inside::Map),
    ("prefixItems", Inside::List),
    ("properties", Inside::Map),
    ("required", Inside::Nothing),
    ("type", Inside::Nothing),
];

/// Keywords that describe and restrict nothing.
const DESCRIPTIVE: &[(&str, Inside)] = &[
    ("$anchor", Inside::Nothing),
    ("$comment", Inside::Nothing),
    ("$defs", Inside::Map),
    ("$id", Inside::Nothing),
    ("$schema", Inside::Nothing),
    ("contentEncoding", Inside::Nothing),
    ("contentMediaType", Inside::Nothing),
    ("default", Inside::Nothing),
    ("definitions", Inside::Map),
    ("description", Inside::Nothing),
    ("examples", Inside::Nothing),
    ("id", Inside::Nothing),
    ("readOnly", Inside::Nothing),
    ("title", Inside::Nothing),
    ("writeOnly", Inside::Nothing),
];

#[derive(Debug, Clone, Copy)]
enum Inside {
    Nothing,
    Schema,
    List,
    SchemaOrList,
    Map,
}

/// Checks that every keyword of a schema can be enforced, and that something satisfies it.
pub(super) fn check(schema: &Value) -> Result<()> {
    check_keywords(schema, &mut String::from("#"), 0)?;
    let bytes = (0..=255u8).map(|b| vec![b]).chain([b"\xFF<end>".to_vec()]).collect();
    matcher(&Vocabulary::new(bytes, &[Token(256)]), schema).map(drop)
}

fn check_keywords(schema: &Value, path: &mut String, depth: usize) -> Result<()> {
    const MAX_DEPTH: usize = 128;
    let fail = |path: &str, what: &str| {
        Err(Error::new(ErrorKind::Grammar, format!("JSON schema at {path}: {what}")))
    };
    if depth > MAX_DEPTH {
        return fail(path, &format!("nested more than {MAX_DEPTH} levels deep"));
    }
    let keywords = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return fail(path, "a schema is an object, true or false"),
    };
    for (keyword, value) in keywords {
        let known = ENFORCED.iter().chain(DESCRIPTIVE).find(|(known, _)| known == keyword);
        let Some(&(_, inside)) = known else {
            return fail(path, &format!("the keyword '{keyword}' is not supported"));
        };
        let len = path.len();
        path.push('/');
        path.push_str(keyword);
        let mut visit = |name: &str, inner: &Value| {
            let len = path.len();
            if !name.is_empty() {
                path.push('/');
                path.push_str(name);
            }
            check_keywords(inner, path, depth + 1)?;
            path.truncate(len);
            Ok::<(), Error>(())
        };
        match (inside, value) {
            (Inside::Nothing, _) => {}
            (Inside::List | Inside::SchemaOrList, Value::Array(list)) => {
                for (i, inner) in list.iter().enumerate() {
                    visit(&i.to_string(), inner)?;
                }
            }
            (Inside::Schema | Inside::SchemaOrList, inner) => visit("", inner)?,
            (Inside::Map, Value::Object(map)) => {
                for (name, inner) in map {
                    visit(name, inner)?;
                }
            }
            (Inside::List, _) => return fail(path, "a list of schemas is expected"),
            (Inside::Map, _) => return fail(path, "an object of schemas is expected"),
        }
        path.truncate(len);
    }
    Ok(())
}

/// The tokens of a model in the form that llguidance walks. Building it sorts the vocabulary; clones share it.
#[derive(Clone)]
pub(crate) struct Vocabulary {
    env: TokEnv,
    ends: Arc<Vec<Token>>,
    n_vocab: usize,
}

impl Vocabulary {
    /// The vocabulary of a model, built at the first use and kept with the model.
    pub(crate) fn of(model: &Model) -> Result<Self> {
        if let Some(known) = model.schema_vocabulary().get() {
            return Ok(known.clone());
        }
        let made = Self::build(model)?;
        Ok(model.schema_vocabulary().get_or_init(|| made).clone())
    }

    fn build(model: &Model) -> Result<Self> {
        let vocab = model.vocab();
        let words = (0..vocab.len() as i32)
            // Control tokens have no bytes here, and so are never a part of the text.
            .map(|id| vocab.token_bytes(Token(id), false))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self::new(words, &vocab.eog_tokens()))
    }

    /// `words`: the bytes of each token, empty for tokens that are never text. `ends`: the tokens that end a text.
    pub(crate) fn new(mut words: Vec<Vec<u8>>, ends: &[Token]) -> Self {
        let n_vocab = words.len();
        for word in &mut words {
            // 0xFF marks special tokens to llguidance, and is in no text.
            if word.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                word.clear();
            }
        }
        // One token past the vocabulary ends texts where the model has no such token.
        words.push(b"\xFF<end>".to_vec());
        let mut end_ids: Vec<u32> = Vec::with_capacity(ends.len() + 1);
        for end in ends {
            if let Some(id) = end.index().filter(|&id| id < n_vocab) {
                words[id] = format!("\u{0}<{id}>").into_bytes();
                words[id][0] = TokTrie::SPECIAL_TOKEN_MARKER;
                end_ids.push(id as u32);
            }
        }
        end_ids.push(n_vocab as u32);
        let info = TokRxInfo::new(words.len() as u32, end_ids[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&end_ids);
        Self { env: Arc::new(ApproximateTokEnv::new(trie)), ends: Arc::new(ends.to_vec()), n_vocab }
    }
}

fn matcher(vocabulary: &Vocabulary, schema: &Value) -> Result<Matcher> {
    let invalid = |what: String| {
        // llguidance appends its parser's state after the first line
        let line = what.lines().next().unwrap_or_default();
        Error::new(ErrorKind::Grammar, format!("the JSON schema cannot be enforced: {line}"))
    };
    let mut schema = match schema {
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err(invalid("nothing satisfies false".into())),
        other => other.clone(),
    };
    if let Some(keywords) = schema.as_object_mut() {
        keywords.insert(
            "x-guidance".into(),
            json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " }),
        );
    }
    // Schemas come from outside: a fault in the compiler must not take the process along.
    let made = catch_unwind(AssertUnwindSafe(|| {
        let mut factory = ParserFactory::new_simple(&vocabulary.env)?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        let grammar = TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(schema));
        factory.create_parser(grammar)
    }));
    let parser = match made {
        Ok(parser) => parser.map_err(|error| invalid(error.to_string()))?,
        Err(_) => return Err(invalid("the schema compiler failed".into())),
    };
    let matcher = Matcher::new(Ok(parser));
    match matcher.get_error() {
        Some(error) => Err(invalid(error)),
        None => Ok(matcher),
    }
}

/// A JSON schema at one place of a text.
pub(crate) struct SchemaConstraint {
    vocabulary: Vocabulary,
    start: Matcher,
    current: Matcher,
}

impl SchemaConstraint {
    pub(crate) fn new(vocabulary: &Vocabulary, schema: &Value) -> Result<Self> {
        let start = matcher(vocabulary, schema)?;
        Ok(Self { vocabulary: vocabulary.clone(), current: start.clone(), start })
    }

    fn may_end(&mut self) -> Result<bool> {
        Ok(self.is_done() || self.current.is_accepting().map_err(|e| failed(&e.to_string()))?)
    }
}

fn failed(what: &str) -> Error {
    let line = what.lines().next().unwrap_or_default();
    Error::new(ErrorKind::Grammar, format!("the JSON schema's parser failed: {line}"))
}

impl Constraint for SchemaConstraint {
    fn allows(&mut self, token: Token) -> Result<bool> {
        if self.is_end(token) {
            return self.may_end();
        }
        let Some(id) = token.index().filter(|&id| id < self.vocabulary.n_vocab) else {
            return Ok(false);
        };
        if self.is_done() {
            return Ok(false);
        }
        let valid =
            self.current.validate_tokens(&[id as u32]).map_err(|e| failed(&e.to_string()))?;
        Ok(valid == 1)
    }

    fn mask(&mut self, n_vocab: usize) -> Result<Mask> {
        let mut allowed = BitSet::new(n_vocab);
        let mut only_end = true;
        if !self.is_done() {
            let mask = self.current.compute_mask().map_err(|e| failed(&e.to_string()))?;
            for id in mask.iter() {
                let id = id as usize;
                if id < self.vocabulary.n_vocab && !self.is_end(Token(id as i32)) {
                    allowed.insert(id);
                    only_end = false;
                }
            }
        }
        if self.may_end()? {
            for id in self.vocabulary.ends.iter().filter_map(|end| end.index()) {
                allowed.insert(id);
            }
        }
        Ok(Mask { allowed, only_end })
    }

    fn accept(&mut self, token: Token) -> Result<()> {
        if !self.allows(token)? {
            return Err(Error::new(
                ErrorKind::Grammar,
                format!("token {token} does not continue a text that the JSON schema allows"),
            ));
        }
        if self.is_end(token) {
            return Ok(());
        }
        self.current.consume_token(token.0 as u32).map_err(|e| failed(&e.to_string()))
    }

    fn is_end(&self, token: Token) -> bool {
        self.vocabulary.ends.contains(&token)
    }

    fn is_done(&self) -> bool {
        self.current.is_stopped() && !self.current.is_error()
    }

    fn reset(&mut self) -> Result<()> {
        self.current = self.start.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::SamplerBuilder;

    const END: Token = Token(256);

    fn byte_vocabulary() -> Vocabulary {
        let mut words: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
        words.push(Vec::new());
        Vocabulary::new(words, &[END])
    }

    /// Whether the schema lets the text through and allows it to end there.
    fn accepts(schema: &Value, text: &str) -> bool {
        let mut constraint = SchemaConstraint::new(&byte_vocabulary(), schema).unwrap();
        for byte in text.bytes() {
            let token = Token(i32::from(byte));
            let allowed = constraint.allows(token).unwrap();
            assert_eq!(allowed, constraint.mask(257).unwrap().allowed.contains(usize::from(byte)));
            if !allowed {
                assert!(constraint.accept(token).is_err());
                return false;
            }
            constraint.accept(token).unwrap();
        }
        let may_end = constraint.allows(END).unwrap();
        assert_eq!(may_end, constraint.mask(257).unwrap().allowed.contains(256));
        may_end
    }

    #[test]
    fn objects_follow_their_schema() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "maxLength": 5 },
                "age": { "type": "integer", "minimum": 0, "maximum": 130 },
                "tags": { "type": "array", "items": { "enum": ["a", "b"] }, "maxItems": 2 },
            },
            "required": ["name", "age"],
            "additionalProperties": false,
        });
        check(&schema).unwrap();
        for good in [
            r#"{"name": "Ann", "age": 7}"#,
            r#"{"name": "é😀", "age": 130, "tags": ["a", "b"]}"#,
            r#"{"name": "", "age": 0, "tags": []}"#,
        ] {
            assert!(accepts(&schema, good), "{good}");
        }
        for bad in [
            r#"{"name": "Annabel", "age": 7}"#,
            r#"{"name": "Ann", "age": 131}"#,
            r#"{"name": "Ann"}"#,
            r#"{"name": "Ann", "age": 7, "x": 1}"#,
            r#"{"name": "Ann", "age": 7, "tags": ["c"]}"#,
            r#"{"name": "Ann", "age": 7"#,
            r#"{"name": "Ann", "age": 7}}"#,
        ] {
            assert!(!accepts(&schema, bad), "{bad}");
        }
    }

    #[test]
    fn references_and_alternatives_work() {
        let schema = json!({
            "$defs": { "tree": { "type": "object", "properties": {
                "v": { "type": "integer" },
                "l": { "anyOf": [{ "$ref": "#/$defs/tree" }, { "type": "null" }] } },
                "required": ["v", "l"], "additionalProperties": false } },
            "$ref": "#/$defs/tree",
        });
        assert!(accepts(&schema, r#"{"v": 1, "l": {"v": 2, "l": null}}"#));
        assert!(!accepts(&schema, r#"{"v": 1, "l": 3}"#));
    }

    #[test]
    fn a_model_that_wants_something_else_is_forced() {
        let schema = json!({ "enum": ["yes", "no"] });
        let mut sampler = SamplerBuilder::greedy().build_for_vocab(257).unwrap();
        let constraint = SchemaConstraint::new(&byte_vocabulary(), &schema).unwrap();
        sampler.set_constraint(Some(Box::new(constraint)));
        // a model that likes 'n', and otherwise low bytes
        let mut logits: Vec<f32> = (0..257).map(|i| -(i as f32)).collect();
        logits[usize::from(b'n')] = 5.0;
        let mut text = Vec::new();
        for _ in 0..2 {
            loop {
                let token = sampler.sample(&logits).unwrap();
                sampler.accept(token).unwrap();
                if token == END {
                    break;
                }
                text.push(token.0 as u8);
            }
            assert_eq!(String::from_utf8_lossy(&text), "\"no\"");
            assert!(sampler.ended_by_grammar());
            text.clear();
            sampler.reset().unwrap();
        }
    }

    #[test]
    fn the_end_is_seen_without_an_end_token() {
        let words = (0..=255u8).map(|b| vec![b]).collect();
        let vocabulary = Vocabulary::new(words, &[]);
        let mut constraint = SchemaConstraint::new(&vocabulary, &json!({ "const": 1 })).unwrap();
        assert!(!constraint.is_done());
        constraint.accept(Token(i32::from(b'1'))).unwrap();
        assert!(constraint.is_done());
        assert!(constraint.mask(256).unwrap().allowed.is_empty());
    }

    #[test]
    fn what_cannot_be_enforced_is_an_error_with_its_place() {
        for (schema, expected) in [
            (json!({ "not": {} }), "at #: the keyword 'not'"),
            (
                json!({ "properties": { "a": { "uniqueItems": true } } }),
                "at #/properties/a: the keyword 'uniqueItems'",
            ),
            (json!({ "anyOf": [{}, { "minimun": 3 }] }), "at #/anyOf/1: the keyword 'minimun'"),
            (json!({ "x-guidance": { "lenient": true } }), "'x-guidance'"),
            (json!({ "type": "strng" }), "cannot be enforced"),
            (json!({ "properties": [] }), "an object of schemas"),
            (json!({ "allOf": {} }), "a list of schemas"),
            (json!({ "items": 3 }), "a schema is an object"),
            (json!({ "$ref": "#/$defs/missing" }), "cannot be enforced"),
            (json!({ "pattern": "(" , "type": "string" }), "cannot be enforced"),
            (json!({ "type": "integer", "minimum": 3, "maximum": 2 }), "cannot be enforced"),
            (json!(false), "nothing satisfies"),
            (json!("text"), "a schema is an object"),
        ] {
            let error = check(&schema).expect_err(&schema.to_string());
            assert_eq!(error.kind(), &ErrorKind::Grammar);
            assert!(error.message().contains(expected), "{schema}: {error}");
            assert!(!error.message().contains('\n'));
        }
    }

    #[test]
    fn depth_is_bounded() {
        let mut schema = json!({});
        for _ in 0..1000 {
            schema = json!({ "items": schema });
        }
        assert!(check(&schema).unwrap_err().message().contains("128 levels"));
    }
}

//! Grammars that answers must follow: GBNF, JSON, and JSON schemas.

mod gbnf;
#[cfg(feature = "json-schema")]
pub(crate) mod json_schema;
mod llama;

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::model::Model;
use crate::sampler::bitset::BitSet;
use crate::token::Token;

/// A checked grammar, ready for any model. Clones are cheap.
///
/// Give it to [`SamplerBuilder::grammar`](crate::sampler::SamplerBuilder::grammar).
///
/// # Examples
/// ```
/// use llama_rs::grammar::Grammar;
///
/// let yes_or_no = Grammar::gbnf(r#"root ::= "yes" | "no""#)?;
/// let error = Grammar::gbnf("root ::= answer").unwrap_err();
/// assert!(error.to_string().contains("rule 'answer' is not defined"), "{error}");
/// # Ok::<(), llama_rs::Error>(())
/// ```
#[derive(Clone)]
pub struct Grammar {
    source: Source,
}

#[derive(Clone)]
enum Source {
    Gbnf(Arc<Gbnf>),
    #[cfg(feature = "json-schema")]
    JsonSchema(Arc<serde_json::Value>),
}

struct Gbnf {
    text: String,
    /// The tokens that it names.
    tokens: Vec<String>,
}

impl Grammar {
    /// Takes a grammar in llama.cpp's GBNF notation; the start symbol is `root`.
    ///
    /// # Errors
    /// `Grammar` with line and column for a syntax error, and with the rule's name for an undefined or left-recursive
    /// rule or a missing `root`.
    pub fn gbnf(text: &str) -> Result<Self> {
        let tokens = gbnf::check(text)?;
        Ok(Self { source: Source::Gbnf(Arc::new(Gbnf { text: text.to_owned(), tokens })) })
    }

    /// Allows one JSON value of any kind, nested as deep as it likes.
    pub fn json() -> Self {
        let json = Gbnf { text: JSON.to_owned(), tokens: Vec::new() };
        Self { source: Source::Gbnf(Arc::new(json)) }
    }

    /// Allows JSON that a schema (draft 2020-12 or older) accepts.
    ///
    /// Objects come on one line, as `{"a": 1, "b": [2, 3]}`: free white space lets small models write nothing else.
    ///
    /// # Errors
    /// `Grammar` with the keyword and its place for whatever cannot be enforced (for example `not`, `uniqueItems`
    /// or a misspelt keyword), for a wrong type, and for a schema that nothing satisfies.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "json-schema")] {
    /// use llama_rs::grammar::Grammar;
    ///
    /// let schema = serde_json::json!({
    ///     "type": "object",
    ///     "properties": { "city": { "type": "string" }, "people": { "type": "integer" } },
    ///     "required": ["city"],
    ///     "additionalProperties": false,
    /// });
    /// let grammar = Grammar::json_schema(&schema)?;
    ///
    /// let error = Grammar::json_schema(&serde_json::json!({ "not": {} })).unwrap_err();
    /// assert!(error.to_string().contains("not"));
    /// # }
    /// # Ok::<(), llama_rs::Error>(())
    /// ```
    #[cfg(feature = "json-schema")]
    pub fn json_schema(schema: &serde_json::Value) -> Result<Self> {
        json_schema::check(schema)?;
        Ok(Self { source: Source::JsonSchema(Arc::new(schema.clone())) })
    }

    /// The grammar at the start of a text of this model.
    pub(crate) fn start(&self, model: &Model) -> Result<Box<dyn Constraint>> {
        match &self.source {
            Source::Gbnf(gbnf) => Ok(Box::new(llama::LlamaGrammar::new(model, gbnf)?)),
            #[cfg(feature = "json-schema")]
            Source::JsonSchema(schema) => {
                let vocabulary = json_schema::Vocabulary::of(model)?;
                Ok(Box::new(json_schema::SchemaConstraint::new(&vocabulary, schema)?))
            }
        }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Gbnf(gbnf) => f.debug_tuple("Gbnf").field(&gbnf.text).finish(),
            #[cfg(feature = "json-schema")]
            Source::JsonSchema(schema) => f.debug_tuple("JsonSchema").field(schema).finish(),
        }
    }
}

/// Any JSON value. Numbers and white space are bounded so that a model cannot stay in them for ever.
const JSON: &str = r#"root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( pair ( ws "," ws pair )* ws )? "}"
pair   ::= string ws ":" ws value
array  ::= "[" ws ( value ( ws "," ws value )* ws )? "]"
string ::= "\"" ( [^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\""
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?
ws     ::= [ \t\n]{0,16}
"#;

/// The tokens that may come next.
pub(crate) struct Mask {
    pub(crate) allowed: BitSet,
    /// Nothing but tokens that end the generation is allowed.
    pub(crate) only_end: bool,
}

/// A grammar at one place of a text. Fails closed: after an error it refuses everything until reset.
pub(crate) trait Constraint: Send {
    /// Whether `token` may come next.
    fn allows(&mut self, token: Token) -> Result<bool>;
    /// All tokens below `n_vocab` that may come next.
    fn mask(&mut self, n_vocab: usize) -> Result<Mask>;
    /// Those of a few tokens that may come next, with their number; `None` where [`mask`](Self::mask) is as quick.
    fn mask_of(&mut self, tokens: &[Token], n_vocab: usize) -> Result<Option<(BitSet, usize)>> {
        let _ = (tokens, n_vocab);
        Ok(None)
    }
    /// Whether `token` ends a text.
    fn is_end(&self, token: Token) -> bool;
    /// Advances past `token`, which must be allowed.
    fn accept(&mut self, token: Token) -> Result<()>;
    /// Whether the text is complete and cannot go on.
    fn is_done(&self) -> bool;
    /// Goes back to the start.
    fn reset(&mut self) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_grammar_is_valid() {
        gbnf::check(JSON).unwrap();
    }

    #[test]
    fn debug_shows_the_source() {
        let grammar = Grammar::gbnf("root ::= \"x\"").unwrap();
        assert!(format!("{grammar:?}").contains("root"));
    }
}

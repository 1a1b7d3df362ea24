//! The vocabulary: tokens, their scores and types, and the special ones.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::ErrorKind;
use crate::{Array, Value};

use super::model::key_type;
use super::{Model, Report};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const SUPPRESSED: &str = "tokenizer.ggml.suppress_tokens";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const SEP: &str = "tokenizer.ggml.seperator_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// Ids that start or end a text. Out of range, llama.cpp takes a default that belongs to another
/// model, and generation starts or ends at the wrong place.
const DECISIVE_IDS: [&str; 4] =
    [BOS, EOS, "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];

/// Ids whose absence is harmless.
const OTHER_IDS: [&str; 11] = [
    SEP,
    "tokenizer.ggml.unknown_token_id",
    "tokenizer.ggml.padding_token_id",
    "tokenizer.ggml.cls_token_id",
    "tokenizer.ggml.mask_token_id",
    "tokenizer.ggml.fim_pre_token_id",
    "tokenizer.ggml.fim_suf_token_id",
    "tokenizer.ggml.fim_mid_token_id",
    "tokenizer.ggml.fim_pad_token_id",
    "tokenizer.ggml.fim_rep_token_id",
    "tokenizer.ggml.fim_sep_token_id",
];

/// Above any vocabulary there is.
const MAX_VOCABULARY: u32 = 1 << 24;
/// "No such token", written by converters.
const NONE_ID: u32 = u32::MAX;

/// Pre-tokenizers that put a BOS token in front unless told otherwise.
const PRE_WITH_BOS: [&str; 13] = [
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "midm-2.0",
    "jina-v5-nano",
    "lfm2",
    "tekken",
    "pixtral",
    "tekken-num3",
    "chameleon",
    "nemotron-3.5-embed",
];

pub(super) fn check(model: &Model<'_>, report: &mut Report) {
    let metadata = model.metadata();
    let file = model.first();
    let tokenizer = match metadata.get(MODEL) {
        // Without a tokenizer llama.cpp says so itself.
        None => return,
        Some(v) => match v.as_str() {
            Some(name) => name,
            None => return report.error(file, key_type(MODEL, v, "str")),
        },
    };
    if matches!(tokenizer, "no_vocab" | "none") {
        // As many empty tokens are made.
        model.u32_in("vocab_size", 0..=MAX_VOCABULARY, report);
        return;
    }
    let tokens = match metadata.get(TOKENS) {
        None => return report.error(file, ErrorKind::MissingKey { key: TOKENS.into() }),
        Some(Value::Array(Array::String(tokens))) => tokens,
        Some(other) => return report.error(file, key_type(TOKENS, other, "[str]")),
    };
    let n_tokens = tokens.len();
    if n_tokens == 0 && !model.is_vocabulary_only() {
        let allowed = "1 or more".to_owned();
        report.error(file, ErrorKind::ArrayLength { key: TOKENS.into(), found: 0, allowed });
        return;
    }
    duplicates(model, tokens.iter(), report);
    arrays(model, tokenizer, n_tokens, report);
    ids(model, n_tokens, report);
    borders(model, tokenizer, n_tokens, report);
}

/// Hashes tokens at once, for there are many. No file knows the seed, so that none can have all its tokens collide.
struct Seeded(u64);

impl BuildHasher for Seeded {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(self.0)
    }
}

impl Hasher for Seeded {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// llama.cpp cuts tokens at a zero byte and renames empty ones before it asserts that all differ.
fn duplicates<'a>(
    model: &Model<'_>,
    tokens: impl ExactSizeIterator<Item = &'a [u8]>,
    report: &mut Report,
) {
    let hasher = Seeded(RandomState::new().hash_one(0_u64));
    let mut seen: HashMap<Cow<'_, [u8]>, usize, _> =
        HashMap::with_capacity_and_hasher(tokens.len(), hasher);
    for (id, token) in tokens.enumerate() {
        let end = token.iter().position(|&b| b == 0).unwrap_or(token.len());
        let token = match &token[..end] {
            [] => Cow::Owned(format!("[EMPTY_{id}]").into_bytes()),
            token => Cow::Borrowed(token),
        };
        if let Some(&first) = seen.get(&token) {
            report.error(
                model.first(),
                ErrorKind::DuplicateToken {
                    token: token.into_owned(),
                    first: first as u64,
                    second: id as u64,
                },
            );
            // One pair tells what is wrong; damaged vocabularies have thousands.
            return;
        }
        seen.insert(token, id);
    }
}

fn arrays(model: &Model<'_>, tokenizer: &str, n_tokens: usize, report: &mut Report) {
    let metadata = model.metadata();
    let file = model.first();
    let one_each = |key: &str, found: usize, report: &mut Report| {
        if found < n_tokens {
            report.error(
                file,
                ErrorKind::ArrayLength {
                    key: key.into(),
                    found: found as u64,
                    allowed: format!("{n_tokens}, one for each token"),
                },
            );
        }
    };
    match metadata.get(SCORES) {
        None => {}
        Some(Value::Array(Array::I32(a))) => one_each(SCORES, a.len(), report),
        Some(Value::Array(Array::F32(a))) => {
            one_each(SCORES, a.len(), report);
            if let Some(id) = a.iter().position(|v| v.is_nan()) {
                report.error(
                    file,
                    ErrorKind::KeyRange {
                        key: SCORES.into(),
                        found: format!("NaN for token {id}"),
                        allowed: "any number".into(),
                    },
                );
            }
        }
        Some(other) => report.error(file, key_type(SCORES, other, "[f32] or [i32]")),
    }
    match metadata.get(TYPES) {
        None => {}
        Some(Value::Array(Array::I32(a))) => one_each(TYPES, a.len(), report),
        Some(other) => report.error(file, key_type(TYPES, other, "[i32]")),
    }
    match metadata.get(MERGES) {
        None | Some(Value::Array(Array::String(_))) => {}
        Some(other) => report.error(file, key_type(MERGES, other, "[str]")),
    }
    match metadata.get(SUPPRESSED) {
        None | Some(Value::Array(Array::I32(_))) => {}
        Some(other) => report.error(file, key_type(SUPPRESSED, other, "[i32]")),
    }
    if tokenizer == "t5" {
        charsmap(model, report);
    }
}

/// A table of 32-bit words after its size in bytes, then text.
fn charsmap(model: &Model<'_>, report: &mut Report) {
    let bytes: Cow<'_, [u8]> = match model.metadata().get(CHARSMAP) {
        None => return,
        Some(Value::Array(Array::U8(a))) => a.into(),
        Some(Value::Array(Array::I8(a))) => a.iter().map(|&b| b as u8).collect(),
        Some(other) => {
            report.error(model.first(), key_type(CHARSMAP, other, "[u8] or [i8]"));
            return;
        }
    };
    let table = bytes.first_chunk::<4>().map(|&b| u64::from(u32::from_le_bytes(b)));
    if table.is_none_or(|table| table + 4 >= bytes.len() as u64) {
        report.error(
            model.first(),
            ErrorKind::ArrayLength {
                key: CHARSMAP.into(),
                found: bytes.len() as u64,
                allowed: format!("more than {}", table.unwrap_or(0) + 4),
            },
        );
    }
}

fn ids(model: &Model<'_>, n_tokens: usize, report: &mut Report) {
    let file = model.first();
    for key in DECISIVE_IDS.into_iter().chain(OTHER_IDS) {
        match model.metadata().get(key) {
            None | Some(&Value::U32(NONE_ID)) => {}
            Some(&Value::U32(id)) if (id as usize) < n_tokens => {}
            Some(&Value::U32(id)) => {
                let kind = ErrorKind::KeyRange {
                    key: key.into(),
                    found: id.to_string(),
                    allowed: match n_tokens {
                        0 => "none in an empty vocabulary".into(),
                        n => format!("0 to {}", n - 1),
                    },
                };
                if DECISIVE_IDS.contains(&key) {
                    report.error(file, kind);
                } else {
                    report.warning(file, kind);
                }
            }
            Some(other) => report.error(file, key_type(key, other, "u32")),
        }
    }
}

/// A tokenizer that adds a token at a border of the text must have that token.
fn borders(model: &Model<'_>, tokenizer: &str, n_tokens: usize, report: &mut Report) {
    let metadata = model.metadata();
    let pre = metadata.get_str(PRE).unwrap_or_default();
    let is_bpe = matches!(tokenizer, "gpt2" | "hybriddna" | "whitespace" | "gemma4");
    let gemma4 =
        tokenizer == "gemma4" || (is_bpe && matches!(pre, "gemma4" | "granite-embed-multi-311m"));
    let (mut bos, eos, sep) = match tokenizer {
        "llama" | "plamo2" | "plamo3" => (Some(1), Some(2), None),
        "bert" => (Some(101), None, Some(102)),
        "gpt2" | "hybriddna" | "whitespace" => (Some(11), Some(11), None),
        "t5" => (None, Some(1), None),
        _ => (None, None, None),
    };
    if is_bpe && matches!(pre, "chatglm-bpe" | "glm4" | "glm5") {
        bos = None;
    }
    let exists = |key: &str, default: Option<u32>| {
        let fits = |id: &u32| (*id as usize) < n_tokens;
        match metadata.get(key) {
            Some(Value::U32(id)) if fits(id) => true,
            _ => default.as_ref().is_some_and(fits),
        }
    };
    let adds = |key: &str, default: bool| metadata.get_bool(key).unwrap_or(default);
    let mut missing = |key: &str| {
        report.error(
            model.first(),
            ErrorKind::KeyRange {
                key: key.into(),
                found: metadata.get(key).map_or("missing".into(), Value::to_string),
                allowed: "the id of a token, because the tokenizer adds it to each text".into(),
            },
        );
    };
    match tokenizer {
        "bert" => {
            if !exists(BOS, bos) {
                missing(BOS);
            }
            if !exists(SEP, sep) {
                missing(SEP);
            }
        }
        "llama" | "t5" | "plamo2" | "plamo3" | "gpt2" | "hybriddna" | "whitespace" | "gemma4" => {
            let bos_by_default = match tokenizer {
                "llama" => true,
                _ if is_bpe => PRE_WITH_BOS.contains(&pre),
                _ => false,
            };
            if (gemma4 || adds(ADD_BOS, bos_by_default)) && !exists(BOS, bos) {
                missing(BOS);
            }
            if adds(ADD_EOS, tokenizer == "t5") && !exists(EOS, eos) {
                missing(EOS);
            }
        }
        _ => {}
    }
}

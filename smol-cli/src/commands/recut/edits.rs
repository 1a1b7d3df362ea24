//! What changes in a model on its way: keys, tensors and their types.

use super::file_type::file_type;
use super::pattern::Pattern;
use super::setting::Setting;
use crate::failure::Failure;
use crate::model;
use anyhow::{Context as _, Result};
use serde_json::json;
use smol_gguf::{ImportanceMatrix, Rewriter, Shards, TensorInfo, TensorType, Value};
use smolmaxxing::Requantize;
use std::path::PathBuf;
use std::str::FromStr;

/// The key that tells what most of a model's weights are.
const FILE_TYPE: &str = "general.file_type";

/// Changes that combine in one pass, in this order.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Edits")]
pub(super) struct EditArgs {
    /// Leave out the tensors whose names match; `*` stands for any characters, `?` for one
    #[arg(long, group = "edits", value_name = "PATTERN")]
    drop: Vec<Pattern>,
    /// Add all tensors of another .gguf file at the end
    #[arg(long, group = "edits", value_name = "FILE")]
    add_tensors: Vec<PathBuf>,
    /// Leave out the metadata keys that match
    #[arg(long, group = "edits", value_name = "PATTERN")]
    unset: Vec<Pattern>,
    /// Set a metadata key, which keeps its type; `KEY=u32:1` gives one, `KEY=@FILE` takes a text
    #[arg(long, group = "edits", value_name = "KEY=VALUE")]
    set: Vec<Setting>,
    /// Convert the matrices whose names match to another type, such as `*_exps.weight=q4_K`; the
    /// first pattern that matches counts
    #[arg(long, group = "edits", value_name = "PATTERN=TYPE")]
    requantize: Vec<NewType>,
    /// What llama-imatrix has measured of the model, so that columns that matter are converted
    /// better
    #[arg(long, value_name = "FILE", requires = "requantize")]
    imatrix: Option<PathBuf>,
    /// Only write all files of the model as one, which every other edit does too
    #[arg(long, group = "edits")]
    merge: bool,
}

/// `PATTERN=TYPE`.
#[derive(Debug, Clone)]
struct NewType {
    pattern: Pattern,
    ty: TensorType,
}

impl FromStr for NewType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, ty) = text.rsplit_once('=').ok_or("it must be PATTERN=TYPE")?;
        let known = TensorType::from_name(ty);
        let ty =
            known.ok_or_else(|| format!("there is no type `{ty}`, others are q4_0 and q6_K"))?;
        let Ok(pattern) = pattern.parse();
        Ok(Self { pattern, ty })
    }
}

/// Matrices that get another type.
#[derive(Debug, Default)]
pub(super) struct Requantized {
    pub(super) tensors: usize,
    pub(super) old_bytes: u64,
    pub(super) bytes: u64,
}

impl Requantized {
    pub(super) fn json(&self) -> serde_json::Value {
        json!({ "tensors": self.tensors, "old_bytes": self.old_bytes, "bytes": self.bytes })
    }
}

impl EditArgs {
    /// Opens the files whose tensors are added.
    pub(super) fn open_added(&self) -> Result<Vec<Shards>> {
        let open = |path: &PathBuf| {
            model::check_file(path)?;
            let shards = Shards::open(path)?;
            for (file, tensor) in shards.tensors() {
                file.file_offset(tensor)?;
            }
            Ok(shards)
        };
        self.add_tensors.iter().map(open).collect()
    }

    /// Changes keys and the list of tensors.
    pub(super) fn apply<'a>(&self, plan: &mut Rewriter<'a>, added: &'a [Shards]) -> Result<()> {
        for pattern in &self.drop {
            let before = plan.tensors().len();
            plan.retain_tensors(|tensor| !pattern.matches(tensor.name()));
            if plan.tensors().len() == before {
                return Err(no_match("--drop", pattern, "tensor"));
            }
        }
        for shards in added {
            for (file, tensor) in shards.tensors() {
                if plan.tensors().any(|known| known.name() == tensor.name()) {
                    let message = format!("the model has a tensor `{}` already", tensor.name());
                    let advice = "leave out the old one with --drop";
                    return Err(Failure::new(message).advice(advice).into());
                }
                plan.add_copy(file, tensor);
            }
        }
        for pattern in &self.unset {
            let keys = plan.metadata().iter().map(|(key, _)| key);
            let keys: Vec<_> = keys.filter(|key| pattern.matches(key)).map(str::to_owned).collect();
            if keys.is_empty() {
                return Err(no_match("--unset", pattern, "metadata key"));
            }
            for key in keys {
                plan.remove_key(&key);
            }
        }
        self.set.iter().try_for_each(|setting| setting.apply(plan.metadata_mut()))
    }

    /// Gives matrices their new types, if there are any to give.
    pub(super) fn requantize(&self, plan: &mut Rewriter<'_>) -> Result<Option<Requantized>> {
        if self.requantize.is_empty() {
            return Ok(None);
        }
        let imatrix = self.imatrix.as_ref().map(|path| {
            let context = || format!("cannot use the importance matrix {}", path.display());
            ImportanceMatrix::open(path).with_context(context)
        });
        let imatrix = imatrix.transpose()?;
        let mut matched = vec![false; self.requantize.len()];
        let tensors: Vec<TensorInfo> = plan.tensors().cloned().collect();
        let mut done = Requantized::default();
        for tensor in &tensors {
            let name = tensor.name();
            // One that is named in full is meant, whatever it is.
            let meant = |new: &NewType| {
                new.pattern.matches(name) && (new.pattern.is_name() || Requantize::fits(tensor))
            };
            let Some(at) = self.requantize.iter().position(meant) else { continue };
            matched[at] = true;
            let ty = self.requantize[at].ty;
            if ty == tensor.ty() {
                continue;
            }
            let columns = imatrix.as_ref().and_then(|imatrix| imatrix.get(name));
            Requantize::new(ty).importance(columns).apply(plan, name)?;
            done.tensors += 1;
            done.old_bytes += tensor.n_bytes();
        }
        if let Some(at) = matched.iter().position(|matched| !matched) {
            return Err(no_match("--requantize", &self.requantize[at].pattern, "matrix"));
        }
        let after = plan.tensors().zip(&tensors).filter(|(new, old)| new.ty() != old.ty());
        done.bytes = after.map(|(new, _)| new.n_bytes()).sum();
        let said = self.set.iter().any(|setting| setting.key() == FILE_TYPE)
            || self.unset.iter().any(|pattern| pattern.matches(FILE_TYPE));
        if !said {
            let before = plan.metadata().get(FILE_TYPE).and_then(Value::as_u64);
            if let Some(ty) = file_type(plan.tensors(), before) {
                plan.set(FILE_TYPE, ty);
            }
        }
        if let (Some(imatrix), Some(path)) = (&imatrix, &self.imatrix) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            plan.set("quantize.imatrix.file", name);
            plan.set("quantize.imatrix.entries_count", imatrix.len() as u32);
        }
        Ok(Some(done))
    }
}

fn no_match(option: &str, pattern: &Pattern, what: &str) -> anyhow::Error {
    let message = format!("{option} {}: no {what} has such a name", pattern.as_str());
    Failure::new(message).advice("`smol inspect` lists tensors and keys").into()
}

//! A vocabulary head without the rows of tokens that no text needs.

use crate::commands::vocab::{read_ids, select};
use crate::failure::{Failure, notice};
use crate::units::{bytes, grouped};
use anyhow::Result;
use serde_json::json;
use smol_gguf::{ErrorKind, PrunedHead, Rewriter, Shards};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Which tokens the model can write afterwards.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Vocabulary head")]
pub struct HeadArgs {
    /// Keep only the rows of these tokens in the vocabulary head; FILE has an id a line, as `smol
    /// vocab select` writes it. Only this program can run the result
    #[arg(long, groups = ["edits", "heads"], value_name = "FILE")]
    head_ids: Option<PathBuf>,
    /// Keep only the rows of the N tokens that the texts of a file or folder need most; several
    /// weigh the same
    #[arg(
        long,
        groups = ["edits", "heads"],
        value_name = "PATH",
        requires = "keep",
        conflicts_with = "head_ids"
    )]
    head_from: Vec<PathBuf>,
    /// Tokens to keep
    #[arg(long, value_name = "N", requires = "head_from",
        value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Keep a few tokens more, so that the head has a multiple of N rows
    #[arg(long, value_name = "N", requires = "heads",
        value_parser = clap::value_parser!(u32).range(1..))]
    rows_multiple: Option<u32>,
}

impl HeadArgs {
    /// Plans the new head; `model`: the file that `source` was read from, if it is one. `None`: it stays as it is.
    pub fn apply<'a>(
        &self,
        plan: &mut Rewriter<'a>,
        source: &'a Shards,
        model: Option<&Path>,
        stop: &AtomicBool,
    ) -> Result<Option<PrunedHead>> {
        let multiple = self.rows_multiple.unwrap_or(1);
        let ids = match (&self.head_ids, self.keep) {
            (Some(file), _) => filled(read_ids(file)?, &tokens_of(source)?, multiple),
            (None, Some(keep)) if !self.head_from.is_empty() => {
                let all = tokens_of(source)?.len();
                if keep as usize > all {
                    let message = format!("--keep {keep}: the head has {all} rows");
                    let advice = "a head that keeps all of them needs no change";
                    return Err(Failure::usage(message).advice(advice).into());
                }
                let keep = keep.checked_next_multiple_of(multiple).unwrap_or(keep);
                let keep = (keep as usize).min(all);
                let Some(model) = model else {
                    let failure = Failure::usage("--head-from needs a file, to count its tokens");
                    let advice = "`smol vocab select` makes a list for --head-ids";
                    return Err(failure.advice(advice).into());
                };
                let selected = select(model, &self.head_from, &[], keep, stop)?;
                for (path, outside) in self.head_from.iter().zip(&selected.outside) {
                    notice(format_args!(
                        "{}: {:.3} % of {} tokens are left out",
                        path.display(),
                        outside.share() * 100.0,
                        grouped(outside.of_tokens)
                    ));
                }
                selected.ids.iter().filter_map(|id| u32::try_from(id.0).ok()).collect()
            }
            _ => return Ok(None),
        };
        let head = plan.prune_head(source, &ids).map_err(|error| match error.kind() {
            ErrorKind::HeadToken { .. } => anyhow::Error::new(error).context(
                Failure::new("the tokens are not those of this model")
                    .advice("choose them with `smol vocab select` and the same model"),
            ),
            _ => error.into(),
        })?;
        Ok(Some(head))
    }
}

/// The tokens that have a row in the head.
fn tokens_of(source: &Shards) -> Result<Vec<u32>> {
    if let Some(ids) = source.output_ids()? {
        return Ok(ids);
    }
    let head = source.tensor("output.weight").or_else(|| source.tensor("token_embd.weight"));
    let rows = head.map_or(0, |(_, head)| head.n_rows());
    Ok((0..u32::try_from(rows).unwrap_or(u32::MAX)).collect())
}

/// Adds the first of all tokens that aren't there until their number is a multiple, if there are so many.
fn filled(mut ids: Vec<u32>, all: &[u32], multiple: u32) -> Vec<u32> {
    ids.sort_unstable();
    ids.dedup();
    let missing = ids.len().next_multiple_of(multiple as usize) - ids.len();
    let is_new = |id: &&u32| ids.binary_search(id).is_err();
    let more: Vec<u32> = all.iter().filter(is_new).take(missing).copied().collect();
    ids.extend(more);
    ids
}

/// Tells a person what became of the head.
pub(super) fn print(out: &mut dyn Write, head: &PrunedHead) -> io::Result<()> {
    let (rows, before) = (grouped(head.rows), grouped(head.rows_before));
    let size = bytes(head.bytes);
    let tied = if head.was_tied { "; the embeddings stay whole" } else { "" };
    writeln!(out, "head: {rows} of {before} rows, {size}{tied}")
}

/// What became of the head.
pub(super) fn json(head: &PrunedHead) -> serde_json::Value {
    json!({
        "rows": head.rows,
        "rows_before": head.rows_before,
        "bytes": head.bytes,
        "bytes_before": head.bytes_before,
        "was_tied": head.was_tied,
    })
}

#[cfg(test)]
mod tests {
    use super::filled;

    #[test]
    fn rows_are_filled_up_with_the_first_others() {
        let all: Vec<u32> = (0..10).collect();
        assert_eq!(filled(vec![7, 0, 2, 7], &all, 1), [0, 2, 7]);
        assert_eq!(filled(vec![7, 0, 2, 7], &all, 4), [0, 2, 7, 1]);
        assert_eq!(filled(vec![7, 0, 2], &all, 8), [0, 2, 7, 1, 3, 4, 5, 6]);
        assert_eq!(filled(vec![7], &all, 16).len(), 10);
    }
}

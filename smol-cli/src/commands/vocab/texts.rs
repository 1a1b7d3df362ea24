//! The tokens of texts in files and folders.

use crate::arguments::load_vocabulary;
use crate::failure::{Failure, notice};
use crate::progress;
use anyhow::{Context as _, Result};
use smolmaxxing::vocab_selection::{Outside, TokenCounts, required_tokens, select_tokens};
use smolmaxxing::{CancelToken, Token, Vocab};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 30;

/// Which tokens are kept, and what that means for the texts.
pub struct Selected {
    /// By ascending id.
    pub ids: Vec<Token>,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Those that are kept whatever the texts.
    pub required: usize,
    /// What is left out of each text.
    pub outside: Vec<Outside>,
    /// What is left out of each text that didn't count.
    pub held_out: Vec<Outside>,
}

/// Chooses the `keep` tokens of a model that the texts of `corpora` need most, unless told to `stop`.
pub fn select(
    model: &Path,
    corpora: &[PathBuf],
    held_out: &[PathBuf],
    keep: usize,
    stop: &AtomicBool,
) -> Result<Selected> {
    // Before the model is opened: a path may be wrong.
    let files = |paths: &[PathBuf]| paths.iter().map(|path| files_of(path)).collect::<Result<_>>();
    let (files, held_out): (Vec<_>, Vec<_>) = (files(corpora)?, files(held_out)?);
    let model = load_vocabulary(model, &CancelToken::new())?;
    let vocab = model.vocab();
    let count = |all: Vec<Vec<PathBuf>>| {
        all.iter().map(|files| count(&vocab, files, stop)).collect::<Result<Vec<_>>>()
    };
    let (counts, others) = (count(files)?, count(held_out)?);
    let empty = counts.iter().position(|counts| counts.outside(&[]).of_tokens == 0);
    if let Some(corpus) = empty.and_then(|number| corpora.get(number)) {
        let failure = Failure::new(format!("there is no text in {}", corpus.display()));
        return Err(failure.advice("--corpus takes texts of what the model should write").into());
    }
    let ids = select_tokens(&vocab, &counts, keep)?;
    let outside = |counts: Vec<TokenCounts>| counts.iter().map(|c| c.outside(&ids)).collect();
    Ok(Selected {
        vocab: vocab.len(),
        required: required_tokens(&vocab).len(),
        outside: outside(counts),
        held_out: outside(others),
        ids,
    })
}

/// The file itself, or all files of a folder and those in it.
fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    let shown = path.display();
    let metadata = fs::metadata(path).with_context(|| format!("cannot read {shown}"))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)
            .with_context(|| format!("cannot read the folder {}", folder.display()))?
        {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
    }
    if files.is_empty() {
        return Err(Failure::new(format!("there are no files in {shown}")).into());
    }
    files.sort();
    Ok(files)
}

fn count(vocab: &Vocab, files: &[PathBuf], stop: &AtomicBool) -> Result<TokenCounts> {
    let mut counts = TokenCounts::new(vocab);
    let bar = progress::steps("tokenizing", files.len() as u64);
    for file in files {
        let shown = file.display();
        if stop.load(Ordering::Relaxed) {
            bar.finish_and_clear();
            return Err(Failure::stopped("stopped; nothing was written").into());
        }
        let size = fs::metadata(file).with_context(|| format!("cannot read {shown}"))?.len();
        if size > MAX_FILE {
            let message = format!("{shown} is too large to be read at once");
            return Err(Failure::new(message).advice("cut it into files of up to 1 GiB").into());
        }
        let bytes = fs::read(file).with_context(|| format!("cannot read {shown}"))?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => counts.add(text)?,
            // A folder may hold other files too.
            Err(_) if files.len() > 1 => {
                notice(format_args!("passed over {shown}: not UTF-8 text"))
            }
            Err(_) => return Err(Failure::new(format!("{shown} is not UTF-8 text")).into()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(counts)
}

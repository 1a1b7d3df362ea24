//! The rows of a pruned vocabulary head and the tokens they belong to.

use crate::error::ErrorKind;
use crate::head::OUTPUT_IDS;
use crate::{Gguf, TensorInfo, Value};

use super::{Model, Report, Severity};

pub(super) fn check(model: &Model<'_>, report: &mut Report) {
    let Some((file, ids)) = find(model, OUTPUT_IDS) else { return };
    if !ids.is_vector() {
        let (tensor, expected) = (ids.name().to_owned(), "one dimension".to_owned());
        report.error(file, ErrorKind::HeadShape { tensor, found: ids.shape().to_vec(), expected });
        return;
    }
    let rows = ids.n_elements();
    if find(model, "output.weight").is_none() {
        report.error(file, ErrorKind::NoSuchTensor { tensor: "output.weight".into() });
    }
    for name in ["output.weight", "output.bias"] {
        let Some((file, head)) = find(model, name) else { continue };
        if head.shape().last() != Some(&rows) {
            let (tensor, found) = (name.to_owned(), head.shape().to_vec());
            let expected = format!("{rows} rows, one for each of `{OUTPUT_IDS}`");
            report.error(file, ErrorKind::HeadShape { tensor, found, expected });
        }
    }
    // Missing data is reported with the layout.
    if file.file_offset(ids).is_err() {
        return;
    }
    let tokens = model.metadata().get("tokenizer.ggml.tokens").and_then(Value::as_array);
    match file.output_ids() {
        Ok(Some(ids)) => {
            if let (Some(&last), Some(tokens)) = (ids.last(), tokens)
                && u64::from(last) >= tokens.len() as u64
            {
                let (index, found) = (rows - 1, last.into());
                report.error(file, ErrorKind::HeadIds { index, found });
            }
        }
        Ok(None) => {}
        Err(error) if matches!(error.kind(), ErrorKind::HeaderOnly { .. }) => {
            report.add(Severity::Warning, error);
        }
        Err(error) => report.add(Severity::Error, error),
    }
}

fn find<'a>(model: &Model<'a>, name: &str) -> Option<(&'a Gguf, &'a TensorInfo)> {
    model.files.iter().find_map(|file| Some((*file, file.tensor(name)?)))
}

//! Places and sizes of tensor data.

use crate::error::ErrorKind;
use crate::{EXPERTS_OFFSET_KEY, Gguf, Value};

use super::{Model, Report};

pub(super) fn check(model: &Model<'_>, report: &mut Report) {
    for file in &model.files {
        check_dimensions(file, report);
        check_offsets(file, report);
        check_end(file, report);
        check_marker(file, report);
    }
}

/// The marker of experts last is wrong if a program that doesn't know it has moved tensors.
fn check_marker(file: &Gguf, report: &mut Report) {
    let Some(marker) = file.get(EXPERTS_OFFSET_KEY) else { return };
    let place = file.experts_offset();
    if place.is_none() || marker != &Value::U64(place.unwrap_or(0)) {
        report.warning(
            file,
            ErrorKind::KeyRange {
                key: EXPERTS_OFFSET_KEY.to_owned(),
                found: marker.to_string(),
                allowed: match place {
                    Some(place) => format!("{place}, where the experts start"),
                    None => "no such key unless experts come last".to_owned(),
                },
            },
        );
    }
}

fn check_dimensions(file: &Gguf, report: &mut Report) {
    for tensor in file.tensors().iter().filter(|t| t.shape().contains(&0)) {
        report.error(
            file,
            ErrorKind::ZeroDimension {
                tensor: tensor.name().to_owned(),
                shape: tensor.shape().to_vec(),
            },
        );
    }
}

/// llama.cpp wants each tensor where the one before it ends, up to alignment: no gaps, no
/// overlap. What follows a misplaced one isn't reported again.
fn check_offsets(file: &Gguf, report: &mut Report) {
    let mut expected = 0u64;
    for tensor in file.tensors() {
        if tensor.offset() != expected {
            report.error(
                file,
                ErrorKind::TensorOffset {
                    tensor: tensor.name().to_owned(),
                    found: tensor.offset(),
                    expected,
                },
            );
            return;
        }
        let end = tensor.n_bytes().checked_next_multiple_of(file.alignment());
        let Some(end) = end.and_then(|padded| expected.checked_add(padded)) else {
            report.error(
                file,
                ErrorKind::TensorTooLarge {
                    tensor: tensor.name().to_owned(),
                    shape: tensor.shape().to_vec(),
                },
            );
            return;
        };
        expected = end;
    }
}

/// Names the tensor that reaches furthest, so that the count is of all missing bytes.
fn check_end(file: &Gguf, report: &mut Report) {
    let end = |t: &crate::TensorInfo| {
        file.data_offset().saturating_add(t.offset()).saturating_add(t.n_bytes())
    };
    if let Some(last) = file.tensors().iter().max_by_key(|t| end(t))
        && end(last) > file.file_len()
    {
        report.error(
            file,
            ErrorKind::DataTruncated {
                tensor: last.name().to_owned(),
                end: end(last),
                file_len: file.file_len(),
                missing: end(last) - file.file_len(),
            },
        );
    }
}

//! Files that are written, which must not be those that are read.

use crate::failure::Failure;
use anyhow::Result;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Refuses to write a report where it would replace one of the `inputs`, or any model.
pub fn check_output<'a>(output: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let shown = output.display();
    let what = if inputs.into_iter().any(|input| smol_gguf::is_same_file(input, output)) {
        "the input itself"
    } else if is_model(output) {
        "a model, which would be lost"
    } else {
        return Ok(());
    };
    let failure = Failure::usage(format!("{shown} is {what}"));
    Err(failure.advice("write to another name").into())
}

fn is_model(path: &Path) -> bool {
    // Opening a pipe would wait for its other end.
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let mut magic = [0; 4];
    is_file
        && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok()
        && magic == *b"GGUF"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_and_models_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (input, model) = (file("input", "x"), file("other shard", "GGUF\u{3}"));
        let (short, old) = (file("short", "GGU"), file("old", "1\n2\n"));
        let check = |output: &Path| check_output(output, [&*input]).map_err(|e| e.to_string());
        let same = check(&folder.path().join(".").join("input")).unwrap_err();
        assert!(same.ends_with("is the input itself"), "{same}");
        assert!(check(&model).unwrap_err().ends_with("is a model, which would be lost"));
        for output in [&*short, &old, &folder.path().join("new"), folder.path()] {
            assert_eq!(check(output), Ok(()));
        }
    }
}

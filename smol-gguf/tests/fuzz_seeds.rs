//! The seeds of the fuzz target stay valid.

#![cfg(not(miri))]

use smol_gguf::{Depth, Gguf, Rewriter, check};

#[test]
fn seeds_are_valid_files_that_rewrite_to_themselves() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/read");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.len() < 2048, "{} is large for a seed", path.display());
        let gguf = Gguf::open(&path).unwrap();
        assert_eq!(Rewriter::new(&gguf).write(Vec::new()).unwrap(), bytes);
        check(&gguf, Depth::Full);
        names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, ["empty", "model", "tensors", "values"]);
    let model = Gguf::open(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/read/model")).unwrap();
    assert!(check(&model, Depth::Full).findings().is_empty());
}

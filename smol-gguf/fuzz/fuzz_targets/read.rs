//! Any bytes are read or refused; what passes the check survives a rewrite.
//!
//! `cargo fuzz run read fuzz/corpus/read fuzz/seeds/read`

#![no_main]

use libfuzzer_sys::fuzz_target;
use smol_gguf::{Depth, Gguf, Rewriter, check};

fuzz_target!(|bytes: &[u8]| {
    let gguf = match Gguf::from_bytes(bytes) {
        Ok(gguf) => gguf,
        Err(error) => return one_line(&error.to_string()),
    };
    let report = check(&gguf, Depth::Full);
    report.findings().iter().for_each(|f| one_line(&f.to_string()));
    for tensor in gguf.tensors() {
        if let Ok(data) = gguf.data(tensor) {
            assert_eq!(data.len() as u64, tensor.n_bytes());
        }
    }
    if report.is_usable() {
        let written = Rewriter::new(&gguf).write(Vec::new()).expect("a usable file can be written");
        let again = Gguf::from_bytes(written).expect("a written file can be read");
        assert_eq!(again.tensors(), gguf.tensors());
        assert_eq!(again.metadata().len(), gguf.metadata().len());
    }
});

fn one_line(text: &str) {
    assert!(!text.contains('\n') && text.len() < 4000, "{text}");
}

//! Broken files are refused by the checks, for the reason that they were broken by.

use std::path::Path;

use smol_gguf::{Depth, check_file};
use testkit::bad::{Expected, FAULTS, Layer};
use testkit::tiny::{self, Arch, TinyOptions};

/// Returns the errors and the warnings of a check, one line each.
fn findings(path: &Path) -> (String, String) {
    match check_file(path, Depth::Header) {
        Err(error) => (error.to_string(), String::new()),
        Ok(report) => {
            let lines = |severity| {
                let found = report.findings().iter().filter(|f| f.severity() == severity);
                found.map(|finding| finding.error().to_string()).collect::<Vec<_>>().join("\n")
            };
            (lines(smol_gguf::Severity::Error), lines(smol_gguf::Severity::Warning))
        }
    }
}

#[test]
fn every_fault_is_found_in_every_kind_of_model() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for arch in [Arch::Llama, Arch::Qwen3, Arch::Glm4Moe] {
        let good = folder.path().join(arch.name());
        tiny::write(&good, arch, &TinyOptions::default()).unwrap();
        assert_eq!(findings(&good), Default::default());
        let good = std::fs::read(good).unwrap();
        for fault in FAULTS {
            let path = folder.path().join(fault.file_name());
            std::fs::write(&path, fault.apply(&good).unwrap()).unwrap();
            let (errors, warnings) = findings(&path);
            let as_expected = match fault.expected {
                Expected::Usable => errors.is_empty() && !warnings.is_empty(),
                // What only an architecture's loader knows may pass the checks before it.
                Expected::Refused(_) if fault.layer == Layer::Loader => true,
                Expected::Refused(mentions) => {
                    !errors.is_empty() && mentions.iter().all(|part| errors.contains(part))
                }
            };
            if !as_expected {
                let arch = arch.name();
                wrong.push(format!("{} ({arch}): {:?}; {errors:?}", fault.name, fault.expected));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

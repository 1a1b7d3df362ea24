//! Headers that can't be read, each refused with what is wrong.

mod common;

use common::{Model, Raw, parse_error};

#[test]
fn files_of_other_kinds() {
    assert_eq!(parse_error(*b""), "the file is empty");
    let html = parse_error(*b"<!DOCTYPE html><html>Entry not found</html>");
    assert!(html.contains("this is an HTML page"), "{html}");
    assert!(parse_error(*b"GG").contains("2 bytes are missing"));
    assert!(parse_error(*b"GGUX").contains("not a GGUF file"));
}

#[test]
fn versions() {
    assert!(parse_error(Raw::new(1, 0, 0).0).contains("version 1 is not supported, only 2 and 3"));
    assert!(parse_error(Raw::new(0, 0, 0).0).contains("version 0"));
    assert!(parse_error(Raw::new(4, 0, 0).0).contains("version 4"));
    assert!(parse_error(Raw::new(3u32.swap_bytes(), 0, 0).0).contains("big-endian"));
    assert!(smol_gguf::Gguf::from_bytes(Raw::new(2, 0, 0).0).is_ok_and(|g| g.version() == 2));
}

#[test]
fn counts_that_do_not_fit_the_file() {
    let message = parse_error(Raw::new(3, 0, 1 << 62).0);
    assert!(message.contains("the number of metadata keys is 4611686018427387904"), "{message}");
    let message = parse_error(Raw::new(3, u64::MAX, 0).0);
    assert!(message.contains("the number of tensors is"), "{message}");
}

#[test]
fn keys() {
    let huge = parse_error(Raw::new(3, 0, 1).u64(0xffff_ffff_ffff).0);
    assert!(huge.contains("metadata key number 0 has length 281474976710655"), "{huge}");
    let empty = parse_error(Raw::new(3, 0, 1).str("").u32(0).u32(1).0);
    assert!(empty.contains("metadata key number 0 is empty"), "{empty}");
    let twice = Raw::new(3, 0, 2).str("k").u32(4).u32(1).str("k").u32(4).u32(2);
    assert!(parse_error(twice.0).contains("duplicate metadata key `k`"));
    let latin1 = parse_error(Raw::new(3, 0, 1).bytes(b"caf\xe9").u32(4).u32(1).0);
    assert!(latin1.contains("not valid UTF-8"), "{latin1}");
}

#[test]
fn values() {
    let ty = parse_error(Raw::new(3, 0, 1).str("k").u32(13).u64(0).0);
    assert!(ty.contains("`k` has value type 13"), "{ty}");
    let string = parse_error(Raw::new(3, 0, 1).str("k").u32(8).u64(100).0);
    assert!(string.contains("the value of key `k` has length 100, allowed are 0 to 0"), "{string}");
    let array = parse_error(Raw::new(3, 0, 1).str("k").u32(9).u32(10).u64(1 << 40).u64(0).0);
    assert!(array.contains("the array of key `k` has length 1099511627776"), "{array}");
    let strings = parse_error(Raw::new(3, 0, 1).str("k").u32(9).u32(8).u64(2).u64(0).u64(9).0);
    assert!(strings.contains("has length 9, allowed are 0 to 0"), "{strings}");
    let nested = parse_error(Raw::new(3, 0, 1).str("k").u32(9).u32(9).u64(0).0);
    assert!(nested.contains("array of arrays"), "{nested}");
    let of_unknown = parse_error(Raw::new(3, 0, 1).str("k").u32(9).u32(77).u64(0).0);
    assert!(of_unknown.contains("array of type 77"), "{of_unknown}");
}

#[test]
fn alignment() {
    for (ty, value) in [(4, 0), (4, 24), (5, 32)] {
        let raw = Raw::new(3, 0, 1).str("general.alignment").u32(ty).u32(value);
        let message = parse_error(raw.0);
        assert!(message.contains("powers of two of type u32"), "{message}");
    }
}

#[test]
fn tensors() {
    let one = |name: &str, shape: &[u64], ty| {
        parse_error(Raw::new(3, 1, 0).tensor(name, shape, ty, 0).pad(64).0)
    };
    assert!(one("w", &[1, 1, 1, 1, 1], 0).contains("5 dimensions, allowed are 0 to 4"));
    assert!(one(&"w".repeat(64), &[1], 0).contains("tensor name number 0 has length 64"));
    assert!(one("w", &[1 << 40, 1 << 40], 0).contains("too large"));
    assert!(one("w", &[u64::MAX], 0).contains("too large"));
    assert!(one("w", &[33], 2).contains("rows of 33 elements, allowed is a multiple of 32"));
    assert!(one("w", &[1], 44).contains("type 44, which is unknown"));
    assert!(one("w", &[1], 4).contains("q4_2"));
    let twice = Raw::new(3, 2, 0).tensor("w", &[1], 0, 0).tensor("w", &[1], 0, 32).pad(64);
    assert!(parse_error(twice.0).contains("duplicate tensor `w`"));
}

/// Cut anywhere in the header, the message counts missing bytes; never a panic.
#[test]
fn truncation_at_every_byte_of_the_header() {
    let bytes = Model::llama().encode();
    let gguf = smol_gguf::Gguf::from_bytes(bytes.clone()).unwrap();
    let step = if cfg!(miri) { 97 } else { 1 };
    let mut end_of_header = 0;
    for len in (1..gguf.data_offset() as usize).step_by(step) {
        match smol_gguf::Gguf::from_bytes(&bytes[..len]) {
            Ok(_) => end_of_header = end_of_header.max(len),
            Err(error) => {
                let text = error.to_string();
                assert!(
                    text.contains("missing") || text.contains("allowed are 0 to"),
                    "{len}: {text}"
                );
                assert_eq!(end_of_header, 0, "a longer header was refused after a shorter one");
            }
        }
    }
}

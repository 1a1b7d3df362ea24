//! Files that appear under their name only when they are complete.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{Scope, ScopedJoinHandle};

use tempfile::NamedTempFile;

use crate::error::Result;

/// Writes a file beside `path` and renames it when `write` succeeds and all is on disk.
///
/// # Errors
/// If `write` fails, or the system does; nothing is left behind then, and a file that was at `path` stays.
pub fn write(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    write_through(Unpublished::create(path)?, write)
}

fn write_through(new: Unpublished, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    std::thread::scope(|scope| {
        let mut out = BufWriter::with_capacity(1 << 20, Flowing::new(new.file(), scope)?);
        write(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
        Ok::<_, crate::Error>(())
    })?;
    new.file().sync_all()?;
    Ok(new.publish()?)
}

/// A file that isn't under its name yet; dropped before, it is gone.
pub(crate) struct Unpublished {
    temporary: Temporary,
    folder: PathBuf,
    path: PathBuf,
}

impl Unpublished {
    /// Creates an empty file that will be at `path`.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        // Renaming only works within a file system, so the temporary file goes to the same folder.
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let temporary = Temporary::new(&folder)?;
        Ok(Self { temporary, folder, path: path.to_owned() })
    }

    /// Returns the file, to be written and synced.
    pub(crate) fn file(&self) -> &File {
        self.temporary.file()
    }

    /// Gives the file its name, in place of one that may be there, and forces that to the disk.
    pub(crate) fn publish(self) -> io::Result<()> {
        self.temporary.persist(&self.folder, &self.path)?;
        // Where folders can't be opened, nothing can be done.
        #[cfg(unix)]
        if let Ok(folder) = File::open(&self.folder) {
            folder.sync_all()?;
        }
        Ok(())
    }
}

/// The system's error for a thread says nothing about one.
pub(crate) fn no_thread(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot start a thread: {error}"))
}

/// A file whose bytes go to the disk while others are still written, so that little is left to do
/// at the end, and little memory of the system waits for it.
struct Flowing<'scope, 'a> {
    file: &'a File,
    /// Bytes written since the last time.
    new: u64,
    wake: mpsc::SyncSender<()>,
    syncs: ScopedJoinHandle<'scope, io::Result<()>>,
}

impl<'scope, 'a> Flowing<'scope, 'a> {
    /// How much is written at once.
    const STEP: u64 = 64 << 20;

    fn new(file: &'a File, scope: &'scope Scope<'scope, 'a>) -> io::Result<Self> {
        let (wake, woken) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name("gguf-sync".into());
        let sync = move || woken.iter().try_for_each(|()| file.sync_data());
        let syncs = thread.spawn_scoped(scope, sync).map_err(no_thread)?;
        Ok(Self { file, new: 0, wake, syncs })
    }

    /// Waits for what is under way. The system tells an error of the disk once, perhaps to that.
    fn finish(self) -> io::Result<()> {
        drop(self.wake);
        self.syncs.join().map_err(|_| io::Error::other("the thread that syncs has panicked"))?
    }
}

impl Write for Flowing<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut file = self.file;
        let n = file.write(buf)?;
        self.new += n as u64;
        if self.new >= Self::STEP {
            self.new = 0;
            // Full: it is still busy with what was written before; gone: it has met an error.
            let _ = self.wake.try_send(());
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that goes away unless it is given a name.
enum Temporary {
    /// Without a name: gone whatever ends the process.
    #[cfg(target_os = "linux")]
    Unnamed(File),
    /// With a name of its own: removed unless the process is killed.
    Named(NamedTempFile),
}

impl Temporary {
    fn new(folder: &Path) -> io::Result<Self> {
        #[cfg(target_os = "linux")]
        if let Some(file) = unnamed::create(folder) {
            return Ok(Self::Unnamed(file));
        }
        Self::named(folder)
    }

    fn named(folder: &Path) -> io::Result<Self> {
        builder().tempfile_in(folder).map(Self::Named)
    }

    fn file(&self) -> &File {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file) => file,
            Self::Named(file) => file.as_file(),
        }
    }

    /// Gives the file its name, in place of one that may be there.
    fn persist(self, _folder: &Path, path: &Path) -> io::Result<()> {
        match self {
            #[cfg(target_os = "linux")]
            Self::Unnamed(file) => unnamed::persist(file, _folder, path),
            Self::Named(file) => file.persist(path).map(drop).map_err(|e| e.error),
        }
    }
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".gguf-").suffix(".part");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any other new file: the user's umask decides.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
}

#[cfg(target_os = "linux")]
mod unnamed {
    use std::fs::OpenOptions;
    use std::io::Seek;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::PathBuf;

    use rustix::fs::{AtFlags, CWD, OFlags, linkat};

    use super::{File, Path, builder, io};

    /// Creates a file without a name in a folder, if the file system can and it can get one.
    pub(super) fn create(folder: &Path) -> Option<File> {
        let flags = i32::try_from(OFlags::TMPFILE.bits()).ok()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o666).custom_flags(flags);
        let file = options.open(folder).ok()?;
        // Names are given through this link, which is missing where /proc is.
        path_of(&file).exists().then_some(file)
    }

    fn path_of(file: &File) -> PathBuf {
        format!("/proc/self/fd/{}", file.as_raw_fd()).into()
    }

    pub(super) fn persist(mut file: File, folder: &Path, path: &Path) -> io::Result<()> {
        // A link can't replace a file, a rename can.
        let link = |name: &Path| {
            linkat(CWD, path_of(&file), CWD, name, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from)
        };
        if let Ok(linked) = builder().make_in(folder, link) {
            return linked.into_temp_path().persist(path).map_err(|e| e.error);
        }
        // Some systems forbid such links. The data is there, so it isn't thrown away.
        let mut named = builder().tempfile_in(folder)?;
        file.rewind()?;
        io::copy(&mut file, named.as_file_mut())?;
        named.as_file().sync_all()?;
        named.persist(path).map(drop).map_err(|e| e.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    type Create = fn(&Path) -> io::Result<Temporary>;
    const BOTH_KINDS: [Create; 2] = [Temporary::new, Temporary::named];

    fn new(create: Create, path: &Path) -> Unpublished {
        let folder = path.parent().unwrap().to_owned();
        let temporary = create(&folder).unwrap();
        Unpublished { temporary, folder, path: path.to_owned() }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        for (round, temporary) in BOTH_KINDS.into_iter().enumerate() {
            let new = new(temporary, &path);
            let text = format!("round {round}");
            write_through(new, |out| {
                out.write_all(text.as_bytes())?;
                assert_eq!(path.exists(), round > 0);
                Ok(())
            })
            .unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(names(folder.path()), ["new"]);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn failures_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        for temporary in BOTH_KINDS {
            let error = write_through(new(temporary, &path), |out| {
                out.write_all(&[1; 3 << 20])?;
                Err(crate::ErrorKind::Stopped.into())
            });
            assert!(error.is_err());
            assert_eq!(names(folder.path()), [""; 0]);
        }
    }

    /// What a kill leaves: nothing at any time before the rename.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore)]
    fn unnamed_files_are_in_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        if let Some(mut file) = unnamed::create(folder.path()) {
            file.write_all(b"data").unwrap();
            assert_eq!(names(folder.path()), [""; 0]);
        }
    }

    #[test]
    #[cfg(unix)]
    #[cfg_attr(miri, ignore)]
    fn permissions_are_those_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let path = folder.path().join("new");
        for temporary in BOTH_KINDS {
            write_through(new(temporary, &path), |_| Ok(())).unwrap();
            assert_eq!(mode(&path), mode(&plain));
        }
    }
}

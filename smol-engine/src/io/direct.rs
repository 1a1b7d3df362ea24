//! Positioned reads that go past the page cache where the file system lets them.

use super::{AlignedBuf, Error, ReadAt, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

/// Alignments that are tried, in order. Smaller ones than 4096 are accepted by some file
/// systems only to fall back to the page cache in silence.
#[cfg(any(target_os = "linux", target_os = "android"))]
const ALIGNMENTS: [usize; 3] = [4096, 16384, 65536];

/// How a [`DirectFile`] reads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// From the device, past the page cache.
    Direct,
    /// Through the page cache.
    Buffered {
        /// Why direct reads are not possible.
        reason: String,
    },
}

/// A file open for positioned reads past the page cache: `O_DIRECT` on Linux and Android,
/// `F_NOCACHE` on Apple systems.
///
/// Where the file system refuses that, reads go through the page cache and [`mode`] says so.
/// Reads take `&self`: several threads may read at once.
///
/// [`mode`]: Self::mode
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    len: u64,
    alignment: usize,
    mode: Mode,
    identity: Identity,
    /// Whether it must keep its name to count as unchanged.
    named: bool,
}

/// How a file is to be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum IoChoice {
    /// Past the page cache where the file system lets that.
    #[default]
    Auto,
    /// Through the page cache.
    Buffered,
}

impl IoChoice {
    /// Both choices.
    pub const ALL: [Self; 2] = [Self::Auto, Self::Buffered];

    /// Returns the name, as [`FromStr`] reads it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Buffered => "buffered",
        }
    }
}

impl fmt::Display for IoChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no way of reading with this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no way `{0}` to read files: it must be auto or buffered")]
pub struct UnknownIoChoice(String);

impl FromStr for IoChoice {
    type Err = UnknownIoChoice;

    fn from_str(name: &str) -> Result<Self, UnknownIoChoice> {
        let found = Self::ALL.into_iter().find(|choice| choice.name() == name);
        found.ok_or_else(|| UnknownIoChoice(name.to_owned()))
    }
}

/// What tells whether a file is still the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Device and inode; `None` where files have none.
    inode: Option<(u64, u64)>,
    len: u64,
    modified: Option<SystemTime>,
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt as _;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let inode = None;
        Self { inode, len: metadata.len(), modified: metadata.modified().ok() }
    }

    /// Says what of `now` is different.
    fn difference(&self, now: &Self) -> Option<String> {
        if self.len != now.len {
            return Some(format!("it had {} bytes and has {}", self.len, now.len));
        }
        if self.inode != now.inode {
            return Some("another file is in its place".to_owned());
        }
        (self.modified != now.modified).then(|| "it was written to".to_owned())
    }
}

impl DirectFile {
    /// Opens `path` and finds out how it can be read.
    ///
    /// # Errors
    /// If the file cannot be opened, is not a regular file, or its first bytes cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, IoChoice::Auto)
    }

    /// Opens several files as [`open_with`](Self::open_with) does, for an engine that reads from them.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub fn open_all<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        choice: IoChoice,
    ) -> Result<Vec<Arc<dyn ReadAt>>> {
        paths.into_iter().map(|path| Ok(Arc::new(Self::open_with(path, choice)?) as _)).collect()
    }

    /// Opens `path` to be read as `choice` says.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, choice: IoChoice) -> Result<Self> {
        let path = path.as_ref();
        let buffered = File::open(path).map_err(|e| Error::access(path, "open the file", e))?;
        let metadata =
            buffered.metadata().map_err(|e| Error::access(path, "examine the file", e))?;
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "it is a directory" } else { "not a regular file" };
            let source = io::Error::new(io::ErrorKind::InvalidInput, kind);
            return Err(Error::access(path, "read it", source));
        }
        let opened = match choice {
            IoChoice::Auto => sys::open_direct(path, &metadata),
            IoChoice::Buffered => Err(sys::Refusal::Unsupported("it was asked for".to_owned())),
        };
        let (file, alignment, mode) = match opened {
            Ok((file, alignment)) => (file, alignment, Mode::Direct),
            Err(sys::Refusal::Unsupported(reason)) => (buffered, 1, Mode::Buffered { reason }),
            Err(sys::Refusal::Failed(e)) => {
                return Err(Error::access(path, "read the start of the file", e));
            }
        };
        // Of the descriptor that is read: the path may lead to another file by now.
        let metadata = file.metadata().map_err(|e| Error::access(path, "examine the file", e))?;
        let identity = Identity::of(&metadata);
        let (path, len, named) = (path.to_owned(), identity.len, true);
        Ok(Self { file, path, len, alignment, mode, identity, named })
    }

    /// Opens the file at `path` if it is this one.
    ///
    /// Another file that gets its name later does not count as a change of this one: whoever
    /// replaces such files never writes to them.
    ///
    /// # Errors
    /// As [`open`](Self::open); [`Error::Changed`] if it is another one.
    pub(crate) fn open_same(path: &Path, choice: IoChoice, identity: &Identity) -> Result<Self> {
        let opened = Self::open_with(path, choice)?;
        match identity.difference(&opened.identity) {
            None => Ok(Self { named: false, ..opened }),
            Some(what) => Err(Error::Changed { path: path.to_owned(), what }),
        }
    }

    /// Checks that the file is the one that was opened: same device, inode, size and time of
    /// modification. A file that was only unlinked stays the same.
    ///
    /// # Errors
    /// [`Error::Changed`] if it was replaced, written to or truncated; [`Error::Access`] if that
    /// cannot be told.
    pub fn check_unchanged(&self) -> Result<()> {
        let by_name = self.named.then(|| std::fs::metadata(&self.path));
        let metadata = match by_name {
            Some(Err(e)) if e.kind() == io::ErrorKind::NotFound => self.file.metadata(),
            Some(other) => other,
            None => self.file.metadata(),
        };
        let failed = |e| Error::access(&self.path, "examine the file", e);
        match self.identity.difference(&Identity::of(&metadata.map_err(failed)?)) {
            None => Ok(()),
            Some(what) => Err(Error::Changed { path: self.path.clone(), what }),
        }
    }

    /// Reads once, without completing what comes short.
    pub(super) fn read_once_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        sys::read_at(&self.file, buf, offset)
    }

    /// Returns the path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length in bytes that the file had when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how reads are done.
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Returns what offsets, lengths and memory addresses of reads must be multiples of,
    /// in bytes: 1 if reads go through the page cache.
    pub fn alignment(&self) -> usize {
        self.alignment
    }

    /// Allocates a buffer with room for a [`read_range`](Self::read_range) of `len` bytes at
    /// any offset.
    pub fn buffer(&self, len: usize) -> AlignedBuf {
        let slack = if self.alignment > 1 { 2 * self.alignment } else { 0 };
        AlignedBuf::new((len + slack).next_multiple_of(self.alignment), self.alignment)
    }

    /// Reads into `buf` from `offset` on, and returns the number of bytes read: all of `buf`,
    /// or less at the end of the file.
    ///
    /// # Errors
    /// If offset, length or memory is not a multiple of [`alignment`](Self::alignment), or
    /// the read fails.
    pub fn read_aligned_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let len = buf.len();
        let odd = buf.as_ptr().addr() | len | (offset % self.alignment as u64) as usize;
        if !odd.is_multiple_of(self.alignment) {
            let path = self.path.clone();
            return Err(Error::Misaligned { path, offset, len, alignment: self.alignment });
        }
        read_fully(buf, offset, self.alignment, self.len, |buf, offset| {
            self.read_once_at(buf, offset)
        })
        .map_err(|source| Error::Read { path: self.path.clone(), offset, len, source })
    }

    /// Reads the bytes at `range` of the file, aligned or not, and returns them as a part of
    /// `buf`.
    ///
    /// # Errors
    /// If the file ends before the range does, or the read fails.
    ///
    /// # Panics
    /// If `buf` is too small or not aligned; one from [`buffer`](Self::buffer) for the range's
    /// length is neither.
    pub fn read_range<'b>(&self, range: Range<u64>, buf: &'b mut AlignedBuf) -> Result<&'b [u8]> {
        let Range { start, end } = range;
        let len = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        if end > self.len && len > 0 {
            return Err(self.truncated(start, len, self.len));
        }
        let alignment = self.alignment as u64;
        let skip = (start % alignment) as usize;
        let from = start - skip as u64;
        let read_len = (skip + len).next_multiple_of(self.alignment);
        assert!(
            read_len <= buf.len() && buf.as_ptr().addr().is_multiple_of(self.alignment),
            "the buffer must come from DirectFile::buffer for {len} bytes"
        );
        let read = self.read_aligned_at(&mut buf[..read_len], from)?;
        if read < skip + len {
            return Err(self.truncated(start, len, from + read as u64));
        }
        Ok(&buf[skip..skip + len])
    }

    fn truncated(&self, offset: u64, len: usize, file_len: u64) -> Error {
        Error::Truncated { path: self.path.clone(), offset, len, file_len }
    }
}

/// Fills `buf` by as many calls of `read_at` as it takes, and returns the number of bytes read:
/// less than all only at the end of the file.
fn read_fully(
    buf: &mut [u8],
    offset: u64,
    alignment: usize,
    file_len: u64,
    mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    // `done` is a multiple of the alignment whenever a read starts.
    let mut done = 0;
    while done < buf.len() {
        let read = match read_at(&mut buf[done..], offset + done as u64) {
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let reached = done + read;
        let aligned = reached - reached % alignment;
        // A direct read that stops inside a block has met the end of the file; one that was
        // cut short by something else goes on from that block's start.
        if aligned == done || offset + reached as u64 >= file_len {
            return Ok(reached);
        }
        done = aligned;
    }
    Ok(done)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod sys {
    use super::{ALIGNMENTS, AlignedBuf, File, Path, io};
    use std::fs::{Metadata, OpenOptions};
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};

    pub(super) enum Refusal {
        Unsupported(String),
        Failed(io::Error),
    }

    /// Opens with O_DIRECT and finds the alignment by reading.
    pub(super) fn open_direct(path: &Path, metadata: &Metadata) -> Result<(File, usize), Refusal> {
        if let Some(name) = memory_file_system(metadata.dev()) {
            // Newer kernels accept O_DIRECT there, and read from memory all the same.
            return Err(Refusal::Unsupported(format!("{name} keeps its files in memory")));
        }
        let unsupported = |e: &io::Error| {
            matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOTTY))
        };
        let refused = || Refusal::Unsupported("the file system refuses direct reads".to_owned());
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC)
            .open(path)
            .map_err(|e| if unsupported(&e) { refused() } else { Refusal::Failed(e) })?;
        for alignment in ALIGNMENTS {
            // Aligned to this and to no larger size, in memory and in the file.
            let mut buf = AlignedBuf::new(2 * alignment, 2 * alignment);
            let offset = if metadata.len() > alignment as u64 { alignment as u64 } else { 0 };
            match file.read_at(&mut buf[alignment..], offset) {
                Ok(_) => return Ok((file, alignment)),
                Err(e) if unsupported(&e) => {}
                Err(e) => return Err(Refusal::Failed(e)),
            }
        }
        Err(refused())
    }

    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buf, offset)
    }

    /// Returns the file system's name if device `dev` is one that lives in memory.
    fn memory_file_system(dev: u64) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let name = super::file_system(&mounts, super::major_minor(dev))?;
        matches!(name, "tmpfs" | "ramfs" | "rootfs").then(|| name.to_owned())
    }
}

/// Splits a device number as glibc, musl and Bionic do; their types differ too much to call them.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn major_minor(dev: u64) -> (u64, u64) {
    let major = (dev >> 32 & 0xffff_f000) | (dev >> 8 & 0xfff);
    let minor = (dev >> 12 & 0xffff_ff00) | (dev & 0xff);
    (major, minor)
}

/// Returns the type of the file system on a device, from the text of `mountinfo`.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn file_system(mountinfo: &str, (major, minor): (u64, u64)) -> Option<&str> {
    let device = format!("{major}:{minor}");
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        (left.split(' ').nth(2)? == device).then(|| right.split(' ').next())?
    })
}

#[cfg(target_vendor = "apple")]
mod sys {
    use super::{File, Path, io};
    use std::fs::Metadata;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileExt as _;

    pub(super) enum Refusal {
        Unsupported(String),
        Failed(io::Error),
    }

    /// Opens and turns the page cache off. Unaligned reads work, but take a detour.
    pub(super) fn open_direct(path: &Path, _: &Metadata) -> Result<(File, usize), Refusal> {
        let file = File::open(path).map_err(Refusal::Failed)?;
        // SAFETY: the descriptor is open as long as `file` lives; F_NOCACHE takes an int and
        // only changes how the kernel caches reads of this descriptor.
        let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, 1) };
        if code == -1 {
            let e = io::Error::last_os_error();
            return Err(Refusal::Unsupported(format!("F_NOCACHE is refused: {e}")));
        }
        Ok((file, 4096))
    }

    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        file.read_at(buf, offset)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod sys {
    use super::{File, Path, io};
    use std::fs::Metadata;

    pub(super) enum Refusal {
        Unsupported(String),
        #[allow(dead_code, reason = "no call here fails in that way")]
        Failed(io::Error),
    }

    pub(super) fn open_direct(_: &Path, _: &Metadata) -> Result<(File, usize), Refusal> {
        Err(Refusal::Unsupported("direct reads are not supported on this system".to_owned()))
    }

    #[cfg(unix)]
    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(file, buf, offset)
    }

    #[cfg(windows)]
    pub(super) fn read_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(file, buf, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose reads give what `plan` says: an error, or at most so many bytes.
    fn fake<'a>(
        data: &'a [u8],
        mut plan: Vec<io::Result<usize>>,
        alignment: usize,
    ) -> impl FnMut(&mut [u8], u64) -> io::Result<usize> + 'a {
        plan.reverse();
        move |buf, offset| {
            assert_eq!(offset as usize % alignment, 0, "direct reads start at a block");
            let rest = data.get(offset as usize..).unwrap_or_default();
            let most = plan.pop().unwrap_or(Ok(usize::MAX))?;
            let n = rest.len().min(buf.len()).min(most);
            buf[..n].copy_from_slice(&rest[..n]);
            Ok(n)
        }
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn interrupted_and_short_reads_go_on() {
        let data = bytes(64);
        let plan = vec![
            Err(io::ErrorKind::Interrupted.into()),
            Ok(13), // inside the second block of 8: goes on from byte 8
            Err(io::ErrorKind::Interrupted.into()),
            Ok(24),
        ];
        let mut buf = [0; 48];
        let read = read_fully(&mut buf, 8, 8, 64, fake(&data, plan, 8)).unwrap();
        assert_eq!((read, &buf[..]), (48, &data[8..56]));
    }

    #[test]
    fn stops_at_the_end_of_the_file() {
        let data = bytes(21);
        let mut buf = [0; 32];
        assert_eq!(read_fully(&mut buf, 0, 8, 21, fake(&data, vec![], 8)).unwrap(), 21);
        assert_eq!(&buf[..21], &data[..]);
        assert_eq!(read_fully(&mut buf, 24, 8, 21, fake(&data, vec![], 8)).unwrap(), 0);
        // Shorter than it was when it was opened.
        assert_eq!(read_fully(&mut buf, 0, 8, 999, fake(&data, vec![], 8)).unwrap(), 21);
    }

    #[test]
    fn other_errors_are_passed_on() {
        let plan = vec![Ok(8), Err(io::ErrorKind::PermissionDenied.into())];
        let e = read_fully(&mut [0; 16], 0, 8, 16, fake(&bytes(16), plan, 8)).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn device_numbers() {
        assert_eq!(major_minor(0xfe00), (254, 0));
        assert_eq!(major_minor(0x17), (0, 23));
        assert_eq!(major_minor(0x0000_1000_00a1_23bc), (0x1123, 0xabc));
    }

    #[test]
    fn file_system_of_a_device() {
        let text = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw,size=24684096k\n";
        assert_eq!(file_system(text, (254, 0)), Some("ext4"));
        assert_eq!(file_system(text, (0, 23)), Some("tmpfs"));
        assert_eq!(file_system(text, (8, 1)), None);
    }

    #[cfg(not(miri))]
    mod real {
        use super::*;
        use std::io::Write as _;

        fn file(data: &[u8]) -> tempfile::NamedTempFile {
            // Beside the build's outputs, which lie on a disk more often than /tmp does.
            let mut file =
                tempfile::NamedTempFile::new_in(std::env::current_exe().unwrap().parent().unwrap())
                    .unwrap();
            file.write_all(data).unwrap();
            file.as_file().sync_all().unwrap();
            file
        }

        #[test]
        fn every_range_reads_its_bytes() {
            let data = bytes(100_000);
            let temp = file(&data);
            let direct = DirectFile::open(temp.path()).unwrap();
            assert_eq!(direct.len(), 100_000);
            for range in [0..0, 0..1, 4095..4097, 8192..12_288, 1..99_999, 0..100_000] {
                let mut buf = direct.buffer((range.end - range.start) as usize);
                let read = direct.read_range(range.clone(), &mut buf).unwrap();
                assert_eq!(read, &data[range.start as usize..range.end as usize]);
            }
        }

        #[test]
        fn several_threads_read_one_file() {
            let data = bytes(1 << 20);
            let temp = file(&data);
            let direct = DirectFile::open(temp.path()).unwrap();
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let (direct, data) = (&direct, &data);
                    scope.spawn(move || {
                        let range = thread * 262_144 + 17..(thread + 1) * 262_144;
                        let mut buf = direct.buffer(262_144);
                        let read = direct.read_range(range.clone(), &mut buf).unwrap();
                        assert_eq!(read, &data[range.start as usize..range.end as usize]);
                    });
                }
            });
        }

        #[test]
        fn truncation_names_file_offset_and_end() {
            let temp = file(&bytes(10_000));
            let direct = DirectFile::open(temp.path()).unwrap();
            let mut buf = direct.buffer(5000);
            let early = direct.read_range(8000..13_000, &mut buf).unwrap_err();
            temp.as_file().set_len(9000).unwrap();
            let late = direct.read_range(5000..10_000, &mut buf).unwrap_err();
            for (error, offset, end) in [(early, 8000, 10_000), (late, 5000, 9000)] {
                let text = error.to_string();
                assert!(text.contains(temp.path().to_str().unwrap()), "{text}");
                assert!(text.contains(&format!("at offset {offset}")), "{text}");
                assert!(text.contains(&format!("ends at byte {end}")), "{text}");
            }
        }

        #[test]
        fn misaligned_reads_are_refused() {
            let temp = file(&bytes(10_000));
            let direct = DirectFile::open(temp.path()).unwrap();
            if direct.alignment() > 1 {
                let mut buf = direct.buffer(4096);
                assert!(matches!(
                    direct.read_aligned_at(&mut buf[..4096], 1),
                    Err(Error::Misaligned { offset: 1, .. })
                ));
            }
        }

        #[test]
        fn directories_and_missing_files_are_errors() {
            let folder = tempfile::tempdir().unwrap();
            let error = DirectFile::open(folder.path()).unwrap_err();
            assert!(matches!(&error, Error::Access { .. }), "{error}");
            let missing = folder.path().join("missing.gguf");
            let text = DirectFile::open(&missing).unwrap_err().to_string();
            assert!(text.starts_with(missing.to_str().unwrap()), "{text}");
        }

        #[test]
        #[cfg(target_os = "linux")]
        fn memory_file_systems_are_buffered_and_say_so() {
            let Ok(mut temp) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
            temp.write_all(b"in memory").unwrap();
            let file = DirectFile::open(temp.path()).unwrap();
            assert_eq!(
                file.mode(),
                &Mode::Buffered { reason: "tmpfs keeps its files in memory".to_owned() }
            );
            let mut buf = file.buffer(6);
            assert_eq!(file.read_range(3..9, &mut buf).unwrap(), b"memory");
        }
    }
}

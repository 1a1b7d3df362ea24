//! Measures how fast a disk can be read.

use super::readers::DEFAULT_READERS;
use super::{DirectFile, Error, Mode, Result, arena};
use crate::threads::at_once;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// Length of a sequential read: long enough that its fixed cost does not show.
const SEQUENTIAL_LEN: usize = 8 * MIB;
/// Length of a random read: about that of an expert's weights.
const RANDOM_LEN: usize = MIB;
/// Memory that a thread reads into, one read behind the other: all together have what a stream has.
/// Bytes for which a CPU's cache has room come faster.
const REGION_LEN: usize = 8 * MIB;
/// Most random reads of one measurement.
const RANDOM_READS: usize = 64;
/// Size of the file that is written to measure a folder's disk.
const TEST_FILE_LEN: usize = 64 * MIB;

/// How fast a file was read.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ReadSpeed {
    /// Speed of reading in order, one read at a time, in MB (10^6 bytes) a second.
    pub sequential_mb_s: f64,
    /// Speed of as many reads of a MiB at once as pager and stream have by default.
    pub parallel_mb_s: f64,
    /// Median time of a read at a random offset, in milliseconds.
    pub random_ms: f64,
    /// Length of those reads in bytes: 1 MiB, or the file's length if that is less.
    pub random_len: usize,
    /// Bytes read in all.
    pub bytes_read: u64,
    /// How the file was read; if buffered, the figures are of the page cache.
    pub mode: Mode,
}

/// Measures the speed of reading `path`, past the page cache if possible, in about `budget`.
///
/// A folder is measured by a temporary file of up to 64 MiB in it, which takes up to another
/// `budget` to write.
///
/// # Errors
/// If the file is empty or cannot be read, or a folder cannot be written to.
///
/// # Examples
/// ```no_run
/// # use std::time::Duration;
/// let speed = smol_engine::io::measure_read_speed("model.gguf", Duration::from_secs(1))?;
/// println!("{:.0} MB/s, {:.1} ms a random MiB", speed.parallel_mb_s, speed.random_ms);
/// # Ok::<(), smol_engine::io::Error>(())
/// ```
pub fn measure_read_speed(path: impl AsRef<Path>, budget: Duration) -> Result<ReadSpeed> {
    let path = path.as_ref();
    if path.is_dir() {
        let file = test_file(path, budget)?;
        return measure(&DirectFile::open(file.path())?, budget);
    }
    measure(&DirectFile::open(path)?, budget)
}

fn measure(file: &DirectFile, budget: Duration) -> Result<ReadSpeed> {
    if file.is_empty() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the file is empty");
        return Err(Error::access(file.path(), "measure the speed of reading it", source));
    }
    let mut buf = file.buffer(SEQUENTIAL_LEN);

    let start = Instant::now();
    let mut sequential_bytes = 0;
    while sequential_bytes < file.len() && start.elapsed() < budget / 3 {
        let end = (sequential_bytes + SEQUENTIAL_LEN as u64).min(file.len());
        file.read_range(sequential_bytes..end, &mut buf)?;
        sequential_bytes = end;
    }
    let sequential_mb_s = sequential_bytes as f64 / 1e6 / start.elapsed().as_secs_f64().max(1e-9);

    let (parallel_bytes, parallel_mb_s) = parallel(file, budget / 3)?;

    let random_len = RANDOM_LEN.min(usize::try_from(file.len()).unwrap_or(RANDOM_LEN));
    let places = (file.len() - random_len as u64) / file.alignment() as u64 + 1;
    let mut random = XorShift(0x9e37_79b9_7f4a_7c15);
    let start = Instant::now();
    let mut times = Vec::with_capacity(RANDOM_READS);
    while times.is_empty() || times.len() < RANDOM_READS && start.elapsed() < budget / 3 {
        let offset = random.next() % places * file.alignment() as u64;
        let read = Instant::now();
        file.read_range(offset..offset + random_len as u64, &mut buf)?;
        times.push(read.elapsed());
    }
    times.sort_unstable();

    Ok(ReadSpeed {
        sequential_mb_s,
        parallel_mb_s,
        random_ms: times[times.len() / 2].as_secs_f64() * 1e3,
        random_len,
        bytes_read: sequential_bytes + parallel_bytes + (times.len() * random_len) as u64,
        mode: file.mode().clone(),
    })
}

/// Reads the file in order with several threads, into memory of the kind that weights are read
/// into. Returns the bytes and the MB a second.
fn parallel(file: &DirectFile, budget: Duration) -> Result<(u64, f64)> {
    let no_memory = |e| Error::access(file.path(), "take memory to read it", e);
    let piece = MIB.next_multiple_of(file.alignment());
    let lens = [REGION_LEN.next_multiple_of(piece); DEFAULT_READERS];
    let regions = arena::allocate(&lens, file.alignment()).map_err(no_memory)?;
    let next = AtomicU64::new(0);
    let start = Instant::now();
    let read = |mut region: arena::Region| {
        let (mut bytes, mut place) = (0, 0);
        loop {
            let offset = next.fetch_add(piece as u64, Ordering::Relaxed);
            if offset >= file.len() || (offset > 0 && start.elapsed() >= budget) {
                return Ok(bytes);
            }
            bytes += file.read_aligned_at(&mut region[place..place + piece], offset)? as u64;
            place = (place + piece) % region.len();
        }
    };
    let bytes: u64 = at_once(regions, read).into_iter().sum::<Result<u64>>()?;
    Ok((bytes, bytes as f64 / 1e6 / start.elapsed().as_secs_f64().max(1e-9)))
}

/// Writes a file of random bytes, so that no file system can compress it, until it is long
/// enough or the time is over.
fn test_file(folder: &Path, budget: Duration) -> Result<tempfile::NamedTempFile> {
    let failed = |e| Error::access(folder, "write a test file in the folder", e);
    let mut file =
        tempfile::Builder::new().prefix(".smol-read-speed-").tempfile_in(folder).map_err(failed)?;
    let mut random = XorShift(0x2545_f491_4f6c_dd1d);
    let mut block = vec![0; 4 * MIB];
    let start = Instant::now();
    for _ in 0..TEST_FILE_LEN / block.len() {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        file.write_all(&block).map_err(failed)?;
        // On the disk now, so that the time is known and direct reads find nothing cached.
        file.as_file().sync_data().map_err(failed)?;
        if start.elapsed() >= budget {
            break;
        }
    }
    Ok(file)
}

/// Marsaglia's 64-bit xorshift generator.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn measures_a_folder_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let speed = measure_read_speed(folder.path(), Duration::from_millis(200)).unwrap();
        // Far more than that: the disk may be busy.
        assert!(start.elapsed() < Duration::from_secs(60));
        assert!(speed.sequential_mb_s > 0.0 && speed.sequential_mb_s.is_finite());
        assert!(speed.parallel_mb_s > 0.0 && speed.parallel_mb_s.is_finite());
        assert!(speed.random_ms > 0.0);
        assert_eq!(speed.random_len, MIB);
        assert!(speed.bytes_read >= 4 * MIB as u64);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn measures_small_files_and_refuses_empty_ones() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = measure_read_speed(file.path(), Duration::from_millis(10)).unwrap_err();
        assert!(matches!(error, Error::Access { .. }), "{error}");
        std::fs::write(file.path(), [1; 100]).unwrap();
        let speed = measure_read_speed(file.path(), Duration::from_millis(10)).unwrap();
        assert_eq!(speed.random_len, 100);
    }
}

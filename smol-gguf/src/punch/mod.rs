//! Freeing the experts of a file whose bytes another file holds, and putting them back.

mod record;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::error::{ErrorKind, Result};
use crate::positioned::{read_exact_at, write_all_at};
use crate::shards::SPLIT_COUNT;
use crate::{Gguf, MAGIC, PUNCHED_MAGIC, ShardName, Shards, TensorInfo, experts, is_same_file};

use record::Record;

/// How much is compared and copied at once: a multiple of [`record::LEN`].
const CHUNK: u64 = 1 << 20;

/// Frees the bytes of a file's routed experts, which another file holds.
///
/// A file that lacks its experts must not be run: all would read zeros and answer nonsense. So
/// its first bytes become `HOLE` before anything is freed, and no program takes it for GGUF any
/// more; [`Gguf::open_punched`] does. Everything but the experts stays readable, and
/// [`fill`](Self::fill) puts them back from a copy.
///
/// 1. [`compare`](Self::compare) reads every expert in both files;
/// 2. [`punch`](Self::punch) marks the file, leaves a record of what it had in the first room that
///    is freed, and frees the rest.
///
/// Both survive being killed at any time: called again, they go on. The way in which a file
/// system frees a part of a file is the caller's.
///
/// # Examples
///
/// ```no_run
/// use smol_gguf::{Punch, Shards};
/// use std::ops::ControlFlow;
///
/// # fn free(file: &std::fs::File, range: std::ops::Range<u64>) -> std::io::Result<()> { Ok(()) }
/// let copy = Shards::open("experts-last.gguf")?;
/// let mut punch = Punch::open("model.gguf", &copy, 4096)?;
/// let compared = punch.compare(|_| ControlFlow::Continue(()))?;
/// punch.punch(&compared, |file, range| free(file, range))?;
/// # Ok::<(), smol_gguf::Error>(())
/// ```
#[derive(Debug)]
pub struct Punch<'a> {
    path: PathBuf,
    file: File,
    gguf: Gguf,
    copy: &'a Shards,
    experts: Vec<Pair<'a>>,
    /// The experts' bytes in the file, neighbours joined.
    ranges: Vec<Range<u64>>,
    /// The whole blocks in these ranges; the first hole is for the record.
    holes: Vec<Range<u64>>,
    record_at: u64,
    record: Option<Record>,
}

/// A tensor of experts in both files.
#[derive(Debug)]
struct Pair<'a> {
    tensor: TensorInfo,
    /// Its place in the file.
    start: u64,
    copy: &'a Gguf,
    copied: &'a TensorInfo,
}

/// The proof that a copy holds every byte of a file's experts.
#[derive(Debug)]
pub struct Compared {
    hash: u128,
}

impl<'a> Punch<'a> {
    /// Opens a file, punched or not, whose experts `copy` holds under the same names, in the same
    /// types and shapes. `block` is what the file system frees at least, in bytes.
    ///
    /// # Errors
    ///
    /// When the file can't be opened for writing or isn't valid, it has no experts or none of a
    /// size worth it, `copy` lacks one of them, or `copy` is the file itself.
    pub fn open(path: impl AsRef<Path>, copy: &'a Shards, block: u64) -> Result<Self> {
        let path = path.as_ref();
        Self::open_at(path, copy, block).map_err(|e| e.at(path))
    }

    fn open_at(path: &Path, copy: &'a Shards, block: u64) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let gguf = Gguf::header_of_open(&file, path)?;
        for source in copy.iter().filter_map(Gguf::path) {
            if is_same_file(path, source) {
                return Err(ErrorKind::OwnCopy.into());
            }
        }
        check_places(&gguf)?;
        let mut experts = Vec::new();
        for (_, tensor) in gguf.experts() {
            let (copy, copied) = find(copy, tensor)?;
            let start = gguf.file_offset(tensor)?;
            experts.push(Pair { tensor: tensor.clone(), start, copy, copied });
        }
        if experts.is_empty() {
            return Err(ErrorKind::NoExperts.into());
        }
        let ranges = joined(&experts);
        let (holes, record_at) = holes(&ranges, block).ok_or_else(|| {
            let bytes = ranges.iter().map(|range| range.end - range.start).sum();
            ErrorKind::NothingToFree { bytes, block }
        })?;
        let record = if gguf.is_punched() { Record::read(&file, record_at)? } else { None };
        let path = path.to_owned();
        Ok(Self { path, file, gguf, copy, experts, ranges, holes, record_at, record })
    }

    /// Returns the files of the model that `path` belongs to, punched or not.
    ///
    /// # Errors
    ///
    /// When the file can't be read or isn't valid.
    pub fn files_of(path: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
        let path = path.as_ref();
        let count = Gguf::open_punched(path)?.get(SPLIT_COUNT).and_then(crate::Value::as_u64);
        Ok(match (count, ShardName::parse(path)) {
            (Some(2..), Some(name)) => (0..name.count()).map(|index| name.sibling(index)).collect(),
            _ => vec![path.to_owned()],
        })
    }

    /// Returns the file's header.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Returns the size of all experts in bytes.
    pub fn expert_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns how many bytes are freed, all but one record: whole blocks only.
    pub fn freed_bytes(&self) -> u64 {
        self.holes.iter().map(|range| range.end - range.start).sum::<u64>() - record::LEN as u64
    }

    /// Compares every byte of the experts with the copy's.
    ///
    /// In a file that is punched already, blocks of zeros pass: they were compared before. Its
    /// record then tells whether it is the same copy. `progress` gets the number of bytes compared
    /// so far.
    ///
    /// # Errors
    ///
    /// When bytes differ, reading fails, or `progress` breaks off.
    pub fn compare(&self, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<Compared> {
        let mut hash = Xxh3::new();
        let mut done = 0;
        let mut ours = vec![0; CHUNK as usize];
        self.each_chunk(|pair, from, theirs| {
            let at = pair.start + from;
            let ours = &mut ours[..theirs.len()];
            read_exact_at(&self.file, ours, at)?;
            if let Some(offset) = self.difference(at, ours, theirs) {
                let place = from + offset as u64;
                return Err(pair.differs(format!("differs from byte {place} on")));
            }
            hash.update(theirs);
            done += theirs.len() as u64;
            stop_or_go(progress(done))
        })
        .map_err(|e| e.at(&self.path))?;
        let hash = hash.digest128();
        match &self.record {
            Some(record) if (record.hash, record.bytes) != (hash, self.expert_bytes()) => {
                let copy = self.copy_path();
                let punched_by = record.copy.clone();
                Err(self.gguf.locate(ErrorKind::OtherCopy { copy, punched_by }.into()))
            }
            _ => Ok(Compared { hash }),
        }
    }

    /// Returns where bytes at `at` of the file differ from the copy's, apart from freed blocks.
    fn difference(&self, at: u64, ours: &[u8], theirs: &[u8]) -> Option<usize> {
        if ours == theirs {
            return None;
        }
        let differs = |(a, b): (&u8, &u8)| a != b;
        if !self.gguf.is_punched() {
            return ours.iter().zip(theirs).position(differs);
        }
        let (mut from, block) = (0, record::LEN);
        while from < ours.len() {
            // Up to the next border of blocks in the file.
            let len = block - ((at + from as u64) % block as u64) as usize;
            let to = (from + len).min(ours.len());
            let (a, b) = (&ours[from..to], &theirs[from..to]);
            let freed = a.iter().all(|&byte| byte == 0)
                || (at + from as u64 == self.record_at && record::is_record(a));
            if a != b && !freed {
                return a.iter().zip(b).position(differs).map(|offset| from + offset);
            }
            from = to;
        }
        None
    }

    /// Marks the file as punched and frees its experts with `free`, which gets ranges of whole
    /// blocks. The copy's bytes are forced to its disk before.
    ///
    /// # Errors
    ///
    /// When a file can't be written or freed. If that happens before anything is freed, an error
    /// of kind [`Unsupported`](io::ErrorKind::Unsupported) leaves the file as it was; after
    /// others it is marked, and punching or filling again goes on from there.
    pub fn punch(
        &mut self,
        compared: &Compared,
        mut free: impl FnMut(&File, Range<u64>) -> io::Result<()>,
    ) -> Result<()> {
        self.punch_by(compared, &mut free).map_err(|e| e.at(&self.path))
    }

    fn punch_by(
        &mut self,
        compared: &Compared,
        free: &mut dyn FnMut(&File, Range<u64>) -> io::Result<()>,
    ) -> Result<()> {
        self.sync_copy()?;
        let was_punched = self.gguf.is_punched();
        self.set_magic(PUNCHED_MAGIC)?;
        // A record that is there tells that its own room was freed.
        if self.record.is_none() {
            if let Err(error) = free(&self.file, self.holes[0].clone()) {
                if error.kind() == io::ErrorKind::Unsupported && !was_punched {
                    self.set_magic(MAGIC)?;
                }
                return Err(error.into());
            }
            let record = Record::new(compared.hash, self.expert_bytes(), &self.copy_path());
            record.write(&self.file, self.record_at)?;
            self.file.sync_data()?;
            self.record = Some(record);
        }
        for hole in &self.holes[1..] {
            free(&self.file, hole.clone())?;
        }
        self.file.sync_all()?;
        self.refresh()
    }

    /// Puts the experts back from the copy, which is compared before with what the file's record
    /// and the bytes that are left say, and makes the file a GGUF file again.
    ///
    /// `progress` gets the number of bytes handled so far, of twice
    /// [`expert_bytes`](Self::expert_bytes).
    ///
    /// # Errors
    ///
    /// When the file isn't punched, the copy holds other experts, reading or writing fails, or
    /// `progress` breaks off. The file stays punched then; filling again starts over.
    pub fn fill(&mut self, mut progress: impl FnMut(u64) -> ControlFlow<()>) -> Result<()> {
        if !self.gguf.is_punched() {
            return Err(self.gguf.locate(ErrorKind::NotPunched.into()));
        }
        self.compare(&mut progress)?;
        let mut done = self.expert_bytes();
        let record = self.record_at..self.record_at + record::LEN as u64;
        let mut behind_record = Vec::new();
        self.each_chunk(|pair, from, data| {
            let at = pair.start + from;
            // The record stays until all else is there.
            let kept = overlap(at..at + data.len() as u64, &record);
            let (first, second) = ((kept.start - at) as usize, (kept.end - at) as usize);
            write_all_at(&self.file, &data[..first], at)?;
            write_all_at(&self.file, &data[second..], kept.end)?;
            if !kept.is_empty() {
                behind_record.push((kept.start, data[first..second].to_vec()));
            }
            done += data.len() as u64;
            stop_or_go(progress(done))
        })
        .and_then(|()| {
            self.file.sync_data()?;
            for (at, data) in &behind_record {
                write_all_at(&self.file, data, *at)?;
            }
            self.set_magic(MAGIC)?;
            self.record = None;
            self.refresh()
        })
        .map_err(|e| e.at(&self.path))
    }

    /// Hands out the copy of all experts piece by piece, in the file's order: the tensor, the
    /// piece's place in it, and its bytes.
    fn each_chunk(
        &self,
        mut handle: impl FnMut(&Pair<'_>, u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buf = vec![0; CHUNK as usize];
        for pair in &self.experts {
            let mut from = 0;
            while from < pair.tensor.n_bytes() {
                let buf = &mut buf[..CHUNK.min(pair.tensor.n_bytes() - from) as usize];
                pair.copy.read_data(pair.copied, from, buf)?;
                handle(pair, from, buf)?;
                from += buf.len() as u64;
            }
        }
        Ok(())
    }

    fn set_magic(&self, magic: [u8; 4]) -> Result<()> {
        // What was written before must not come to the disk after it.
        self.file.sync_data()?;
        write_all_at(&self.file, &magic, 0)?;
        self.file.sync_data()?;
        Ok(())
    }

    fn refresh(&mut self) -> Result<()> {
        self.gguf = Gguf::header_of_open(&self.file, &self.path)?;
        Ok(())
    }

    /// Forces the copy to its disk: a copy made just now may still be in memory only.
    fn sync_copy(&self) -> Result<()> {
        #[cfg(unix)]
        for path in self.copy.iter().filter_map(Gguf::path) {
            File::open(path)?.sync_all()?;
        }
        Ok(())
    }

    fn copy_path(&self) -> PathBuf {
        let path = self.copy.first().path().unwrap_or(Path::new("a copy in memory"));
        path.to_owned()
    }
}

impl Pair<'_> {
    fn differs(&self, what: String) -> crate::Error {
        not_a_copy(self.copy, &self.tensor, what)
    }
}

fn not_a_copy(copy: &Gguf, tensor: &TensorInfo, what: String) -> crate::Error {
    let copy = copy.path().unwrap_or(Path::new("the copy")).to_owned();
    ErrorKind::NotACopy { copy, tensor: tensor.name().to_owned(), what }.into()
}

/// Finds a tensor's copy, of the same type and shape.
fn find<'a>(copy: &'a Shards, tensor: &TensorInfo) -> Result<(&'a Gguf, &'a TensorInfo)> {
    let Some((file, copied)) = copy.tensor(tensor.name()) else {
        return Err(not_a_copy(copy.first(), tensor, "is missing there".into()));
    };
    if (copied.ty(), copied.dims()) != (tensor.ty(), tensor.dims()) {
        let what = format!(
            "is {} of shape {:?} there, {} of shape {:?} here",
            copied.ty(),
            copied.shape(),
            tensor.ty(),
            tensor.shape()
        );
        return Err(not_a_copy(file, tensor, what));
    }
    file.file_offset(copied)?;
    Ok((file, copied))
}

/// Refuses a file whose tensors overlap: freeing one would damage another.
fn check_places(gguf: &Gguf) -> Result<()> {
    let mut places: Vec<_> = gguf.tensors().iter().filter(|t| t.n_bytes() > 0).collect();
    places.sort_by_key(|tensor| tensor.offset());
    for pair in places.windows(2) {
        let (end, next) = (pair[0].offset().saturating_add(pair[0].n_bytes()), pair[1]);
        if next.offset() < end && (experts::is_expert(pair[0]) || experts::is_expert(next)) {
            let tensor = next.name().to_owned();
            return Err(
                ErrorKind::TensorOffset { tensor, found: next.offset(), expected: end }.into()
            );
        }
    }
    Ok(())
}

/// Returns the experts' ranges in the file, those without a gap between them as one.
fn joined(experts: &[Pair<'_>]) -> Vec<Range<u64>> {
    let mut ranges: Vec<_> =
        experts.iter().map(|e| e.start..e.start + e.tensor.n_bytes()).collect();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let joins = range.end == next.start;
        if joins {
            range.end = next.end;
        }
        joins
    });
    ranges
}

/// Returns the ranges to free, the one for the record first, and the record's place.
fn holes(ranges: &[Range<u64>], block: u64) -> Option<(Vec<Range<u64>>, u64)> {
    let record_at = record::place(ranges)?;
    let end = record_at.checked_add(record::LEN as u64)?.checked_next_multiple_of(block.max(1))?;
    let first = record_at - record_at % block.max(1)..end;
    let mut holes = vec![first.clone()];
    let mut fits = false;
    for hole in ranges.iter().filter_map(|range| whole_blocks(range, block)) {
        let cut = overlap(hole.clone(), &first);
        fits |= cut == first;
        let parts = [hole.start..cut.start, cut.end..hole.end];
        holes.extend(parts.into_iter().filter(|part| !part.is_empty()));
    }
    fits.then_some((holes, record_at))
}

/// Returns the whole blocks in a range.
fn whole_blocks(range: &Range<u64>, block: u64) -> Option<Range<u64>> {
    let start = range.start.checked_next_multiple_of(block.max(1))?;
    let end = range.end - range.end % block.max(1);
    (start < end).then_some(start..end)
}

/// Returns the part of `of` that lies in `range`, an empty range at its end if there is none.
fn overlap(range: Range<u64>, of: &Range<u64>) -> Range<u64> {
    let (start, end) =
        (of.start.clamp(range.start, range.end), of.end.clamp(range.start, range.end));
    if start < end { start..end } else { range.end..range.end }
}

fn stop_or_go(flow: ControlFlow<()>) -> Result<()> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(ErrorKind::Stopped.into()),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks() {
        assert_eq!(whole_blocks(&(1..12_288), 4096), Some(4096..12_288));
        assert_eq!(whole_blocks(&(4096..12_287), 4096), Some(4096..8192));
        assert_eq!(whole_blocks(&(1..8191), 4096), None);
        assert_eq!(whole_blocks(&(0..0), 4096), None);
        assert_eq!(whole_blocks(&(u64::MAX - 1..u64::MAX), 4096), None);
    }

    #[test]
    fn the_hole_for_the_record_comes_first() {
        const KIB: u64 = 1024;
        let ranges = [5 * KIB..600 * KIB, 700 * KIB..703 * KIB, 800 * KIB..809 * KIB];
        let (at, after) = (256 * KIB, 260 * KIB);
        let expected = vec![at..after, 8 * KIB..at, after..600 * KIB, 800 * KIB..808 * KIB];
        assert_eq!(holes(&ranges, 4 * KIB), Some((expected, at)));
        let small = holes(&ranges, 512).unwrap().0;
        assert_eq!(small[..3], [at..after, 5 * KIB..at, after..600 * KIB]);
        let large = holes(&ranges, 128 * KIB).unwrap().0;
        assert_eq!(large, [at..384 * KIB, 128 * KIB..at, 384 * KIB..512 * KIB]);
        assert_eq!(holes(&ranges, 1024 * KIB), None);
        assert_eq!(holes(&[0..100 * KIB], 4 * KIB), None);
    }

    #[test]
    fn the_part_of_a_record_in_a_chunk() {
        assert_eq!(overlap(0..100, &(10..20)), 10..20);
        assert_eq!(overlap(15..100, &(10..20)), 15..20);
        assert_eq!(overlap(0..15, &(10..20)), 10..15);
        assert_eq!(overlap(20..100, &(10..20)), 100..100);
        assert_eq!(overlap(0..10, &(10..20)), 10..10);
    }
}

//! One pass over the sources, in which the files of a plan are written at their places.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc;

use super::convert::{PIECE, Progress};
use super::{Content, Entry};
use crate::atomic_file::{Unpublished, no_thread};
use crate::error::{ErrorKind, Result};
use crate::positioned::write_all_at;
use crate::{Gguf, TensorInfo, Writer};

/// A file to write.
pub(super) struct NewFile<'p, 'a> {
    pub(super) path: PathBuf,
    pub(super) writer: Writer,
    pub(super) entries: &'p [Entry<'a>],
}

/// So many complete files wait for the last one: each is open.
const MOST_WAITING: usize = 100;

/// Writes files, all or none.
pub(super) fn write(
    files: &[NewFile<'_, '_>],
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (wake, woken) = mpsc::sync_channel::<File>(1);
        let thread = std::thread::Builder::new().name("gguf-sync".into());
        let sync = move || woken.iter().try_for_each(|file: File| file.sync_data());
        let syncs = thread.spawn_scoped(scope, sync).map_err(no_thread)?;
        let meter = Meter { done: 0, unsynced: 0, progress, wake };
        let mut outputs =
            Outputs { files, open: HashMap::new(), ready: Vec::new(), named: Vec::new(), meter };
        let written = outputs.write();
        let Outputs { ready, mut named, meter, .. } = outputs;
        drop(meter);
        // The system tells an error of the disk once, perhaps to that thread.
        let synced =
            syncs.join().map_err(|_| io::Error::other("the thread that syncs has panicked"));
        let result = written.and_then(|()| Ok(synced??)).and_then(|()| publish(ready, &mut named));
        if result.is_err() {
            for path in named {
                // The first error is the one to report.
                let _ = std::fs::remove_file(path);
            }
        }
        result
    })
}

/// Gives complete files their names.
fn publish(ready: Vec<(PathBuf, Unpublished)>, named: &mut Vec<PathBuf>) -> Result<()> {
    for (path, file) in ready {
        file.publish().map_err(|e| crate::Error::from(e).at(&path))?;
        named.push(path);
    }
    Ok(())
}

/// What is done next: the content of tensors that come from the same bytes.
struct Task {
    /// File and tensor, each by its number.
    to: Vec<(usize, usize)>,
}

struct Outputs<'w, 'p, 'a> {
    files: &'w [NewFile<'p, 'a>],
    open: HashMap<usize, Output>,
    /// Complete, without a name yet.
    ready: Vec<(PathBuf, Unpublished)>,
    /// Complete and named.
    named: Vec<PathBuf>,
    meter: Meter<'w>,
}

/// A file that is being written.
struct Output {
    file: Unpublished,
    /// Where the data section starts, and each tensor in it.
    data_offset: u64,
    tensors: Vec<TensorInfo>,
    file_len: u64,
    /// Tensors that are not there yet.
    missing: usize,
    /// Bytes that were counted.
    counted: u64,
}

impl Outputs<'_, '_, '_> {
    fn write(&mut self) -> Result<()> {
        for task in self.tasks() {
            let file = task.to[0].0;
            self.run(&task).map_err(|e| e.at(&self.files[file].path))?;
        }
        for file in 0..self.files.len() {
            if self.files[file].entries.is_empty() {
                self.open(file)?;
                self.finish_if_complete(file)?;
            }
        }
        Ok(())
    }

    /// Returns what to do: in the order of the new files, or in that of the sources if one of them
    /// comes only once.
    fn tasks(&self) -> Vec<Task> {
        struct Keyed {
            task: Task,
            /// The source's number and the place in it.
            place: (usize, u64),
        }
        let mut tasks: Vec<Keyed> = Vec::new();
        let mut sources: Vec<&Gguf> = Vec::new();
        let mut known = HashMap::new();
        for (f, file) in self.files.iter().enumerate() {
            for (e, entry) in file.entries.iter().enumerate() {
                let mut place = (0, 0);
                if let Content::Copy { source, tensor } = &entry.content {
                    let source = *source;
                    let number = sources.iter().position(|s| std::ptr::eq(*s, source));
                    let number = number.unwrap_or_else(|| {
                        sources.push(source);
                        sources.len() - 1
                    });
                    // Behind what doesn't come from sources.
                    place = (number + 1, tensor.offset());
                    let same = (number, tensor.offset(), tensor.n_bytes(), tensor.row_bytes());
                    if let Some(&at) = known.get(&same) {
                        let shared: &mut Keyed = &mut tasks[at];
                        shared.task.to.push((f, e));
                        continue;
                    }
                    known.insert(same, tasks.len());
                }
                tasks.push(Keyed { task: Task { to: vec![(f, e)] }, place });
            }
        }
        if sources.iter().any(|source| source.is_stream()) {
            tasks.sort_by_key(|keyed| keyed.place);
        }
        tasks.into_iter().map(|keyed| keyed.task).collect()
    }

    fn run(&mut self, task: &Task) -> Result<()> {
        let mut sinks = Vec::with_capacity(task.to.len());
        for &(file, entry) in &task.to {
            let output = self.open(file)?;
            let at = output.data_offset + output.tensors[entry].offset();
            let end = at + output.tensors[entry].n_bytes();
            sinks.push(Sink { file, entry, at, end, progress: Progress::default() });
        }
        let (files, open, meter) = (self.files, &self.open, &mut self.meter);
        let lead = |sink: &Sink| &files[sink.file].entries[sink.entry];
        let entry = lead(&sinks[0]);
        if !(sinks.len() == 1 && copy_within_system(entry, &mut sinks[0], open, meter)?) {
            entry.pieces(&mut |piece| {
                for sink in &mut sinks {
                    sink.feed(lead(sink), piece, open, meter)?;
                }
                Ok(())
            })?;
        }
        for sink in sinks {
            sink.check(lead(&sink))?;
            if let Some(output) = self.open.get_mut(&sink.file) {
                output.missing -= 1;
            }
            self.finish_if_complete(sink.file)?;
        }
        Ok(())
    }

    fn open(&mut self, number: usize) -> Result<&Output> {
        if !self.open.contains_key(&number) {
            let output = self.start(number).map_err(|e| e.at(&self.files[number].path))?;
            self.open.insert(number, output);
        }
        Ok(&self.open[&number])
    }

    /// Creates a file with its header. Padding is what is never written: zeros.
    fn start(&mut self, number: usize) -> Result<Output> {
        let NewFile { path, writer, entries } = &self.files[number];
        let (tensors, file_len) = writer.layout()?;
        let (_, data_offset) = writer.places()?;
        let mut header = Vec::new();
        drop(writer.start(&mut header)?);
        let file = Unpublished::create(path)?;
        file.file().set_len(file_len)?;
        let mut output =
            Output { file, data_offset, tensors, file_len, missing: entries.len(), counted: 0 };
        let mut at = 0;
        for piece in header.chunks(PIECE) {
            write_all_at(output.file.file(), piece, at)?;
            at += piece.len() as u64;
            self.meter.count(piece.len() as u64, output.file.file())?;
        }
        output.counted = at + output.tensors.iter().map(TensorInfo::n_bytes).sum::<u64>();
        Ok(output)
    }

    fn finish_if_complete(&mut self, number: usize) -> Result<()> {
        if self.open.get(&number).is_none_or(|output| output.missing > 0) {
            return Ok(());
        }
        let Some(output) = self.open.remove(&number) else { return Ok(()) };
        let path = &self.files[number].path;
        // The padding.
        self.meter.count(output.file_len - output.counted, output.file.file())?;
        output.file.file().sync_all().map_err(|e| crate::Error::from(e).at(path))?;
        self.ready.push((path.clone(), output.file));
        if self.ready.len() >= MOST_WAITING {
            publish(std::mem::take(&mut self.ready), &mut self.named)?;
        }
        Ok(())
    }
}

/// Where the data of a tensor goes.
struct Sink {
    file: usize,
    entry: usize,
    /// The place of the next byte.
    at: u64,
    end: u64,
    progress: Progress,
}

impl Sink {
    fn feed(
        &mut self,
        entry: &Entry<'_>,
        bytes: &[u8],
        open: &HashMap<usize, Output>,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        let mut place = Place {
            file: open[&self.file].file.file(),
            at: &mut self.at,
            end: self.end,
            info: &entry.info,
            meter,
        };
        self.progress.feed(entry, bytes, &mut place)
    }

    /// Refuses data that is too short.
    fn check(&self, entry: &Entry<'_>) -> Result<()> {
        entry.check_settled(&self.progress)?;
        if self.at == self.end {
            return Ok(());
        }
        let expected = entry.info.n_bytes();
        let found = expected - (self.end - self.at);
        Err(ErrorKind::WriteSize { tensor: entry.info.name().to_owned(), expected, found }.into())
    }
}

/// Writes a tensor's data at its place.
struct Place<'o, 'm> {
    file: &'o File,
    at: &'o mut u64,
    end: u64,
    info: &'o TensorInfo,
    meter: &'o mut Meter<'m>,
}

impl Write for Place<'_, '_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.len() as u64 > self.end - *self.at {
            let expected = self.info.n_bytes();
            let found = (expected - (self.end - *self.at)).saturating_add(buf.len() as u64);
            let tensor = self.info.name().to_owned();
            let error = crate::Error::from(ErrorKind::WriteSize { tensor, expected, found });
            return Err(error.into());
        }
        let piece = &buf[..buf.len().min(4 * PIECE)];
        write_all_at(self.file, piece, *self.at)?;
        *self.at += piece.len() as u64;
        self.meter.count(piece.len() as u64, self.file)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts what is written, tells it, and lets the disk work meanwhile, so that little is left to
/// do at the end, and little memory of the system waits for it.
struct Meter<'p> {
    done: u64,
    /// Bytes written since the disk was last told.
    unsynced: u64,
    progress: &'p mut dyn FnMut(u64) -> ControlFlow<()>,
    wake: mpsc::SyncSender<File>,
}

impl Meter<'_> {
    /// How much is written to the disk at once.
    const STEP: u64 = 64 << 20;

    fn count(&mut self, bytes: u64, file: &File) -> Result<()> {
        self.done += bytes;
        self.unsynced += bytes;
        if self.unsynced >= Self::STEP {
            self.unsynced = 0;
            // Full: it is still busy with what was written before; gone: it has met an error.
            let _ = self.wake.try_send(file.try_clone()?);
        }
        match (self.progress)(self.done) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ErrorKind::Stopped.into()),
        }
    }
}

/// Copies a tensor from file to file without a way through this program, if the system can.
#[cfg(target_os = "linux")]
fn copy_within_system(
    entry: &Entry<'_>,
    sink: &mut Sink,
    open: &HashMap<usize, Output>,
    meter: &mut Meter<'_>,
) -> Result<bool> {
    let Content::Copy { source, tensor } = &entry.content else { return Ok(false) };
    let Some(from) = source.open_file().filter(|_| entry.stages.is_empty()) else {
        return Ok(false);
    };
    let to = open[&sink.file].file.file();
    // The reader knows which data is out of reach.
    source.data_reader(tensor)?;
    let mut place = source.file_offset(tensor)?;
    let start = sink.at;
    while sink.at < sink.end {
        let len = (sink.end - sink.at).min(4 * PIECE as u64) as usize;
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut place), to, Some(&mut sink.at), len);
        match copied {
            Ok(n @ 1..) => meter.count(n as u64, to)?,
            Err(rustix::io::Errno::INTR) => {}
            // Between these files it can't, or the source has become shorter: reading tells.
            _ if sink.at == start => return Ok(false),
            Ok(_) => {
                return Err(source.locate(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Ok(true)
}

#[cfg(not(target_os = "linux"))]
fn copy_within_system(
    _: &Entry<'_>,
    _: &mut Sink,
    _: &HashMap<usize, Output>,
    _: &mut Meter<'_>,
) -> Result<bool> {
    Ok(false)
}

//! Notes of runs that go on, so that the next start can tell when one was killed.
//!
//! A run keeps a file with what it does, and a lock on it, until it ends. A file that nobody has locked is of a run that had
//! no time to remove it.

use crate::cli::Global;
use crate::failure::notice;
use crate::units::bytes;
use serde::{Deserialize, Serialize};
use smol_engine::machine::{boot_id, oom_kills};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The file of this run, for [`forget`].
static CURRENT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Removes the note of this run, which is about to end without returning.
pub fn forget() {
    let path = CURRENT.lock().ok().and_then(|mut path| path.take());
    if let Some(path) = path {
        let _ = std::fs::remove_file(path);
    }
}

/// What a run does, and what the machine has seen so far.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Note {
    command: String,
    model: PathBuf,
    /// Bytes of RAM that were asked for.
    ram: Option<u64>,
    /// Processes that the system has ended for lack of memory.
    oom_kills: Option<u64>,
    /// Names the time since the machine was started.
    boot: Option<String>,
}

/// The note of this run; dropping it removes the file.
#[derive(Debug)]
pub struct Running {
    path: PathBuf,
    /// Keeps the lock.
    _file: File,
}

impl Running {
    /// Tells of earlier runs that were killed, and writes the note of this one. `None` where no file can be written, which
    /// is no reason not to run.
    pub fn start(global: &Global, command: &str, model: &Path, ram: Option<u64>) -> Option<Self> {
        let folder = global.cache().ok()?.folder().join("running");
        for note in killed(&folder) {
            notice(note.words(oom_kills(), boot_id().as_deref()));
        }
        let note = Note {
            command: command.to_owned(),
            model: model.to_owned(),
            ram,
            oom_kills: oom_kills(),
            boot: boot_id(),
        };
        let running = Self::write(&folder, &note)?;
        if let Ok(mut current) = CURRENT.lock() {
            *current = Some(running.path.clone());
        }
        Some(running)
    }

    fn write(folder: &Path, note: &Note) -> Option<Self> {
        std::fs::create_dir_all(folder).ok()?;
        let path = folder.join(format!("{}.json", std::process::id()));
        let mut file = File::create(&path).ok()?;
        let locked = fs4::FileExt::try_lock(&file).is_ok();
        let text = serde_json::to_vec(note).ok()?;
        if !locked || file.write_all(&text).is_err() {
            let _ = std::fs::remove_file(&path);
            return None;
        }
        Some(Self { path, _file: file })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Removes the notes of runs that are over without having removed them, and returns them.
fn killed(folder: &Path) -> Vec<Note> {
    let mut notes = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // Opening a pipe would wait for its other end.
        if !entry.file_type().is_ok_and(|ty| ty.is_file()) {
            continue;
        }
        let path = entry.path();
        let Ok(mut file) = File::open(&path) else { continue };
        // Who cannot be asked has a lock, as far as is known.
        if fs4::FileExt::try_lock_shared(&file).is_err() {
            continue;
        }
        let mut text = String::new();
        let read = file.read_to_string(&mut text);
        if std::fs::remove_file(&path).is_err() || read.is_err() {
            continue;
        }
        // An empty file is of a run that was ended right at its start.
        notes.extend(serde_json::from_str::<Note>(&text).ok());
    }
    notes
}

impl Note {
    /// What is told about a run that was killed; `kills` and `boot` are those of now.
    fn words(&self, kills: Option<u64>, boot: Option<&str>) -> String {
        let what = format!("the last `smol {}` of {}", self.command, self.model.display());
        let with = self.ram.map_or(String::new(), |ram| format!(" with --ram {}", bytes(ram)));
        if self.boot.is_some() && self.boot.as_deref() != boot {
            return format!("{what}{with} was not over when the machine went down");
        }
        let kills = kills.zip(self.oom_kills).map(|(now, then)| now.saturating_sub(then));
        match kills {
            Some(1..) => format!(
                "{what}{with} was killed, and the system has ended a process for lack of memory since it began: less \
                 --ram or a smaller context (-c) may help; `smol plan` tells what is needed"
            ),
            Some(0) => format!("{what}{with} was killed, but not for lack of memory"),
            None => format!("{what}{with} was killed; if memory was short, less --ram or -c helps"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note() -> Note {
        Note {
            command: "run".to_owned(),
            model: "m.gguf".into(),
            ram: Some(900_000_000),
            oom_kills: Some(3),
            boot: Some("a".to_owned()),
        }
    }

    #[test]
    fn a_run_that_ends_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let running = Running::write(folder.path(), &note()).unwrap();
        // It goes on: nobody takes its note.
        assert_eq!(killed(folder.path()), []);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        drop(running);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_run_that_was_killed_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let text = serde_json::to_vec(&note()).unwrap();
        std::fs::write(folder.path().join("1.json"), text).unwrap();
        std::fs::write(folder.path().join("2.json"), "").unwrap();
        assert_eq!(killed(folder.path()), [note()]);
        assert_eq!(killed(folder.path()), []);
        assert_eq!(killed(&folder.path().join("none")), []);
    }

    #[test]
    fn the_reason_is_told_as_far_as_it_is_known() {
        let words = |kills, boot| note().words(kills, boot);
        let memory = words(Some(4), Some("a"));
        assert!(
            memory.starts_with("the last `smol run` of m.gguf with --ram 900.0 MB"),
            "{memory}"
        );
        assert!(memory.contains("for lack of memory since"), "{memory}");
        assert!(words(Some(3), Some("a")).contains("not for lack of memory"));
        assert!(words(None, Some("a")).contains("if memory was short"));
        assert!(words(Some(4), Some("b")).contains("when the machine went down"));
    }
}

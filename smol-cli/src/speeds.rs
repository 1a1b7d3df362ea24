//! How fast this machine reads flash and memory: measured once, and kept in the cache folder.

use crate::cli::Global;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use smol_engine::io::{Mode, measure_read_speed};
use smol_engine::machine::{Cpu, Memory, read_bandwidth};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for measuring a disk.
const DISK_BUDGET: Duration = Duration::from_secs(1);
/// Time for measuring memory, and the least and most bytes that are read: more than caches hold, but not all there is.
const RAM_BUDGET: Duration = Duration::from_millis(200);
const RAM_BYTES: std::ops::RangeInclusive<u64> = 16 << 20..=256 << 20;

/// The speeds that are known, as they are in the file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Speeds {
    /// Memory; of the machine named in it.
    pub ram: Option<RamSpeed>,
    /// Disks, by [`disk_name`].
    pub disks: BTreeMap<String, DiskSpeed>,
}

/// How fast all threads together read memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RamSpeed {
    /// The CPU, to know another machine by.
    pub cpu: String,
    /// Threads that read.
    pub threads: usize,
    /// MB (10^6 bytes) a second.
    pub mb_s: f64,
}

/// How fast a disk is read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskSpeed {
    /// MB (10^6 bytes) a second in order, one read at a time.
    pub sequential_mb_s: f64,
    /// MB a second with as many reads at once as weights are read with.
    pub parallel_mb_s: f64,
    /// Milliseconds of reading a MiB anywhere.
    pub random_mib_ms: f64,
    /// Whether the page cache was passed by.
    pub direct: bool,
    /// Why it was not.
    pub note: Option<String>,
}

impl RamSpeed {
    /// Measures with as many threads as the program uses by default.
    pub fn measure() -> Self {
        let cpu = Cpu::probe();
        let threads = cpu.default_threads();
        let available = Memory::probe().usable().unwrap_or(1 << 30);
        let bytes = (available / 8).clamp(*RAM_BYTES.start(), *RAM_BYTES.end());
        let speed = read_bandwidth(bytes as usize, threads, RAM_BUDGET);
        Self { cpu: cpu.name.unwrap_or_default(), threads, mb_s: rounded(speed / 1e6, 0) }
    }

    fn is_of_this_machine(&self) -> bool {
        let cpu = Cpu::probe();
        self.threads == cpu.default_threads() && self.cpu == cpu.name.unwrap_or_default()
    }
}

impl DiskSpeed {
    /// Measures the disk that a file, or a folder, lies on. In a folder a file is written for that.
    pub fn measure(path: &Path) -> Result<Self> {
        let speed = measure_read_speed(path, DISK_BUDGET)?;
        let note = match &speed.mode {
            Mode::Buffered { reason } => Some(reason.clone()),
            _ => None,
        };
        Ok(Self {
            sequential_mb_s: rounded(speed.sequential_mb_s, 1),
            parallel_mb_s: rounded(speed.parallel_mb_s, 1),
            random_mib_ms: rounded(speed.random_ms, 3),
            direct: speed.mode == Mode::Direct,
            note,
        })
    }
}

/// The file of speeds, and what is in it.
#[derive(Debug)]
pub struct SpeedFile {
    /// `None` without a cache folder.
    path: Option<PathBuf>,
    speeds: Speeds,
}

impl SpeedFile {
    /// Reads the speeds that were measured earlier.
    pub fn open(global: &Global) -> Self {
        Self::at(global.cache().ok().map(|cache| cache.folder().join("speeds.json")))
    }

    fn at(path: Option<PathBuf>) -> Self {
        // What is not there, or not understood, is measured.
        let text = path.as_ref().and_then(|path| std::fs::read(path).ok());
        let speeds = text.and_then(|text| serde_json::from_slice(&text).ok());
        Self { path, speeds: speeds.unwrap_or_default() }
    }

    /// Returns the speed of memory, and measures it if that was not done on this machine yet.
    pub fn ram(&mut self) -> RamSpeed {
        match self.speeds.ram.take() {
            Some(known) if known.is_of_this_machine() => self.keep_ram(known),
            _ => {
                let measured = self.keep_ram(RamSpeed::measure());
                self.save();
                measured
            }
        }
    }

    fn keep_ram(&mut self, speed: RamSpeed) -> RamSpeed {
        self.speeds.ram = Some(speed.clone());
        speed
    }

    /// Returns the speed of the disk below `path`, and measures it with that file if it is not known.
    pub fn disk(&mut self, path: &Path) -> Result<DiskSpeed> {
        let name = disk_name(path);
        if let Some(known) = self.speeds.disks.get(&name) {
            return Ok(known.clone());
        }
        let measured = DiskSpeed::measure(path)?;
        self.put_disk(path, measured.clone());
        Ok(measured)
    }

    /// Keeps a new measurement of the disk below `path`.
    pub fn put_disk(&mut self, path: &Path, speed: DiskSpeed) {
        self.speeds.disks.insert(disk_name(path), speed);
        self.save();
    }

    /// Keeps a new measurement of memory.
    pub fn put_ram(&mut self, speed: RamSpeed) {
        self.speeds.ram = Some(speed);
        self.save();
    }

    /// Writes the file. Where that cannot be done, speeds are measured each time.
    fn save(&self) {
        let Some(path) = &self.path else { return };
        let Ok(text) = serde_json::to_vec_pretty(&self.speeds) else { return };
        if let Some(folder) = path.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        // Another process may do the same now: each has a file of its own, and the last one stays.
        let own = path.with_extension(format!("{}.part", std::process::id()));
        if std::fs::write(&own, text).and_then(|()| std::fs::rename(&own, path)).is_err() {
            let _ = std::fs::remove_file(&own);
        }
    }
}

/// Names the disk that a file lies on: by its device, elsewhere by its folder.
fn disk_name(path: &Path) -> String {
    #[cfg(unix)]
    if let Ok(metadata) = std::fs::metadata(path) {
        return format!("device {}", std::os::unix::fs::MetadataExt::dev(&metadata));
    }
    path.canonicalize().unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed() -> DiskSpeed {
        DiskSpeed {
            sequential_mb_s: 278.0,
            parallel_mb_s: 300.0,
            random_mib_ms: 3.5,
            direct: true,
            note: None,
        }
    }

    #[test]
    fn what_was_measured_is_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new").join("speeds.json");
        let model = folder.path().join("model");
        std::fs::write(&model, [1; 5000]).unwrap();
        let mut file = SpeedFile::at(Some(path.clone()));
        file.put_disk(&model, speed());
        let known = RamSpeed { mb_s: 123.0, ..RamSpeed::measure() };
        file.put_ram(known.clone());
        let mut again = SpeedFile::at(Some(path.clone()));
        assert_eq!(again.disk(&model).unwrap(), speed());
        assert_eq!(again.ram(), known);
        // Those of another machine are not used.
        again.put_ram(RamSpeed { cpu: "other".to_owned(), ..known.clone() });
        assert_ne!(SpeedFile::at(Some(path.clone())).ram().mb_s, 123.0);
        // A damaged file is none.
        std::fs::write(&path, "{").unwrap();
        assert_eq!(SpeedFile::at(Some(path)).speeds, Speeds::default());
    }

    #[test]
    fn without_a_cache_folder_everything_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        std::fs::write(&model, vec![1; 1 << 20]).unwrap();
        let mut file = SpeedFile::at(None);
        assert!(file.disk(&model).unwrap().sequential_mb_s > 0.0);
        assert!(file.ram().mb_s > 0.0);
    }
}

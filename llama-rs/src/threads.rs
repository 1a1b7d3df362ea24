//! How many threads to compute with.

use std::collections::BTreeMap;
use std::thread::available_parallelism;

/// The processor as far as it matters for choosing a number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cores {
    /// Logical cores that are online.
    pub logical: usize,
    /// Physical cores: simultaneous threads of one core count once.
    pub physical: usize,
    /// Physical cores of the fastest kind; on a processor of one kind, all of them.
    pub fast: usize,
    /// Logical cores that this process may use, after affinity and quotas.
    pub usable: usize,
}

impl Cores {
    /// Looks at the machine that runs. What the system doesn't tell is taken from the usable cores.
    pub fn detect() -> Self {
        let usable = available_parallelism().map_or(1, std::num::NonZero::get);
        Self::from_cpus(&list_cpus(), usable)
    }

    /// Returns the default number of threads: the fast physical cores that may be used.
    ///
    /// Slow cores of a mixed processor hold the others up at every barrier, and simultaneous threads of one core share
    /// its vector units.
    pub fn default_threads(&self) -> usize {
        self.fast.min(self.usable).max(1)
    }

    fn from_cpus(cpus: &[Cpu], usable: usize) -> Self {
        if cpus.is_empty() {
            return Self { logical: usable, physical: usable, fast: usable, usable };
        }
        let mut cores: BTreeMap<&str, u64> = BTreeMap::new();
        for cpu in cpus {
            let speed = cores.entry(&cpu.core).or_default();
            *speed = cpu.speed.max(*speed);
        }
        let fastest = cores.values().copied().max().unwrap_or(0);
        // Kinds differ by far more; cores of one kind differ by their boost bins only.
        let fast = cores.values().filter(|speed| **speed * 10 >= fastest * 8).count();
        Self { logical: cpus.len().max(usable), physical: cores.len(), fast, usable }
    }
}

/// A logical core.
struct Cpu {
    /// The logical cores that share its physical core, as the system lists them.
    core: String,
    /// Relative speed; 0 if unknown.
    speed: u64,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn list_cpus() -> Vec<Cpu> {
    let root = std::path::Path::new("/sys/devices/system/cpu");
    let Ok(online) = std::fs::read_to_string(root.join("online")) else { return Vec::new() };
    let cpu = |number: usize| {
        let folder = root.join(format!("cpu{number}"));
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let number_in = |name: &str| read(name)?.trim().parse().ok();
        Cpu {
            core: read("topology/core_cpus_list")
                .or_else(|| read("topology/thread_siblings_list"))
                .unwrap_or_else(|| number.to_string()),
            speed: number_in("cpu_capacity")
                .or_else(|| number_in("cpufreq/cpuinfo_max_freq"))
                .unwrap_or(0),
        }
    };
    parse_cpu_list(online.trim()).into_iter().map(cpu).collect()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn list_cpus() -> Vec<Cpu> {
    Vec::new()
}

/// The numbers of a list such as `0-3,6`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn parse_cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().take(4096).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu(core: &str, speed: u64) -> Cpu {
        Cpu { core: core.into(), speed }
    }

    #[test]
    fn little_cores_are_left_out() {
        let cpus: Vec<_> =
            (0..8).map(|n| cpu(&n.to_string(), if n < 4 { 400 } else { 1024 })).collect();
        let cores = Cores::from_cpus(&cpus, 8);
        assert_eq!((cores.logical, cores.physical, cores.fast), (8, 8, 4));
        assert_eq!(cores.default_threads(), 4);
        assert_eq!(Cores::from_cpus(&cpus, 2).default_threads(), 2);
    }

    #[test]
    fn simultaneous_threads_count_once() {
        let cpus = [cpu("0,2", 5000), cpu("1,3", 4900), cpu("0,2", 5000), cpu("1,3", 4900)];
        let cores = Cores::from_cpus(&cpus, 4);
        assert_eq!((cores.logical, cores.physical, cores.fast), (4, 2, 2));
    }

    #[test]
    fn an_unknown_machine_uses_what_it_may() {
        assert_eq!(Cores::from_cpus(&[], 3).default_threads(), 3);
        assert!(Cores::detect().default_threads() >= 1);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn cpu_lists_are_parsed() {
        assert_eq!(parse_cpu_list("0-3,6"), [0, 1, 2, 3, 6]);
        assert_eq!(parse_cpu_list("0"), [0]);
        assert!(parse_cpu_list("").is_empty());
    }
}

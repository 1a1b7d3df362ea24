//! What the running machine offers: CPU cores by speed class, memory, and their limits.
//!
//! The probes read `/proc` and `/sys` on Linux and Android and ask the kernel on Apple
//! systems. All parsing is done by pure functions over the text of those files, so that a
//! machine can be described by fixtures in tests.

#[cfg(any(target_os = "linux", target_os = "android", test))]
mod cgroup;
mod cpu;
#[cfg(any(target_os = "linux", target_os = "android", test))]
mod cpulist;
mod features;
#[cfg(any(target_os = "linux", target_os = "android", test))]
mod files;
mod memory;
mod process;
mod speed;

#[cfg(target_vendor = "apple")]
mod apple;

pub use cpu::{Cluster, Cpu, LogicalCpu};
pub use features::cpu_features;
pub use memory::Memory;
pub use process::{boot_id, bytes_read_from_disk, oom_kills, peak_rss, rss};
pub use speed::{clock_hz, read_bandwidth};

/// The CPU and memory of the running machine, as this process may use them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Machine {
    /// Cores, their speed classes and the limits on them.
    pub cpu: Cpu,
    /// Memory, and the limits on it.
    pub memory: Memory,
}

impl Machine {
    /// Probes the machine. Takes well under a millisecond a core and never fails: what the
    /// system does not tell is left out.
    pub fn probe() -> Self {
        Self { cpu: Cpu::probe(), memory: Memory::probe() }
    }
}

//! Memory of the machine, and what limits this process's share of it.

/// Memory in bytes, as this process may use it. `None` is unknown, or no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Memory {
    /// RAM of the machine.
    pub total: Option<u64>,
    /// RAM that can be had without swapping (Linux: `MemAvailable`).
    pub available: Option<u64>,
    /// Tightest memory limit of the control groups that this process is in.
    pub cgroup_limit: Option<u64>,
    /// What is used of [`cgroup_limit`](Self::cgroup_limit), reclaimable file cache not counted.
    pub cgroup_used: Option<u64>,
    /// Limit on this process's address space (`ulimit -v`).
    pub address_space_limit: Option<u64>,
    /// Address space that this process has taken.
    pub address_space_used: Option<u64>,
}

impl Memory {
    /// Reads the machine's memory and the limits on this process.
    pub fn probe() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        return linux::probe(&super::files::Os);
        #[cfg(target_vendor = "apple")]
        return Self { total: super::apple::memory_total(), ..Self::default() };
        #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
        return Self::default();
    }

    /// Returns the bytes that this process can still allocate: the least of what is available
    /// and of what each limit leaves. `None` if nothing is known.
    pub fn usable(&self) -> Option<u64> {
        [self.usable_ram(), self.usable_address_space()].into_iter().flatten().min()
    }

    /// Returns the bytes of RAM that this process can still fill: what is available, within its
    /// control groups. `None` if nothing is known.
    pub fn usable_ram(&self) -> Option<u64> {
        let available = self.available.or(self.total);
        [available, left(self.cgroup_limit, self.cgroup_used)].into_iter().flatten().min()
    }

    /// Returns the bytes that this process can still map, touched or not. `None` is no limit.
    pub fn usable_address_space(&self) -> Option<u64> {
        left(self.address_space_limit, self.address_space_used)
    }
}

fn left(limit: Option<u64>, used: Option<u64>) -> Option<u64> {
    limit.map(|limit| limit.saturating_sub(used.unwrap_or(0)))
}

#[cfg(any(target_os = "linux", target_os = "android", test))]
mod linux {
    use super::Memory;
    use crate::machine::{cgroup, files::Files};

    pub(super) fn probe(files: &dyn Files) -> Memory {
        let meminfo = files.read("/proc/meminfo").unwrap_or_default();
        let status = files.read("/proc/self/status").unwrap_or_default();
        let limits = files.read("/proc/self/limits").unwrap_or_default();
        let groups = cgroup::limits(files);
        Memory {
            total: kib_field(&meminfo, "MemTotal"),
            available: available(&meminfo),
            cgroup_limit: groups.memory,
            cgroup_used: groups.memory_used,
            address_space_limit: address_space_limit(&limits),
            address_space_used: kib_field(&status, "VmSize"),
        }
    }

    /// `MemAvailable`, or an estimate of it for kernels before 3.14.
    fn available(meminfo: &str) -> Option<u64> {
        kib_field(meminfo, "MemAvailable").or_else(|| {
            Some(kib_field(meminfo, "MemFree")? + kib_field(meminfo, "Cached").unwrap_or(0) / 2)
        })
    }

    /// Parses the soft limit of `Max address space` in `/proc/self/limits`.
    fn address_space_limit(limits: &str) -> Option<u64> {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// Returns a `Key:   123 kB` field in bytes.
    pub(in crate::machine) fn kib_field(text: &str, key: &str) -> Option<u64> {
        text.lines().find_map(|line| {
            let value = line.strip_prefix(key)?.strip_prefix(':')?;
            let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        })
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::machine::files::fixture::Fixture;

        /// A TV box with 2 GB.
        const MEMINFO: &str = "MemTotal:        1977944 kB\nMemFree:           61344 kB\n\
            MemAvailable:    1012340 kB\nBuffers:            3512 kB\nCached:           901000 kB\n";

        fn limits(soft: &str) -> String {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max open files            20000                20000                files     \n\
                 Max address space         {soft:<20} unlimited            bytes     \n"
            )
        }

        #[test]
        fn box_without_limits() {
            let files = Fixture::default()
                .with("/proc/meminfo", MEMINFO)
                .with("/proc/self/limits", limits("unlimited"))
                .with("/proc/self/status", "Name:\tsmol\nVmPeak:\t  3060 kB\nVmSize:\t  3060 kB\n");
            let memory = probe(&files);
            assert_eq!(memory.total, Some(1_977_944 * 1024));
            assert_eq!(memory.address_space_limit, None);
            assert_eq!(memory.address_space_used, Some(3060 * 1024));
            assert_eq!(memory.usable(), Some(1_012_340 * 1024));
        }

        #[test]
        fn the_tightest_limit_counts() {
            let files = Fixture::default()
                .with("/proc/meminfo", MEMINFO)
                .with("/proc/self/limits", limits("61440000"))
                .with("/proc/self/status", "VmSize:\t 10000 kB\n");
            assert_eq!(probe(&files).usable(), Some(61_440_000 - 10_240_000));

            let memory = Memory {
                available: Some(900),
                cgroup_limit: Some(500),
                cgroup_used: Some(450),
                ..Memory::default()
            };
            assert_eq!(memory.usable(), Some(50));
            let over = Memory { cgroup_used: Some(501), ..memory };
            assert_eq!(over.usable(), Some(0));
        }

        #[test]
        fn old_kernels_and_no_files() {
            let old = "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 300 kB\nSwapCached: 7 kB\n";
            let files = Fixture::default().with("/proc/meminfo", old);
            assert_eq!(probe(&files).available, Some(250 * 1024));
            assert_eq!(probe(&Fixture::default()), Memory::default());
            assert_eq!(Memory::default().usable(), None);
        }

        #[test]
        fn malformed_fields_are_unknown() {
            assert_eq!(kib_field("MemTotal: many kB\n", "MemTotal"), None);
            assert_eq!(kib_field("MemTotal: 18446744073709551615 kB\n", "MemTotal"), None);
            assert_eq!(kib_field("MemTotalX: 5 kB\n", "MemTotal"), None);
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android", test))]
pub(super) use linux::kib_field;

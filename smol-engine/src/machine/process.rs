//! What this process has used so far.

/// Returns the largest resident set that this process has had, in bytes.
pub fn peak_rss() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return super::memory::kib_field(&read("/proc/self/status")?, "VmHWM");
    #[cfg(target_vendor = "apple")]
    return super::apple::peak_rss();
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    return None;
}

/// Returns the resident set that this process has now, in bytes.
pub fn rss() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return super::memory::kib_field(&read("/proc/self/status")?, "VmRSS");
    #[cfg(target_os = "macos")]
    return super::apple::rss();
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
    return None;
}

/// Returns the bytes that this process has had read from disk: page cache hits are not
/// counted, page faults on mapped files and their read-ahead are.
pub fn bytes_read_from_disk() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return read_bytes(&read("/proc/self/io")?);
    #[cfg(target_os = "macos")]
    return super::apple::bytes_read_from_disk();
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos")))]
    return None;
}

/// Returns how many processes the system has ended for lack of memory since it was started. `None` where it does not
/// tell.
pub fn oom_kills() -> Option<u64> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return counter(&read("/proc/vmstat")?, "oom_kill");
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    return None;
}

/// Returns a name that the system has from its start to the next one. `None` where it has none.
pub fn boot_id() -> Option<String> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    return Some(read("/proc/sys/kernel/random/boot_id")?.trim().to_owned());
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    return None;
}

/// Parses a line of `/proc/vmstat`.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn counter(vmstat: &str, name: &str) -> Option<u64> {
    vmstat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn read(path: &str) -> Option<String> {
    use super::files::{Files as _, Os};
    Os.read(path)
}

/// Parses `read_bytes` of `/proc/self/io`.
#[cfg(any(target_os = "linux", target_os = "android", test))]
fn read_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("read_bytes:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_was_ended_for_lack_of_memory() {
        let vmstat = "drop_pagecache 2\noom_kill_disable 7\noom_kill 3\nnuma_hit 1\n";
        assert_eq!(counter(vmstat, "oom_kill"), Some(3));
        assert_eq!(counter("pgfault 1\n", "oom_kill"), None);
    }

    #[test]
    fn counts_disk_reads_only() {
        let io = "rchar: 8299\nwchar: 1323\nsyscr: 12\nread_bytes: 4096\nwrite_bytes: 0\n";
        assert_eq!(read_bytes(io), Some(4096));
        assert_eq!(read_bytes("rchar: 1\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn peak_grows_with_touched_memory() {
        let before = peak_rss().unwrap();
        let block = vec![1u8; 64 << 20];
        let sum: u64 = block.iter().step_by(4096).map(|&byte| u64::from(byte)).sum();
        assert_eq!(sum, 64 << 8);
        // The kernel keeps these counts for each core and adds them up roughly; other tests take
        // and give back memory meanwhile.
        const ROUGHLY: u64 = 32 << 20;
        let (now, peak) = (rss().unwrap(), peak_rss().unwrap());
        assert!(peak + ROUGHLY >= before.max(64 << 20), "{before} before, {peak} at most");
        assert!((ROUGHLY..=peak + ROUGHLY).contains(&now), "{now} of {peak}");
    }
}

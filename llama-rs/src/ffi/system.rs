//! What the operating system tells about memory.

/// Bytes that this process can still use without paging, or `None` where the system doesn't tell.
///
/// The least of the free memory of the machine and of the process's control group.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn available_memory() -> Option<u64> {
    [machine_available(), group_available()].into_iter().flatten().min()
}

/// See the Linux version.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn available_memory() -> Option<u64> {
    None
}

/// Bytes that this process can still allocate or map, or `None` if there is no limit (`ulimit -v`).
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn available_address_space() -> Option<u64> {
    None
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn machine_available() -> Option<u64> {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn parse_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What the control groups (version 2) above this process leave.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn group_available() -> Option<u64> {
    let membership = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = std::path::Path::new("/sys/fs/cgroup");
    let mut group = root.join(path.trim_start_matches('/'));
    let mut least = None;
    while group.starts_with(root) {
        let read = |name: &str| -> Option<u64> {
            std::fs::read_to_string(group.join(name)).ok()?.trim().parse().ok()
        };
        // "max" doesn't parse: no limit at this level.
        if let (Some(limit), Some(used)) = (read("memory.max"), read("memory.current")) {
            // File pages count as used but are given back under pressure.
            let cached = group_file_pages(&group).unwrap_or(0);
            let left = limit.saturating_sub(used.saturating_sub(cached));
            least = Some(least.map_or(left, |least: u64| least.min(left)));
        }
        if !group.pop() {
            break;
        }
    }
    least
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn group_file_pages(group: &std::path::Path) -> Option<u64> {
    let stat = std::fs::read_to_string(group.join("memory.stat")).ok()?;
    stat.lines().find_map(|line| line.strip_prefix("file "))?.trim().parse().ok()
}

/// Bytes that this process can still allocate or map, or `None` if there is no limit (`ulimit -v`).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn available_address_space() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let limit = parse_address_space_limit(&limits)?;
    let used_pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = used_pages.split_whitespace().next()?.parse().ok()?;
    Some(limit.saturating_sub(pages.saturating_mul(page_size())))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn parse_address_space_limit(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok() // "unlimited" doesn't parse
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn page_size() -> u64 {
    // SAFETY: a query without pointers (POSIX sysconf).
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(size).unwrap_or(4096)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn meminfo_and_limits_are_understood() {
        let meminfo = "MemTotal:  8 kB\nMemAvailable:   24061376 kB\n";
        assert_eq!(parse_meminfo(meminfo), Some(24_061_376 * 1024));
        assert_eq!(parse_meminfo("MemFree: 1 kB\n"), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\n\
                      Max address space         61440000             unlimited            bytes\n";
        assert_eq!(parse_address_space_limit(limits), Some(61_440_000));
        assert_eq!(parse_address_space_limit(&limits.replace("61440000", "unlimited")), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_memory().unwrap() > 0);
    }
}

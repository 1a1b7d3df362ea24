//! Linux control groups, v1 and v2: the CPU and memory limits on this process.

use super::files::{Files, read_value};

/// Limits above this are the kernel's way to write "none" (v1 prints 2^63 rounded to pages).
const NO_LIMIT: u64 = 1 << 60;

/// Limits of the control groups that this process is in, each the tightest of all levels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Limits {
    /// CPU time per wall-clock time, in CPUs.
    pub(super) cpus: Option<f64>,
    /// Memory limit in bytes.
    pub(super) memory: Option<u64>,
    /// Bytes charged to the group with that limit, without its reclaimable file cache.
    pub(super) memory_used: Option<u64>,
}

/// Reads the limits that apply to this process.
pub(super) fn limits(files: &dyn Files) -> Limits {
    let mut limits = Limits::default();
    let (Some(groups), Some(mounts)) =
        (files.read("/proc/self/cgroup"), files.read("/proc/self/mountinfo"))
    else {
        return limits;
    };
    for mount in mounts.lines().filter_map(Mount::parse) {
        for folder in mount.folders(&groups) {
            match mount.version {
                Version::V2 => {
                    limits.limit_cpus(
                        files.read(&format!("{folder}/cpu.max")).and_then(|text| cpu_max(&text)),
                    );
                    limits.limit_memory(files, &folder, &V2_MEMORY);
                }
                Version::V1 => {
                    limits.limit_cpus(v1_cpus(files, &folder));
                    limits.limit_memory(files, &folder, &V1_MEMORY);
                }
            }
        }
    }
    limits
}

impl Limits {
    fn limit_cpus(&mut self, cpus: Option<f64>) {
        if let Some(cpus) = cpus {
            self.cpus = Some(self.cpus.map_or(cpus, |known| known.min(cpus)));
        }
    }

    fn limit_memory(&mut self, files: &dyn Files, folder: &str, names: &MemoryFiles) {
        let limit = read_value::<u64>(files, &format!("{folder}/{}", names.limit));
        let Some(limit) = limit.filter(|&limit| limit < NO_LIMIT) else { return };
        if self.memory.is_some_and(|known| known <= limit) {
            return;
        }
        self.memory = Some(limit);
        self.memory_used =
            read_value::<u64>(files, &format!("{folder}/{}", names.usage)).map(|usage| {
                let stat = files.read(&format!("{folder}/memory.stat")).unwrap_or_default();
                let cache: u64 = names.file_cache.iter().filter_map(|key| field(&stat, key)).sum();
                usage.saturating_sub(cache)
            });
    }
}

/// Names of the files of one version's memory controller.
struct MemoryFiles {
    limit: &'static str,
    usage: &'static str,
    /// Keys of `memory.stat` that count file cache, which the kernel drops under pressure.
    file_cache: [&'static str; 2],
}

const V1_MEMORY: MemoryFiles = MemoryFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    file_cache: ["total_inactive_file", "total_active_file"],
};

const V2_MEMORY: MemoryFiles = MemoryFiles {
    limit: "memory.max",
    usage: "memory.current",
    file_cache: ["inactive_file", "active_file"],
};

/// Parses v2's `cpu.max`, `QUOTA PERIOD` in microseconds, into CPUs; `None` is no limit.
fn cpu_max(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    quota(words.next()?.parse().ok()?, words.next()?.parse().ok()?)
}

fn v1_cpus(files: &dyn Files, folder: &str) -> Option<f64> {
    quota(
        read_value(files, &format!("{folder}/cpu.cfs_quota_us"))?,
        read_value(files, &format!("{folder}/cpu.cfs_period_us"))?,
    )
}

/// A quota of -1 means none.
fn quota(quota_us: i64, period_us: i64) -> Option<f64> {
    (quota_us > 0 && period_us > 0).then(|| quota_us as f64 / period_us as f64)
}

/// Returns the number after `key` in a file of `key value` lines.
fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Version {
    V1,
    V2,
}

/// A mounted control group hierarchy.
#[derive(Debug, PartialEq)]
struct Mount {
    version: Version,
    /// The group that is seen at the mount point.
    root: String,
    point: String,
    /// v1: the controllers of this hierarchy.
    controllers: Vec<String>,
}

impl Mount {
    /// Parses a line of `mountinfo` (proc(5)); `None` unless it is a hierarchy with limits.
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (unescape(left.next()?), unescape(left.next()?));
        let mut right = right.split(' ');
        let version = match right.next()? {
            "cgroup" => Version::V1,
            "cgroup2" => Version::V2,
            _ => return None,
        };
        let options = right.nth(1).unwrap_or_default();
        let controllers: Vec<_> = options
            .split(',')
            .filter(|option| matches!(*option, "cpu" | "memory"))
            .map(str::to_owned)
            .collect();
        if version == Version::V1 && controllers.is_empty() {
            return None;
        }
        Some(Self { version, root, point, controllers })
    }

    /// Lists the folders of this process's group and of all groups above it, inmost first.
    fn folders(&self, groups: &str) -> Vec<String> {
        let group = groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            let ours = match self.version {
                Version::V2 => id == "0" && controllers.is_empty(),
                Version::V1 => {
                    controllers.split(',').any(|name| self.controllers.iter().any(|c| c == name))
                }
            };
            ours.then_some(path)
        });
        let Some(group) = group else { return Vec::new() };
        // In a container the group's path may lie outside of what is mounted ("/../.."): then
        // only the mount point itself can be read.
        let below = if self.root == "/" {
            group
        } else {
            group.strip_prefix(self.root.as_str()).unwrap_or_default()
        };
        let mut below = if below.contains("..") { "" } else { below.trim_end_matches('/') };
        let mut folders = Vec::new();
        while !below.is_empty() {
            folders.push(format!("{}{below}", self.point));
            below = &below[..below.rfind('/').unwrap_or(0)];
        }
        folders.push(self.point.clone());
        folders
    }
}

/// Undoes `mountinfo`'s octal escapes of blanks and backslashes.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::files::fixture::Fixture;

    const V2_MOUNT: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
    const V1_MOUNTS: &str = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n";

    #[test]
    fn v2_takes_the_tightest_of_all_levels() {
        let files = Fixture::default()
            .with("/proc/self/cgroup", "0::/user.slice/app.scope\n")
            .with("/proc/self/mountinfo", V2_MOUNT)
            .with("/sys/fs/cgroup/user.slice/app.scope/cpu.max", "max 100000\n")
            .with("/sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n")
            .with("/sys/fs/cgroup/user.slice/app.scope/memory.max", "1000000000\n")
            .with("/sys/fs/cgroup/user.slice/app.scope/memory.current", "700000000\n")
            .with(
                "/sys/fs/cgroup/user.slice/app.scope/memory.stat",
                "anon 1\nfile 600000000\ninactive_file 500000000\nactive_file 100000000\n",
            )
            .with("/sys/fs/cgroup/user.slice/memory.max", "max\n");
        assert_eq!(
            limits(&files),
            Limits { cpus: Some(1.5), memory: Some(1_000_000_000), memory_used: Some(100_000_000) }
        );
    }

    #[test]
    fn v1_has_a_hierarchy_a_controller() {
        let files = Fixture::default()
            .with("/proc/self/cgroup", "4:memory:/box\n1:cpu,cpuacct:/box/run\n0::/\n")
            .with("/proc/self/mountinfo", V1_MOUNTS)
            .with("/sys/fs/cgroup/cpu,cpuacct/box/run/cpu.cfs_quota_us", "-1\n")
            .with("/sys/fs/cgroup/cpu,cpuacct/box/run/cpu.cfs_period_us", "100000\n")
            .with("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "200000\n")
            .with("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
            .with("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "1095000000\n")
            .with("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "95000000\n")
            .with("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(
            limits(&files),
            Limits { cpus: Some(2.0), memory: Some(1_095_000_000), memory_used: Some(95_000_000) }
        );
    }

    #[test]
    fn container_whose_group_lies_outside_of_the_mount() {
        let files = Fixture::default()
            .with("/proc/self/cgroup", "0::/../../other\n")
            .with("/proc/self/mountinfo", V2_MOUNT)
            .with("/sys/fs/cgroup/memory.max", "512000000\n");
        assert_eq!(limits(&files).memory, Some(512_000_000));
        assert_eq!(limits(&files).memory_used, None);

        let bind = "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        let files = Fixture::default()
            .with("/proc/self/cgroup", "0::/docker/abc\n")
            .with("/proc/self/mountinfo", bind)
            .with("/sys/fs/cgroup/cpu.max", "50000 100000\n");
        assert_eq!(limits(&files).cpus, Some(0.5));
    }

    #[test]
    fn no_groups_or_malformed_text_is_no_limit() {
        assert_eq!(limits(&Fixture::default()), Limits::default());
        let files = Fixture::default()
            .with("/proc/self/cgroup", "garbage\n::\n0::\n")
            .with("/proc/self/mountinfo", format!("x\n - cgroup2\n{V2_MOUNT}"))
            .with("/sys/fs/cgroup/cpu.max", "lots of\n")
            .with("/sys/fs/cgroup/memory.max", "-5\n");
        assert_eq!(limits(&files), Limits::default());
    }

    #[test]
    fn escaped_mount_points() {
        let line = "30 23 0:26 / /my\\040groups rw - cgroup2 none rw";
        assert_eq!(Mount::parse(line).unwrap().point, "/my groups");
    }
}

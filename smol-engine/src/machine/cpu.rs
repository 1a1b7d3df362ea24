//! CPU cores by speed class, the limits on using them, and the thread count that follows.

/// The CPUs of the machine, and which of them this process may use.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Cpu {
    /// Marketing name, or the kinds of cores where there is none (`4x Cortex-A55`).
    pub name: Option<String>,
    /// CPUs that are online, by number.
    pub logical: Vec<LogicalCpu>,
    /// CPU time that the control groups allow per wall-clock time, in CPUs.
    pub quota: Option<f64>,
}

/// A logical CPU: a core, or a hardware thread of one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogicalCpu {
    /// The system's number of this CPU.
    pub id: usize,
    /// The lowest number among the CPUs that share this core; [`id`](Self::id) itself unless
    /// the core runs several threads.
    pub core: usize,
    /// The kernel's measure of speed, 1024 for the fastest core of the machine.
    pub capacity: Option<u32>,
    /// Highest clock rate in kHz.
    pub max_khz: Option<u64>,
    /// Whether this process's affinity mask includes it.
    pub allowed: bool,
}

/// Cores of one speed class.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// Numbers of the logical CPUs.
    pub cpus: Vec<usize>,
    /// The kernel's measure of speed, 1024 for the fastest core of the machine.
    pub capacity: Option<u32>,
    /// Highest clock rate in kHz.
    pub max_khz: Option<u64>,
}

/// A core counts as big from this part of the fastest core's capacity on. Little cores are at
/// 15-45 %; the second class of three-class phones is at 75-95 %.
const BIG_CAPACITY: f64 = 0.6;
/// The same for clock rates, which differ less than speed: 60-78 % for little cores (RK3399,
/// RK3588, hybrid x86), 85 % and more for the second class of three.
const BIG_CLOCK: f64 = 0.8;

impl Cpu {
    /// Reads the machine's CPUs and the limits on using them.
    pub fn probe() -> Self {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let mut cpu = linux::probe(&super::files::Os);
        #[cfg(target_vendor = "apple")]
        let mut cpu = super::apple::cpu();
        #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
        let mut cpu = Self::default();
        if cpu.logical.is_empty() {
            let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            cpu.logical = (0..count).map(LogicalCpu::unknown).collect();
        }
        cpu
    }

    /// Returns the logical CPUs that this process may use.
    pub fn allowed(&self) -> impl Iterator<Item = &LogicalCpu> {
        self.logical.iter().filter(|cpu| cpu.allowed)
    }

    /// Returns the number of physical cores.
    pub fn physical_cores(&self) -> usize {
        count_cores(self.logical.iter())
    }

    /// Returns the speed classes, fastest first; one on a uniform machine.
    pub fn clusters(&self) -> Vec<Cluster> {
        let mut clusters: Vec<Cluster> = Vec::new();
        for cpu in &self.logical {
            let same = |c: &&mut Cluster| c.capacity == cpu.capacity && c.max_khz == cpu.max_khz;
            match clusters.iter_mut().find(same) {
                Some(cluster) => cluster.cpus.push(cpu.id),
                None => clusters.push(Cluster {
                    cpus: vec![cpu.id],
                    capacity: cpu.capacity,
                    max_khz: cpu.max_khz,
                }),
            }
        }
        clusters.sort_by_key(|c| std::cmp::Reverse((c.capacity, c.max_khz)));
        clusters
    }

    /// Returns the big cores' logical CPUs: those about as fast as the fastest, so all on a
    /// uniform machine.
    pub fn big(&self) -> Vec<&LogicalCpu> {
        self.logical.iter().filter(|cpu| self.is_big(cpu)).collect()
    }

    /// Returns the little cores' logical CPUs; none on a uniform machine.
    pub fn little(&self) -> Vec<&LogicalCpu> {
        self.logical.iter().filter(|cpu| !self.is_big(cpu)).collect()
    }

    /// Returns the number of threads to compute with: one for each big core that this process
    /// may use, at most the CPU time that its control groups allow, at least 1.
    ///
    /// A little core or a second thread on a core makes all others wait at each barrier.
    pub fn default_threads(&self) -> usize {
        let big = count_cores(self.allowed().filter(|cpu| self.is_big(cpu)));
        let cores = if big > 0 { big } else { count_cores(self.allowed()) };
        let quota = self.quota.map_or(usize::MAX, |cpus| cpus.ceil() as usize);
        cores.min(quota).max(1)
    }

    fn is_big(&self, cpu: &LogicalCpu) -> bool {
        // Capacity accounts for what a core does in a cycle, the clock rate does not: on some
        // boards the little cores have the higher one.
        let by_capacity = part_of_max(cpu, &self.logical, |cpu| cpu.capacity.map(f64::from));
        if let Some(part) = by_capacity {
            return part >= BIG_CAPACITY;
        }
        let by_clock = part_of_max(cpu, &self.logical, |cpu| cpu.max_khz.map(|khz| khz as f64));
        by_clock.is_none_or(|part| part >= BIG_CLOCK)
    }
}

impl LogicalCpu {
    /// A CPU of which only the number is known.
    pub(super) fn unknown(id: usize) -> Self {
        Self { id, core: id, capacity: None, max_khz: None, allowed: true }
    }
}

/// Returns `cpu`'s measure relative to the largest; `None` unless all CPUs have the measure.
fn part_of_max(
    cpu: &LogicalCpu,
    all: &[LogicalCpu],
    measure: impl Fn(&LogicalCpu) -> Option<f64>,
) -> Option<f64> {
    let max = all.iter().map(&measure).try_fold(0.0, |max: f64, m| Some(max.max(m?)))?;
    (max > 0.0).then_some(measure(cpu)? / max)
}

fn count_cores<'a>(cpus: impl Iterator<Item = &'a LogicalCpu>) -> usize {
    let mut cores: Vec<usize> = cpus.map(|cpu| cpu.core).collect();
    cores.sort_unstable();
    cores.dedup();
    cores.len()
}

#[cfg(any(target_os = "linux", target_os = "android", test))]
mod linux {
    use super::{Cpu, LogicalCpu};
    use crate::machine::files::{Files, read_value};
    use crate::machine::{cgroup, cpulist};

    const CPUS: &str = "/sys/devices/system/cpu";

    pub(super) fn probe(files: &dyn Files) -> Cpu {
        let cpuinfo = files.read("/proc/cpuinfo").unwrap_or_default();
        let online = files
            .read(&format!("{CPUS}/online"))
            .and_then(|text| cpulist::parse(&text))
            .unwrap_or_else(|| processors(&cpuinfo));
        // The affinity mask of the main thread, as taskset or a cpuset set it.
        let allowed = files.read("/proc/self/status").and_then(|status| {
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            cpulist::parse(list)
        });
        let logical = online
            .into_iter()
            .map(|id| LogicalCpu {
                id,
                core: core(files, id),
                capacity: read_value(files, &format!("{CPUS}/cpu{id}/cpu_capacity")),
                max_khz: read_value(files, &format!("{CPUS}/cpu{id}/cpufreq/cpuinfo_max_freq")),
                allowed: allowed.as_ref().is_none_or(|list| list.contains(&id)),
            })
            .collect();
        Cpu { name: name(&cpuinfo), logical, quota: cgroup::limits(files).cpus }
    }

    /// Returns the lowest CPU number on the core of CPU `id`.
    fn core(files: &dyn Files, id: usize) -> usize {
        ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| files.read(&format!("{CPUS}/cpu{id}/topology/{name}")))
            .and_then(|text| cpulist::parse(&text)?.first().copied())
            .unwrap_or(id)
    }

    /// Returns the values of all `key : value` lines with this key.
    fn values<'a>(cpuinfo: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
        cpuinfo.lines().filter_map(move |line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim())
        })
    }

    fn processors(cpuinfo: &str) -> Vec<usize> {
        values(cpuinfo, "processor").filter_map(|value| value.parse().ok()).collect()
    }

    /// Names the CPU: x86 and RISC-V kernels tell a name, ARM's only tell the cores' kinds.
    fn name(cpuinfo: &str) -> Option<String> {
        if let Some(name) = values(cpuinfo, "model name").find(|name| !name.is_empty()) {
            // 32-bit ARM kernels put the architecture here.
            if !name.starts_with("ARMv") && !name.starts_with("AArch64") {
                return Some(name.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        let mut kinds: Vec<(String, usize)> = Vec::new();
        let implementers = values(cpuinfo, "CPU implementer");
        for (implementer, part) in implementers.zip(values(cpuinfo, "CPU part")) {
            let kind = arm_core(implementer, part);
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        if kinds.is_empty() {
            return values(cpuinfo, "uarch").next().map(str::to_owned);
        }
        let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count}x {kind}")).collect();
        Some(kinds.join(" + "))
    }

    /// Names an ARM core by the implementer and part numbers of its main ID register.
    fn arm_core(implementer: &str, part: &str) -> String {
        let known = match (implementer, part) {
            ("0x41", "0xc07") => "Cortex-A7",
            ("0x41", "0xc0f") => "Cortex-A15",
            ("0x41", "0xd03") => "Cortex-A53",
            ("0x41", "0xd04") => "Cortex-A35",
            ("0x41", "0xd05") => "Cortex-A55",
            ("0x41", "0xd07") => "Cortex-A57",
            ("0x41", "0xd08") => "Cortex-A72",
            ("0x41", "0xd09") => "Cortex-A73",
            ("0x41", "0xd0a") => "Cortex-A75",
            ("0x41", "0xd0b") => "Cortex-A76",
            ("0x41", "0xd0c") => "Neoverse-N1",
            ("0x41", "0xd0d") => "Cortex-A77",
            ("0x41", "0xd40") => "Neoverse-V1",
            ("0x41", "0xd41") => "Cortex-A78",
            ("0x41", "0xd44") => "Cortex-X1",
            ("0x41", "0xd46") => "Cortex-A510",
            ("0x41", "0xd47") => "Cortex-A710",
            ("0x41", "0xd48") => "Cortex-X2",
            ("0x41", "0xd49") => "Neoverse-N2",
            ("0x41", "0xd4d") => "Cortex-A715",
            ("0x41", "0xd4e") => "Cortex-X3",
            ("0x41", "0xd4f") => "Neoverse-V2",
            ("0x41", "0xd80") => "Cortex-A520",
            ("0x41", "0xd81") => "Cortex-A720",
            ("0x41", "0xd82") => "Cortex-X4",
            ("0x41", "0xd85") => "Cortex-X925",
            ("0x41", "0xd87") => "Cortex-A725",
            _ => return format!("ARM core {implementer}/{part}"),
        };
        known.to_owned()
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::machine::files::fixture::Fixture;

        /// `cores`: capacity and clock of each CPU; the ARM part number of each.
        fn arm(cores: &[(Option<u32>, u64, &str)]) -> Fixture {
            let mut files = Fixture::default()
                .with("/sys/devices/system/cpu/online", format!("0-{}\n", cores.len() - 1));
            let mut cpuinfo = String::new();
            for (id, (capacity, khz, part)) in cores.iter().enumerate() {
                let folder = format!("/sys/devices/system/cpu/cpu{id}");
                if let Some(capacity) = capacity {
                    files = files.with(&format!("{folder}/cpu_capacity"), format!("{capacity}\n"));
                }
                files = files
                    .with(&format!("{folder}/cpufreq/cpuinfo_max_freq"), format!("{khz}\n"))
                    .with(&format!("{folder}/topology/thread_siblings_list"), format!("{id}\n"));
                cpuinfo += &format!(
                    "processor\t: {id}\nBogoMIPS\t: 48.00\nCPU implementer\t: 0x41\n\
                     CPU architecture: 8\nCPU variant\t: 0x2\nCPU part\t: {part}\n\n"
                );
            }
            files.with("/proc/cpuinfo", cpuinfo)
        }

        fn ids(cpus: &[&LogicalCpu]) -> Vec<usize> {
            cpus.iter().map(|cpu| cpu.id).collect()
        }

        #[test]
        fn tv_box_with_four_equal_cores() {
            let cpu = probe(&arm(&[(Some(1024), 2_500_000, "0xd05"); 4]));
            assert_eq!(cpu.name.as_deref(), Some("4x Cortex-A55"));
            assert_eq!((cpu.physical_cores(), cpu.default_threads()), (4, 4));
            assert!(cpu.little().is_empty());
            assert_eq!(cpu.clusters().len(), 1);
        }

        #[test]
        fn phone_with_two_classes() {
            let mut cores = vec![(Some(384), 1_800_000, "0xd05"); 6];
            cores.extend([(Some(1024), 2_200_000, "0xd0b"); 2]);
            let cpu = probe(&arm(&cores));
            assert_eq!(cpu.name.as_deref(), Some("6x Cortex-A55 + 2x Cortex-A76"));
            assert_eq!(ids(&cpu.big()), [6, 7]);
            assert_eq!(ids(&cpu.little()), [0, 1, 2, 3, 4, 5]);
            assert_eq!(cpu.default_threads(), 2);
            let clusters = cpu.clusters();
            assert_eq!(clusters.len(), 2);
            assert_eq!((&clusters[0].cpus[..], clusters[0].capacity), (&[6, 7][..], Some(1024)));
        }

        #[test]
        fn phone_with_three_classes() {
            let mut cores = vec![(Some(250), 1_804_800, "0xd05"); 4];
            cores.extend([(Some(870), 2_419_200, "0xd0d"); 3]);
            cores.push((Some(1024), 2_841_600, "0xd0d"));
            let cpu = probe(&arm(&cores));
            assert_eq!(ids(&cpu.big()), [4, 5, 6, 7]);
            assert_eq!(cpu.clusters().len(), 3);
        }

        #[test]
        fn classes_by_clock_where_the_kernel_tells_no_capacity() {
            let mut rk3588 = vec![(None, 1_800_000, "0xd05"); 4];
            rk3588.extend([(None, 2_400_000, "0xd0b"); 4]);
            assert_eq!(probe(&arm(&rk3588)).default_threads(), 4);

            let mut three = vec![(None, 1_785_600, "0xd05"); 4];
            three.extend([(None, 2_419_200, "0xd0d"); 3]);
            three.push((None, 2_841_600, "0xd0d"));
            assert_eq!(probe(&arm(&three)).default_threads(), 4);
        }

        #[test]
        fn little_cores_with_the_higher_clock() {
            // Amlogic S922X: 2x Cortex-A53 at 1.9 GHz, 4x Cortex-A73 at 1.8 GHz.
            let mut cores = vec![(Some(592), 1_896_000, "0xd03"); 2];
            cores.extend([(Some(1024), 1_800_000, "0xd09"); 4]);
            assert_eq!(ids(&probe(&arm(&cores)).big()), [2, 3, 4, 5]);
        }

        #[test]
        fn affinity_without_a_big_core_uses_the_little_ones() {
            let mut cores = vec![(Some(384), 1_800_000, "0xd05"); 4];
            cores.extend([(Some(1024), 2_200_000, "0xd0b"); 4]);
            let files = arm(&cores).with("/proc/self/status", "Cpus_allowed_list:\t0-2\n");
            let cpu = probe(&files);
            assert_eq!(cpu.allowed().count(), 3);
            assert_eq!(cpu.default_threads(), 3);
            let files = arm(&cores).with("/proc/self/status", "Cpus_allowed_list:\t3-5\n");
            assert_eq!(probe(&files).default_threads(), 2);
        }

        /// Two cores of two threads each.
        fn x86() -> Fixture {
            let mut files = Fixture::default()
                .with("/sys/devices/system/cpu/online", "0-3\n")
                .with("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Intel(R)  Core(TM) i5\n");
            for id in 0..4 {
                files = files.with(
                    &format!("/sys/devices/system/cpu/cpu{id}/topology/core_cpus_list"),
                    format!("{},{}\n", id % 2, id % 2 + 2),
                );
            }
            files
        }

        #[test]
        fn x86_counts_cores_and_not_threads() {
            let cpu = probe(&x86());
            assert_eq!(cpu.name.as_deref(), Some("Intel(R) Core(TM) i5"));
            assert_eq!((cpu.logical.len(), cpu.physical_cores()), (4, 2));
            assert_eq!(cpu.default_threads(), 2);
        }

        #[test]
        fn quota_of_the_control_group_limits_threads() {
            let files = x86()
                .with("/proc/self/cgroup", "0::/\n")
                .with("/proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n")
                .with("/cg/cpu.max", "20000 100000\n");
            let cpu = probe(&files);
            assert_eq!(cpu.quota, Some(0.2));
            assert_eq!(cpu.default_threads(), 1);
        }

        #[test]
        fn without_sysfs_the_processors_are_counted() {
            let cpuinfo = "processor : 0\nprocessor : 1\nCPU implementer : 0x51\nCPU part : 0x1\n";
            let cpu = probe(&Fixture::default().with("/proc/cpuinfo", cpuinfo));
            assert_eq!(cpu.logical.len(), 2);
            assert_eq!(cpu.name.as_deref(), Some("1x ARM core 0x51/0x1"));
            assert_eq!(probe(&Fixture::default()), Cpu::default());
        }

        #[test]
        fn arm_kernels_that_put_the_architecture_in_the_name() {
            let text = "processor : 0\nmodel name : ARMv7 Processor rev 4 (v7l)\n\
                CPU implementer : 0x41\nCPU part : 0xc07\n";
            assert_eq!(name(text).as_deref(), Some("1x Cortex-A7"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_tells_nothing_runs_one_thread() {
        assert_eq!(Cpu::default().default_threads(), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc and /sys")]
    fn this_machine() {
        let cpu = Cpu::probe();
        let parallelism = std::thread::available_parallelism().unwrap().get();
        assert!(cpu.allowed().count() >= 1);
        assert!(cpu.physical_cores() <= cpu.logical.len());
        assert!(cpu.default_threads() <= parallelism);
        assert_eq!(cpu.big().len() + cpu.little().len(), cpu.logical.len());
    }
}

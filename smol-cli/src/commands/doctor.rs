//! `smol doctor`: what this machine offers, and what that is enough for.

use crate::cache::Cache;
use crate::catalogue::Catalogue;
use crate::cli::Global;
use crate::report::print;
use crate::speeds::{DiskSpeed, RamSpeed, SpeedFile};
use crate::units::bytes;
use anyhow::Result;
use serde::Serialize;
use smol_engine::machine::{Cluster, Cpu, Machine, Memory, cpu_features};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Tell about this machine: cores, memory, disk speed, and which models fit
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a model needs beside its weights: program, context and work buffers of a small chat.
const BESIDE_WEIGHTS: u64 = 128 << 20;

#[derive(Serialize)]
struct Report {
    version: &'static str,
    build: BuildReport,
    cpu: CpuReport,
    memory: MemoryReport,
    disk: DiskReport,
    cache: PathBuf,
    models: Vec<ModelReport>,
}

#[derive(Serialize)]
struct BuildReport {
    llama_version: &'static str,
    llama_commit: &'static str,
    ggml_version: &'static str,
    target: &'static str,
    compiler: &'static str,
    /// Device that the build was made for; empty for none.
    cpu_preset: &'static str,
    /// Core that the kernels are scheduled for; empty for none.
    cpu_tune: &'static str,
    /// Lowest first.
    cpu_levels: Vec<LevelReport>,
    /// The level whose kernels run; none if this CPU cannot run the lowest one: models cannot be run then.
    cpu_level: Option<&'static str>,
    patch_set: &'static str,
    patches: Vec<PatchReport>,
}

#[derive(Serialize)]
struct LevelReport {
    name: &'static str,
    flags: &'static str,
    features: &'static [&'static str],
    /// Those of `features` that this CPU lacks.
    missing: Vec<&'static str>,
}

#[derive(Serialize)]
struct PatchReport {
    id: &'static str,
    file: &'static str,
    sha256: &'static str,
    applied: bool,
    purpose: &'static str,
}

#[derive(Serialize)]
struct CpuReport {
    name: Option<String>,
    logical: usize,
    physical: usize,
    big: Vec<usize>,
    little: Vec<usize>,
    clusters: Vec<ClusterReport>,
    allowed: usize,
    quota: Option<f64>,
    default_threads: usize,
    features: Vec<&'static str>,
}

#[derive(Serialize)]
struct ClusterReport {
    cpus: Vec<usize>,
    capacity: Option<u32>,
    max_mhz: Option<u64>,
}

/// Bytes.
#[derive(Serialize)]
struct MemoryReport {
    total: Option<u64>,
    available: Option<u64>,
    cgroup_limit: Option<u64>,
    address_space_limit: Option<u64>,
    usable: Option<u64>,
    /// MB (10^6 bytes) a second that the default number of threads reads.
    read_mb_s: f64,
}

#[derive(Serialize)]
struct DiskReport {
    folder: PathBuf,
    /// One read at a time.
    sequential_mb_s: Option<f64>,
    /// As many reads at once as weights are read with.
    parallel_mb_s: Option<f64>,
    random_mib_ms: Option<f64>,
    /// Whether the page cache was passed by.
    direct: Option<bool>,
    /// Why it was not, or why nothing could be measured.
    note: Option<String>,
}

#[derive(Serialize)]
struct ModelReport {
    name: String,
    size: u64,
    path: Option<PathBuf>,
    /// Estimate of the memory it takes, in bytes.
    needs: u64,
    /// `null` where the usable memory is unknown.
    fits: Option<bool>,
}

/// Examines the machine and prints the report.
pub fn run(args: &Args, global: &Global) -> Result<ExitCode> {
    let catalogue = global.catalogue()?;
    let cache = global.cache()?;
    let machine = Machine::probe();
    let usable = machine.memory.usable();
    let mut speeds = SpeedFile::open(global);
    let ram = RamSpeed::measure();
    speeds.put_ram(ram.clone());
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        build: build_report(),
        cpu: cpu_report(&machine.cpu),
        memory: memory_report(&machine.memory, &ram),
        disk: disk_report(cache.folder(), &mut speeds),
        cache: cache.folder().to_owned(),
        models: model_reports(&catalogue, &cache, usable),
    };
    print(args.json, &report, |out| write!(out, "{}", text(&report)))?;
    Ok(ExitCode::SUCCESS)
}

fn build_report() -> BuildReport {
    let build = smolmaxxing::build_info();
    let features = cpu_features();
    let level = |level: &smolmaxxing::CpuLevel| LevelReport {
        name: level.name,
        flags: level.flags,
        features: level.features,
        missing: level.features.iter().copied().filter(|name| !features.contains(name)).collect(),
    };
    let patch = |patch: &smolmaxxing::PatchInfo| PatchReport {
        id: patch.id,
        file: patch.file,
        sha256: patch.sha256,
        applied: patch.applied,
        purpose: patch.purpose,
    };
    BuildReport {
        llama_version: build.llama_version,
        llama_commit: build.llama_commit,
        ggml_version: build.ggml_version,
        target: build.target,
        compiler: build.compiler,
        cpu_preset: build.cpu_preset,
        cpu_tune: build.cpu_tune,
        cpu_levels: build.cpu_levels.iter().map(level).collect(),
        cpu_level: smolmaxxing::cpu::check().ok().map(|level| level.name),
        patch_set: build.patch_set,
        patches: build.patches.iter().map(patch).collect(),
    }
}

fn cpu_report(cpu: &Cpu) -> CpuReport {
    let cluster = |cluster: Cluster| ClusterReport {
        cpus: cluster.cpus,
        capacity: cluster.capacity,
        max_mhz: cluster.max_khz.map(|khz| khz / 1000),
    };
    CpuReport {
        name: cpu.name.clone(),
        logical: cpu.logical.len(),
        physical: cpu.physical_cores(),
        big: cpu.big().iter().map(|cpu| cpu.id).collect(),
        little: cpu.little().iter().map(|cpu| cpu.id).collect(),
        clusters: cpu.clusters().into_iter().map(cluster).collect(),
        allowed: cpu.allowed().count(),
        quota: cpu.quota,
        default_threads: cpu.default_threads(),
        features: cpu_features(),
    }
}

fn memory_report(memory: &Memory, speed: &RamSpeed) -> MemoryReport {
    MemoryReport {
        total: memory.total,
        available: memory.available,
        cgroup_limit: memory.cgroup_limit,
        address_space_limit: memory.address_space_limit,
        usable: memory.usable(),
        read_mb_s: speed.mb_s,
    }
}

/// Measures the disk of the cache folder, or of the nearest folder above it that exists.
fn disk_report(cache: &Path, speeds: &mut SpeedFile) -> DiskReport {
    let folder = cache.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let folder = folder.to_owned();
    match DiskSpeed::measure(&folder) {
        Ok(speed) => {
            speeds.put_disk(&folder, speed.clone());
            DiskReport {
                folder,
                sequential_mb_s: Some(speed.sequential_mb_s),
                parallel_mb_s: Some(speed.parallel_mb_s),
                random_mib_ms: Some(speed.random_mib_ms),
                direct: Some(speed.direct),
                note: speed.note,
            }
        }
        Err(error) => DiskReport {
            folder,
            sequential_mb_s: None,
            parallel_mb_s: None,
            random_mib_ms: None,
            direct: None,
            note: Some(format!("{error:#}")),
        },
    }
}

fn model_reports(catalogue: &Catalogue, cache: &Cache, usable: Option<u64>) -> Vec<ModelReport> {
    catalogue
        .models
        .iter()
        .map(|entry| {
            let needs = entry.size + BESIDE_WEIGHTS;
            ModelReport {
                name: entry.name.clone(),
                size: entry.size,
                path: cache.find(entry),
                needs,
                fits: usable.map(|usable| needs <= usable),
            }
        })
        .collect()
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:16} {value}");
    };
    let build = &report.build;
    line("smol", &format!("{} for {}", report.version, build.target));
    line("llama.cpp", &format!("{} ({})", build.llama_version, build.llama_commit));
    line("  compiler", build.compiler);
    match (build.cpu_preset, build.cpu_tune) {
        ("", _) => {}
        (preset, "") => line("  preset", preset),
        (preset, tune) => line("  preset", &format!("{preset}, tuned for {tune}")),
    }
    for level in &build.cpu_levels {
        let state = match (build.cpu_level == Some(level.name), level.missing.is_empty()) {
            (true, _) => "in use".to_owned(),
            (false, true) => "not used: a higher one is".to_owned(),
            (false, false) => format!("this CPU lacks {}", level.missing.join(" ")),
        };
        line("  cpu level", &format!("{} ({state})", level.name));
    }
    for patch in &build.patches {
        let state = if patch.applied { "applied" } else { "left out" };
        line("  patch", &format!("{} ({state}): {}", patch.id, patch.purpose));
    }
    if build.cpu_level.is_none() {
        line("  FAULT", "this CPU runs none of the levels: rebuild for this machine");
    }
    let cpu = &report.cpu;
    line("cpu", cpu.name.as_deref().unwrap_or("unknown"));
    line("cores", &format!("{} physical, {} logical CPUs", cpu.physical, cpu.logical));
    if !cpu.little.is_empty() {
        line("  big", &list(&cpu.big));
        line("  little", &list(&cpu.little));
    }
    if cpu.allowed < cpu.logical {
        line("  allowed", &format!("{} logical CPUs (affinity)", cpu.allowed));
    }
    if let Some(quota) = cpu.quota {
        line("  quota", &format!("{quota:.2} CPUs (control group)"));
    }
    line("threads", &format!("{} by default", cpu.default_threads));
    line("features", &cpu.features.join(" "));
    let memory = &report.memory;
    let known = |value: Option<u64>| value.map_or("unknown".to_owned(), bytes);
    line("memory", &format!("{}, {} usable", known(memory.total), known(memory.usable)));
    line("  speed", &format!("{:.1} GB/s read", memory.read_mb_s / 1e3));
    if let Some(limit) = memory.cgroup_limit {
        line("  limit", &format!("{} (control group)", bytes(limit)));
    }
    if let Some(limit) = memory.address_space_limit {
        line("  limit", &format!("{} (address space)", bytes(limit)));
    }
    line("disk", &report.disk.text());
    line("models in", &report.cache.display().to_string());
    for model in &report.models {
        let state = if model.path.is_some() { "fetched" } else { "not fetched" };
        let fit = match model.fits {
            Some(true) => "fits".to_owned(),
            Some(false) => format!("does not fit: needs about {}", bytes(model.needs)),
            None => format!("needs about {}", bytes(model.needs)),
        };
        line("", &format!("{} ({}, {state}): {fit}", model.name, bytes(model.size)));
    }
    text
}

impl DiskReport {
    fn text(&self) -> String {
        let folder = self.folder.display();
        match (self.sequential_mb_s, self.parallel_mb_s, self.random_mib_ms) {
            (Some(sequential), Some(parallel), Some(random)) => {
                let speed = format!(
                    "{sequential:.0} MB/s in order, {parallel:.0} with several reads at once, {random:.2} ms a random MiB \
                     ({folder})"
                );
                match &self.note {
                    Some(note) => format!("{speed}; through the page cache: {note}"),
                    None => speed,
                }
            }
            _ => format!("not measured: {}", self.note.as_deref().unwrap_or_default()),
        }
    }
}

fn list(cpus: &[usize]) -> String {
    let cpus: Vec<_> = cpus.iter().map(ToString::to_string).collect();
    format!("CPU {}", cpus.join(", "))
}

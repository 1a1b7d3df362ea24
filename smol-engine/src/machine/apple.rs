//! Probes of Apple systems, by sysctl and process information calls.

use super::cpu::{Cpu, LogicalCpu};
use std::ffi::CStr;

/// Reads the cores; performance levels give the speed classes (level 0 is the fastest).
pub(super) fn cpu() -> Cpu {
    let mut logical = Vec::new();
    let levels = sysctl_u32(c"hw.nperflevels").unwrap_or(1).min(2);
    for level in 0..levels {
        let (count, capacity) = match level {
            0 => (sysctl_u32(c"hw.perflevel0.logicalcpu"), 1024),
            // The system tells only the order of the levels; the number marks "little".
            _ => (sysctl_u32(c"hw.perflevel1.logicalcpu"), 256),
        };
        for _ in 0..count.unwrap_or(0) {
            let cpu = LogicalCpu::unknown(logical.len());
            logical.push(LogicalCpu { capacity: Some(capacity), ..cpu });
        }
    }
    if logical.is_empty() {
        let count = sysctl_u32(c"hw.logicalcpu").unwrap_or(0) as usize;
        let cores = sysctl_u32(c"hw.physicalcpu").unwrap_or(0).max(1) as usize;
        let threads_per_core = count.div_ceil(cores).max(1);
        logical.extend(
            (0..count).map(|id| LogicalCpu {
                core: id - id % threads_per_core,
                ..LogicalCpu::unknown(id)
            }),
        );
    }
    Cpu { name: sysctl_string(c"machdep.cpu.brand_string"), logical, quota: None }
}

/// Returns the RAM of the machine in bytes.
pub(super) fn memory_total() -> Option<u64> {
    let mut bytes = [0; 8];
    (sysctl(c"hw.memsize", &mut bytes)? == 8).then(|| u64::from_ne_bytes(bytes))
}

/// Returns the largest resident set of this process in bytes.
pub(super) fn peak_rss() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: getrusage writes one rusage to the pointer, which has room for one.
    let code = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    if code != 0 {
        return None;
    }
    // SAFETY: getrusage returned 0, so it has filled the structure.
    let usage = unsafe { usage.assume_init() };
    // Bytes here, unlike elsewhere.
    u64::try_from(usage.ru_maxrss).ok()
}

/// Returns the bytes that this process has had read from disk; iOS does not offer that.
#[cfg(target_os = "macos")]
pub(super) fn bytes_read_from_disk() -> Option<u64> {
    usage().map(|usage| usage.ri_diskio_bytesread)
}

/// Returns the resident set of this process in bytes; iOS does not offer that.
#[cfg(target_os = "macos")]
pub(super) fn rss() -> Option<u64> {
    usage().map(|usage| usage.ri_resident_size)
}

/// What this process has used.
#[cfg(target_os = "macos")]
fn usage() -> Option<libc::rusage_info_v2> {
    let mut info = std::mem::MaybeUninit::<libc::rusage_info_v2>::uninit();
    let pid = i32::try_from(std::process::id()).ok()?;
    // SAFETY: with RUSAGE_INFO_V2 the call writes one rusage_info_v2 (libproc.h), and the
    // pointer has room for one; the parameter's type is an opaque pointer by convention.
    let code =
        unsafe { libc::proc_pid_rusage(pid, libc::RUSAGE_INFO_V2, info.as_mut_ptr().cast()) };
    if code != 0 {
        return None;
    }
    // SAFETY: the call returned 0, so it has filled the structure.
    Some(unsafe { info.assume_init() })
}

fn sysctl_u32(name: &CStr) -> Option<u32> {
    let mut bytes = [0; 4];
    (sysctl(name, &mut bytes)? == 4).then(|| u32::from_ne_bytes(bytes))
}

fn sysctl_string(name: &CStr) -> Option<String> {
    let mut bytes = [0; 256];
    let len = sysctl(name, &mut bytes)?;
    let text = CStr::from_bytes_until_nul(&bytes[..len]).ok()?.to_str().ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// Reads the value of `name` into `buffer` and returns its length; `None` if there is no such
/// value or it does not fit.
fn sysctl(name: &CStr, buffer: &mut [u8]) -> Option<usize> {
    let mut len = buffer.len();
    // SAFETY: sysctlbyname writes at most `len` bytes to the buffer, which has that many, and
    // the written length to `len`; the name is a C string; no new value is set.
    let code = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            buffer.as_mut_ptr().cast(),
            &raw mut len,
            std::ptr::null_mut(),
            0,
        )
    };
    (code == 0).then_some(len)
}

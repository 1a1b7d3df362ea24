//! Our backend registry behaves as upstream's with the CPU backend inside, and loads nothing from disk.
//!
//! One process has one registry, so that what changes it is one test here, in order.

use ggml_sys::*;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::fs;
use std::path::Path;
use std::ptr::{self, null, null_mut};
use std::sync::{Barrier, Mutex};

/// Names and addresses: a function that our registry does not define does not link.
macro_rules! addresses {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), $name as *const () as usize)),*] };
}

#[test]
fn everything_that_the_replaced_files_define_is_linked() {
    let ours = addresses![
        ggml_backend_register,
        ggml_backend_device_register,
        ggml_backend_reg_count,
        ggml_backend_reg_get,
        ggml_backend_reg_by_name,
        ggml_backend_dev_count,
        ggml_backend_dev_get,
        ggml_backend_dev_by_name,
        ggml_backend_dev_by_type,
        ggml_backend_init_by_name,
        ggml_backend_init_by_type,
        ggml_backend_init_best,
        ggml_backend_load,
        ggml_backend_unload,
        ggml_backend_load_all,
        ggml_backend_load_all_from_path,
    ];
    assert!(ours.iter().all(|(_, address)| *address != 0));
    let ours: BTreeSet<String> = ours.iter().map(|(name, _)| (*name).to_owned()).collect();
    let source = Path::new(env!("GGML_SYS_TREE")).join("ggml/src/ggml-backend-reg.cpp");
    let text = fs::read_to_string(&source).expect("the tree has upstream's registry");
    // Definitions start in the first column; what is static stays inside the file.
    let upstream: BTreeSet<String> = text
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.ends_with('{'))
        .filter(|line| !line.starts_with("static"))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(head, _)| head.split([' ', '*']).next_back())
        .map(str::to_owned)
        .collect();
    assert_eq!(ours, upstream);
}

fn text<'a>(s: *const c_char) -> &'a str {
    assert!(!s.is_null());
    // SAFETY: names of backends and devices are static, NUL-terminated strings (ggml-cpu.cpp:353, :514).
    unsafe { CStr::from_ptr(s) }.to_str().expect("names are ASCII")
}

fn reg_name(reg: ggml_backend_reg_t) -> &'static str {
    // SAFETY: `reg` comes from the registry (ggml-backend.h:205).
    text(unsafe { ggml_backend_reg_name(reg) })
}

fn device(name: &CStr) -> ggml_backend_dev_t {
    // SAFETY: `name` is NUL-terminated and only compared (ggml-backend.h:248).
    unsafe { ggml_backend_dev_by_name(name.as_ptr()) }
}

fn devices() -> Vec<ggml_backend_dev_t> {
    // SAFETY: no precondition (ggml-backend.h:246).
    let n = unsafe { ggml_backend_dev_count() };
    // SAFETY: the index is below the count (ggml-backend.h:247).
    (0..n).map(|i| unsafe { ggml_backend_dev_get(i) }).collect()
}

/// Names of all devices, in order.
fn device_names() -> Vec<&'static str> {
    // SAFETY: the devices come from the registry (ggml-backend.h:186).
    devices().into_iter().map(|dev| text(unsafe { ggml_backend_dev_name(dev) })).collect()
}

fn by_type(kind: ggml_backend_dev_type) -> ggml_backend_dev_t {
    // SAFETY: no precondition (ggml-backend.h:249).
    unsafe { ggml_backend_dev_by_type(kind) }
}

/// Frees a backend that must exist, after looking at the device that it runs on.
fn check_backend(backend: ggml_backend_t, dev: ggml_backend_dev_t) {
    assert!(!backend.is_null());
    // SAFETY: checked above (ggml-backend.h:123).
    assert_eq!(unsafe { ggml_backend_get_device(backend) }, dev);
    // SAFETY: made by the caller, freed once (ggml-backend.h:82).
    unsafe { ggml_backend_free(backend) };
}

static LOG: Mutex<String> = Mutex::new(String::new());

unsafe extern "C" fn keep(_: ggml_log_level, line: *const c_char, _: *mut std::ffi::c_void) {
    // SAFETY: ggml passes a NUL-terminated string that lives during the call (ggml.c:296).
    let line = unsafe { CStr::from_ptr(line) };
    LOG.lock().expect("no panic while it is held").push_str(&line.to_string_lossy());
}

#[test]
fn behaves_as_upstream() {
    // The first use of the process, from many threads: one backend, one device, the same for all.
    let start = Barrier::new(16);
    let seen: BTreeSet<_> = std::thread::scope(|scope| {
        let look = || {
            start.wait();
            // SAFETY: no precondition (ggml-backend.h:241).
            let n = unsafe { ggml_backend_reg_count() };
            (n, devices().len(), by_type(GGML_BACKEND_DEVICE_TYPE_CPU).addr())
        };
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(look)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let cpu = by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    assert!(!cpu.is_null());
    assert_eq!(seen, BTreeSet::from([(1, 1, cpu.addr())]));
    assert_eq!(device_names(), ["CPU"]);

    // Names, in any case.
    // SAFETY: index 0 is below the count, as seen above (ggml-backend.h:242).
    let cpu_reg = unsafe { ggml_backend_reg_get(0) };
    assert_eq!(reg_name(cpu_reg), "CPU");
    for name in [c"CPU", c"cpu"] {
        // SAFETY: NUL-terminated, only compared (ggml-backend.h:243).
        assert_eq!(unsafe { ggml_backend_reg_by_name(name.as_ptr()) }, cpu_reg);
        assert_eq!(device(name), cpu);
    }
    for name in [c"", c"CP", c"CPU0", c"CUDA0"] {
        // SAFETY: as above.
        assert!(unsafe { ggml_backend_reg_by_name(name.as_ptr()) }.is_null());
        assert!(device(name).is_null());
        // SAFETY: as above; no parameters (ggml-backend.h:253).
        assert!(unsafe { ggml_backend_init_by_name(name.as_ptr(), null()) }.is_null());
    }
    // SAFETY: our registry takes NULL for a name that nothing has.
    assert!(unsafe { ggml_backend_dev_by_name(null()) }.is_null());

    // Types, and what they start.
    for kind in [
        GGML_BACKEND_DEVICE_TYPE_GPU,
        GGML_BACKEND_DEVICE_TYPE_IGPU,
        GGML_BACKEND_DEVICE_TYPE_ACCEL,
        GGML_BACKEND_DEVICE_TYPE_META,
    ] {
        assert!(by_type(kind).is_null());
        // SAFETY: no parameters (ggml-backend.h:255).
        assert!(unsafe { ggml_backend_init_by_type(kind, null()) }.is_null());
    }
    // SAFETY: no parameters (ggml-backend.h:253).
    check_backend(unsafe { ggml_backend_init_by_name(c"cpu".as_ptr(), null()) }, cpu);
    // SAFETY: no parameters (ggml-backend.h:255).
    check_backend(unsafe { ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, null()) }, cpu);
    // SAFETY: no precondition (ggml-backend.h:257).
    check_backend(unsafe { ggml_backend_init_best() }, cpu);

    nothing_is_loaded_from_disk();
    what_a_program_registers_comes_last(cpu_reg, cpu);
}

fn nothing_is_loaded_from_disk() {
    // SAFETY: `keep` lives as long as the program and takes any line (ggml.h:2965).
    unsafe { ggml_log_set(Some(keep), null_mut()) };
    // SAFETY: NUL-terminated (ggml-backend.h:260).
    assert!(unsafe { ggml_backend_load(c"libggml-cuda.so".as_ptr()) }.is_null());
    // SAFETY: our registry takes NULL.
    assert!(unsafe { ggml_backend_load(null()) }.is_null());
    // SAFETY: the default of upstream (ggml.h:2965).
    unsafe { ggml_log_set(None, null_mut()) };
    let log = LOG.lock().expect("no panic while it is held").clone();
    assert!(log.starts_with("ggml_backend_load: libggml-cuda.so is not loaded"), "{log}");
    assert_eq!(log.lines().count(), 2, "{log}");

    // SAFETY: no precondition (ggml-backend.h:264).
    unsafe { ggml_backend_load_all() };
    // SAFETY: NUL-terminated (ggml-backend.h:265).
    unsafe { ggml_backend_load_all_from_path(c"/".as_ptr()) };
    // SAFETY: NULL stands for the default folders (ggml-backend.h:265).
    unsafe { ggml_backend_load_all_from_path(null()) };
    assert_eq!(device_names(), ["CPU"]);
}

/// The layout of `ggml_backend_reg` (ggml-backend-impl.h:251): a backend that a program brings along.
#[repr(C)]
struct OwnBackend {
    api_version: i32,
    get_name: extern "C" fn(*const OwnBackend) -> *const c_char,
    get_device_count: extern "C" fn(*const OwnBackend) -> usize,
    get_device: extern "C" fn(*const OwnBackend, usize) -> ggml_backend_dev_t,
    get_proc_address: *const (),
    context: *const (),
}

// SAFETY: never changed; the pointers are null.
unsafe impl Sync for OwnBackend {}

extern "C" fn own_name(_: *const OwnBackend) -> *const c_char {
    c"Own".as_ptr()
}

/// The CPU's own device again: one that the registry already has.
extern "C" fn one_device(_: *const OwnBackend) -> usize {
    1
}

extern "C" fn cpu_device(_: *const OwnBackend, _: usize) -> ggml_backend_dev_t {
    by_type(GGML_BACKEND_DEVICE_TYPE_CPU)
}

static OWN: OwnBackend = OwnBackend {
    api_version: 3,
    get_name: own_name,
    get_device_count: one_device,
    get_device: cpu_device,
    get_proc_address: null(),
    context: null(),
};

fn reg_names() -> Vec<&'static str> {
    // SAFETY: no precondition (ggml-backend.h:241).
    let n = unsafe { ggml_backend_reg_count() };
    // SAFETY: the index is below the count (ggml-backend.h:242).
    (0..n).map(|i| reg_name(unsafe { ggml_backend_reg_get(i) })).collect()
}

fn what_a_program_registers_comes_last(cpu_reg: ggml_backend_reg_t, cpu: ggml_backend_dev_t) {
    let own = ptr::from_ref(&OWN).cast_mut().cast();
    // SAFETY: NULL is left out (ggml-backend-reg.cpp:187).
    unsafe { ggml_backend_register(null_mut()) };
    for _ in 0..2 {
        // SAFETY: a backend of our own with upstream's layout that lives as long as the program (ggml-backend.h:236).
        unsafe { ggml_backend_register(own) };
        // SAFETY: the CPU device is registered already and stays so (ggml-backend.h:238).
        unsafe { ggml_backend_device_register(cpu) };
    }
    assert_eq!(reg_names(), ["CPU", "Own"]);
    assert_eq!(device_names(), ["CPU"]);

    // Taking one out leaves the other's devices alone; what is not there is ignored.
    for _ in 0..2 {
        // SAFETY: a known backend, then an unknown one (ggml-backend.h:262).
        unsafe { ggml_backend_unload(own) };
        assert_eq!(reg_names(), ["CPU"]);
        assert_eq!(devices(), [cpu]);
    }

    // The CPU backend goes with its device, does not come back by itself, and can be put back.
    // SAFETY: no backend object of it is alive (ggml-backend.h:262).
    unsafe { ggml_backend_unload(cpu_reg) };
    assert!(reg_names().is_empty() && devices().is_empty());
    // SAFETY: no precondition (ggml-backend.h:257).
    assert!(unsafe { ggml_backend_init_best() }.is_null());
    // SAFETY: the CPU backend is static (ggml-backend.h:236).
    unsafe { ggml_backend_register(cpu_reg) };
    assert_eq!(reg_names(), ["CPU"]);
    assert_eq!(devices(), [cpu]);
}

//! Threads that llama.cpp starts have enough stack, with every C library.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

use std::ffi::c_int;

/// `pthread_attr_t`: 56 bytes with glibc and musl, 64 on aarch64 with glibc.
#[repr(C, align(16))]
struct Attr([u8; 128]);

unsafe extern "C" {
    fn pthread_getattr_default_np(attr: *mut Attr) -> c_int;
    fn pthread_attr_getstacksize(attr: *const Attr, size: *mut usize) -> c_int;
}

#[test]
fn threads_have_two_mib_of_stack() {
    // SAFETY: takes nothing; registers the CPU backend (native/registry.cpp).
    assert!(unsafe { ggml_sys::ggml_backend_reg_count() } > 0);
    let mut attr = Attr([0; 128]);
    // SAFETY: writes a `pthread_attr_t`, for which there is room.
    assert_eq!(unsafe { pthread_getattr_default_np(&mut attr) }, 0);
    let mut size = 0;
    // SAFETY: reads what was written above, and writes a size.
    assert_eq!(unsafe { pthread_attr_getstacksize(&attr, &mut size) }, 0);
    assert!(size >= 2 << 20, "{size} bytes");
}

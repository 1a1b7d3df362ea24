//! Every CPU level of this build computes, and the first use of llama.cpp fixes the choice.

// Without the test harness: it runs itself once a level, since the first use of llama.cpp fixes the level of a process.
#![allow(clippy::print_stdout)]

fn main() {
    match std::env::args().nth(1) {
        Some(level) if level.starts_with("--level=") => compute(&level["--level=".len()..]),
        _ => every_level_that_this_cpu_has_computes_the_same_product(),
    }
}

fn every_level_that_this_cpu_has_computes_the_same_product() {
    let program = std::env::current_exe().expect("this program");
    let mut computed = 0;
    for level in ggml_sys::build_info().cpu_levels {
        let output = std::process::Command::new(&program)
            .arg(format!("--level={}", level.name))
            .output()
            .expect("a child process");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {text}{errors}", level.name);
        print!("{text}");
        computed += usize::from(text.contains("computed"));
    }
    assert!(computed > 0, "this CPU runs no level of this build");
    println!("test result: ok. {computed} levels computed");
}

fn compute(level: &str) {
    match ggml_sys::cpu::select(level) {
        Err(error) => {
            assert!(error.to_string().contains("lacks"), "{error}");
            println!("{level}: {error}");
        }
        Ok(selected) => {
            assert_eq!(selected.name, level);
            let rows = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]];
            assert_eq!(product(rows, [1.0, 0.0, -1.0, 2.0]), [6.0, 14.0]);
            assert_eq!(ggml_sys::cpu::selected().name, level);
            for other in
                ggml_sys::build_info().cpu_levels.iter().filter(|other| other.name != level)
            {
                let text = ggml_sys::cpu::select(other.name).expect_err("too late").to_string();
                assert!(text.contains("too late") || text.contains("lacks"), "{text}");
            }
            println!("{level}: computed");
        }
    }
}

/// A matrix times a vector, by ggml's CPU backend.
fn product(rows: [[f32; 4]; 2], x: [f32; 4]) -> [f32; 2] {
    use ggml_sys as sys;
    let params = sys::ggml_init_params {
        mem_size: 1 << 20,
        mem_buffer: std::ptr::null_mut(),
        no_alloc: true,
    };
    // SAFETY: each object below is made by the call before it and is used until the context is freed at the end
    // (ggml.h: ggml_init, ggml_new_tensor_2d, ggml_mul_mat, ggml_new_graph; ggml-backend.h: the buffer holds all tensors
    // of the context, set and get copy the given number of bytes).
    #[allow(clippy::multiple_unsafe_ops_per_block)]
    unsafe {
        assert_eq!(sys::smol_install(sys::SMOL_ABI_VERSION), sys::SMOL_OK);
        let context = sys::ggml_init(params);
        let a = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F32, 4, 2);
        let b = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F32, 4, 1);
        let c = sys::ggml_mul_mat(context, a, b);
        let backend =
            sys::ggml_backend_init_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU, std::ptr::null());
        let buffer = sys::ggml_backend_alloc_ctx_tensors(context, backend);
        sys::ggml_backend_tensor_set(a, rows.as_ptr().cast(), 0, 32);
        sys::ggml_backend_tensor_set(b, x.as_ptr().cast(), 0, 16);
        let graph = sys::ggml_new_graph(context);
        sys::ggml_build_forward_expand(graph, c);
        assert_eq!(sys::ggml_backend_graph_compute(backend, graph), sys::GGML_STATUS_SUCCESS);
        let mut y = [0f32; 2];
        sys::ggml_backend_tensor_get(c, y.as_mut_ptr().cast(), 0, 8);
        sys::ggml_backend_buffer_free(buffer);
        sys::ggml_backend_free(backend);
        sys::ggml_free(context);
        y
    }
}

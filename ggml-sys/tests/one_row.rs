//! Nodes of one row, which the overlay shares out among threads in its own way: the bits are those of upstream without
//! the overlay, for any number of threads, and nodes that only look alike are left to upstream.

use ggml_sys as sys;
use std::ptr;

type Node = *mut sys::ggml_tensor;
type Binary = unsafe extern "C" fn(*mut sys::ggml_context, Node, Node) -> Node;

const THREADS: [i32; 4] = [1, 2, 3, 4];

/// Numbers that look random, and some at which functions and roundings differ.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 10.0
    };
    let mut numbers: Vec<f32> = (0..n).map(|_| next()).collect();
    if n > 8 {
        (numbers[1], numbers[3], numbers[n / 2], numbers[n - 1]) =
            (1e-42, f32::INFINITY, f32::NAN, -0.0);
    }
    numbers
}

/// Nodes with names, and what they need.
struct Nodes {
    context: *mut sys::ggml_context,
    all: Vec<(String, Node)>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        // SAFETY: made by ggml_init and freed once; no tensor of it is used afterwards (ggml.h).
        unsafe { sys::ggml_free(self.context) }
    }
}

impl Nodes {
    fn new() -> Self {
        let params = sys::ggml_init_params {
            mem_size: 256 << 20,
            mem_buffer: ptr::null_mut(),
            no_alloc: false,
        };
        // SAFETY: the context has memory of its own (ggml.h: ggml_init).
        let context = unsafe { sys::ggml_init(params) };
        assert!(!context.is_null());
        Self { context, all: Vec::new() }
    }

    fn tensor(&self, ty: sys::ggml_type, shape: [usize; 3], bytes: &[u8]) -> Node {
        let [a, b, c] = shape.map(|n| n as i64);
        // SAFETY: the context lives, and has room for the data (ggml.h: ggml_new_tensor_3d).
        let tensor = unsafe { sys::ggml_new_tensor_3d(self.context, ty, a, b, c) };
        // SAFETY: a tensor of this context (ggml.h: ggml_nbytes).
        assert_eq!(unsafe { sys::ggml_nbytes(tensor) }, bytes.len());
        // SAFETY: as above (ggml.h: ggml_get_data).
        let data = unsafe { sys::ggml_get_data(tensor) };
        // SAFETY: the tensor's own memory, of this many bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast(), bytes.len()) };
        tensor
    }

    fn floats(&self, shape: [usize; 3], seed: u64) -> Node {
        let bytes: Vec<u8> =
            numbers(shape.iter().product(), seed).iter().flat_map(|x| x.to_ne_bytes()).collect();
        self.tensor(sys::GGML_TYPE_F32, shape, &bytes)
    }

    fn row(&self, n: usize, seed: u64) -> Node {
        self.floats([n, 1, 1], seed)
    }

    fn call(&self, f: Binary, a: Node, b: Node) -> Node {
        // SAFETY: tensors of this context, of shapes that the operation takes: otherwise it aborts (ggml.h).
        unsafe { f(self.context, a, b) }
    }

    fn duplicate(&self, a: Node) -> Node {
        // SAFETY: a tensor of this context (ggml.h: ggml_dup).
        unsafe { sys::ggml_dup(self.context, a) }
    }

    /// Every `step`-th number of a row.
    fn strided(&self, n: usize, step: usize, seed: u64) -> Node {
        let wide = self.floats([step, n, 1], seed);
        // SAFETY: a view inside of the tensor: the first number of each of its rows (ggml.h: ggml_view_2d).
        let column = unsafe { sys::ggml_view_2d(self.context, wide, 1, n as i64, 4 * step, 0) };
        // SAFETY: a tensor of this context (ggml.h: ggml_transpose).
        unsafe { sys::ggml_transpose(self.context, column) }
    }

    fn add(&mut self, name: String, make: impl FnOnce(&Self) -> Node) {
        let node = make(self);
        self.all.push((name, node));
    }

    /// The memory of a node.
    fn bytes(&mut self, index: usize) -> &mut [u8] {
        let node = self.all[index].1;
        // SAFETY: a tensor of this context (ggml.h: ggml_nbytes).
        let len = unsafe { sys::ggml_nbytes(node) };
        // SAFETY: as above (ggml.h: ggml_get_data).
        let data = unsafe { sys::ggml_get_data(node) };
        // SAFETY: the tensor's own memory, which was filled or computed, and nothing else refers to.
        unsafe { std::slice::from_raw_parts_mut(data.cast::<u8>(), len) }
    }

    /// Computes all nodes and returns the bytes of each.
    fn compute(&mut self, threads: i32) -> Vec<Vec<u8>> {
        // SAFETY: the context lives and has room (ggml.h: ggml_new_graph_custom).
        let graph = unsafe { sys::ggml_new_graph_custom(self.context, 8192, false) };
        for index in 0..self.all.len() {
            // What is left out must not be right since the last time.
            self.bytes(index).fill(0x55);
        }
        for (_, node) in &self.all {
            // SAFETY: graph and node are of this context (ggml.h: ggml_build_forward_expand).
            unsafe { sys::ggml_build_forward_expand(graph, *node) };
        }
        // SAFETY: as above; the context has room for what computing needs (ggml-cpu.h).
        let status = unsafe { sys::ggml_graph_compute_with_ctx(self.context, graph, threads) };
        assert_eq!(status, sys::GGML_STATUS_SUCCESS);
        (0..self.all.len()).map(|index| self.bytes(index).to_vec()).collect()
    }
}

fn arithmetic(nodes: &mut Nodes, n: usize) {
    let ops: [(&str, Binary, Binary); 4] = [
        ("add", sys::ggml_add, sys::ggml_add_inplace),
        ("sub", sys::ggml_sub, sys::ggml_sub_inplace),
        ("mul", sys::ggml_mul, sys::ggml_mul_inplace),
        ("div", sys::ggml_div, sys::ggml_div_inplace),
    ];
    for (name, op, in_place) in ops {
        nodes.add(format!("{name} {n}"), |g| g.call(op, g.row(n, 1), g.row(n, 2)));
        nodes.add(format!("{name} {n}, in place"), |g| {
            g.call(in_place, g.duplicate(g.row(n, 1)), g.row(n, 2))
        });
        nodes.add(format!("{name} {n} and one number"), |g| g.call(op, g.row(n, 1), g.row(1, 2)));
        // What the overlay has to leave to upstream.
        nodes.add(format!("{name} {n} and a shorter row, repeated"), |g| {
            g.call(op, g.row(3 * n, 1), g.row(n, 2))
        });
        nodes.add(format!("{name} two rows of {n} and one"), |g| {
            g.call(op, g.floats([n, 2, 1], 1), g.row(n, 2))
        });
        nodes.add(format!("{name} {n} and a row with gaps"), |g| {
            g.call(op, g.row(n, 1), g.strided(n, 3, 2))
        });
        nodes.add(format!("{name} {n} of half precision"), |g| {
            let a = g.row(n, 1);
            // SAFETY: a tensor of this context (ggml.h: ggml_cast).
            let half = unsafe { sys::ggml_cast(g.context, a, sys::GGML_TYPE_F16) };
            g.call(op, half, g.row(n, 2))
        });
    }
    nodes.add(format!("scale {n}"), |g| {
        let a = g.row(n, 1);
        // SAFETY: a tensor of this context (ggml.h: ggml_scale).
        unsafe { sys::ggml_scale(g.context, a, 0.3) }
    });
    nodes.add(format!("scale and bias {n}"), |g| {
        let a = g.row(n, 1);
        // SAFETY: as above (ggml.h: ggml_scale_bias).
        unsafe { sys::ggml_scale_bias(g.context, a, 0.3, 0.7) }
    });
    nodes.add(format!("scale {n}, in place"), |g| {
        let a = g.duplicate(g.row(n, 1));
        // SAFETY: as above (ggml.h: ggml_scale_inplace).
        unsafe { sys::ggml_scale_inplace(g.context, a, 0.3) }
    });
}

fn functions(nodes: &mut Nodes, n: usize) {
    for op in (0..sys::GGML_UNARY_OP_COUNT).filter(|op| *op != sys::GGML_UNARY_OP_XIELU) {
        nodes.add(format!("function {op} of {n}"), |g| {
            let a = g.row(n, 1);
            // SAFETY: a tensor of this context, and a function without parameters (ggml.h: ggml_unary).
            unsafe { sys::ggml_unary(g.context, a, op) }
        });
    }
    nodes.add(format!("xielu of {n}"), |g| {
        let a = g.row(n, 1);
        // SAFETY: a tensor of this context (ggml.h: ggml_xielu).
        unsafe { sys::ggml_xielu(g.context, a, 0.8, 0.8, 0.5, -1e-6) }
    });
    let parameters = [sys::GGML_GLU_OP_SWIGLU_OAI, sys::GGML_GLU_OP_SWIGLU_CLAMP];
    for op in (0..sys::GGML_GLU_OP_COUNT).filter(|op| !parameters.contains(op)) {
        nodes.add(format!("gate {op} of {n}"), |g| {
            let (a, b) = (g.row(n, 1), g.row(n, 2));
            // SAFETY: tensors of this context with the same shape (ggml.h: ggml_glu_split).
            unsafe { sys::ggml_glu_split(g.context, a, b, op) }
        });
        for swapped in [false, true] {
            nodes.add(format!("gate {op} of both halves of {}, swapped: {swapped}", 2 * n), |g| {
                let a = g.row(2 * n, 1);
                // SAFETY: a tensor of this context with an even number of columns (ggml.h: ggml_glu).
                unsafe { sys::ggml_glu(g.context, a, op, swapped) }
            });
        }
        nodes.add(format!("gate {op} of two rows of {n}"), |g| {
            let (a, b) = (g.floats([n, 2, 1], 1), g.floats([n, 2, 1], 2));
            // SAFETY: as above (ggml.h: ggml_glu_split).
            unsafe { sys::ggml_glu_split(g.context, a, b, op) }
        });
    }
    nodes.add(format!("gate with parameters of {n}"), |g| {
        let (a, b) = (g.row(n, 1), g.row(n, 2));
        // SAFETY: as above (ggml.h: ggml_swiglu_oai).
        unsafe { sys::ggml_swiglu_oai(g.context, a, b, 1.702, 7.0) }
    });
    nodes.add(format!("gate with a limit of {n}"), |g| {
        let (a, b) = (g.row(n, 1), g.row(n, 2));
        // SAFETY: as above (ggml.h: ggml_swiglu_clamp).
        unsafe { sys::ggml_swiglu_clamp(g.context, a, b, 7.0) }
    });
}

/// Numbers that every type can hold, and whose products tell the weights.
fn finite(shape: [usize; 3], seed: u64) -> Vec<f32> {
    let numbers = numbers(shape.iter().product(), seed);
    numbers.into_iter().map(|x| if x.is_finite() { x } else { 1.0 }).collect()
}

fn activations(nodes: &Nodes, shape: [usize; 3]) -> Node {
    let bytes: Vec<u8> = finite(shape, 4).iter().flat_map(|x| x.to_ne_bytes()).collect();
    nodes.tensor(sys::GGML_TYPE_F32, shape, &bytes)
}

fn products(nodes: &mut Nodes) {
    const COLUMNS: usize = 512;
    const ROWS: usize = 137;
    // Those whose quantizer need not sort a table for seconds first.
    let types = [
        sys::GGML_TYPE_F32,
        sys::GGML_TYPE_F16,
        sys::GGML_TYPE_BF16,
        sys::GGML_TYPE_Q1_0,
        sys::GGML_TYPE_Q2_0,
        sys::GGML_TYPE_Q4_0,
        sys::GGML_TYPE_Q4_1,
        sys::GGML_TYPE_Q5_0,
        sys::GGML_TYPE_Q5_1,
        sys::GGML_TYPE_Q8_0,
        sys::GGML_TYPE_MXFP4,
        sys::GGML_TYPE_Q2_K,
        sys::GGML_TYPE_Q3_K,
        sys::GGML_TYPE_Q4_K,
        sys::GGML_TYPE_Q5_K,
        sys::GGML_TYPE_Q6_K,
        sys::GGML_TYPE_TQ1_0,
        sys::GGML_TYPE_TQ2_0,
        sys::GGML_TYPE_IQ4_NL,
        sys::GGML_TYPE_IQ4_XS,
    ];
    for ty in types {
        let numbers = finite([COLUMNS, ROWS, 1], 3);
        let all = sys::quants::quantize(ty as i32, &numbers, COLUMNS).expect("a known type");
        let weights = |nodes: &Nodes, shape: [usize; 3]| {
            let rows = shape.iter().product::<usize>() / COLUMNS;
            nodes.tensor(ty, shape, &all[..all.len() / ROWS * rows])
        };
        for rows in [1, 2, 7, 96, ROWS] {
            nodes.add(format!("product of type {ty} with {rows} rows"), |g| {
                let weights = weights(g, [COLUMNS, rows, 1]);
                g.call(sys::ggml_mul_mat, weights, activations(g, [COLUMNS, 1, 1]))
            });
        }
        nodes.add(format!("product of type {ty}, with gaps between rows"), |g| {
            let wide = weights(g, [2 * COLUMNS, 50, 1]);
            // SAFETY: type and columns are those of a tensor of this file (ggml.h: ggml_row_size).
            let bytes = unsafe { sys::ggml_row_size(ty, 2 * COLUMNS as i64) };
            // SAFETY: a view inside of the tensor: half of each of its rows (ggml.h: ggml_view_2d).
            let half = unsafe { sys::ggml_view_2d(g.context, wide, COLUMNS as i64, 50, bytes, 0) };
            g.call(sys::ggml_mul_mat, half, activations(g, [COLUMNS, 1, 1]))
        });
        // What the overlay has to leave to upstream.
        for (matrices, shape) in [(1, [COLUMNS, 2, 1]), (2, [COLUMNS, 1, 2]), (1, [COLUMNS, 1, 2])]
        {
            let name = format!("product of type {ty}, {matrices} matrices, activations {shape:?}");
            nodes.add(name, |g| {
                let weights = weights(g, [COLUMNS, 60, matrices]);
                g.call(sys::ggml_mul_mat, weights, activations(g, shape))
            });
        }
    }
}

#[test]
fn the_overlay_gives_upstreams_bits() {
    sys::cpu::check().expect("a CPU for which this is built");
    let mut nodes = Nodes::new();
    // Where threads are used from, a step less, and ends that no step fits.
    for n in [63, 1023, 1087, 2049, 16_385, 20_000] {
        arithmetic(&mut nodes, n);
        functions(&mut nodes, n);
    }
    products(&mut nodes);
    let upstream = THREADS.map(|threads| nodes.compute(threads));
    // SAFETY: no model is loaded before (smol.h: smol_install).
    assert_eq!(unsafe { sys::smol_install(sys::SMOL_ABI_VERSION) }, sys::SMOL_OK);
    for (threads, expected) in THREADS.into_iter().zip(upstream) {
        let computed = nodes.compute(threads);
        for ((name, _), (got, expected)) in nodes.all.iter().zip(computed.iter().zip(&expected)) {
            assert!(got == expected, "{name} with {threads} threads");
        }
    }
}

//! Packed layouts with their kernels, and single matrix products.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use ggml_sys as sys;

use super::call;
use super::threadpool::ThreadPool;
use crate::error::{Error, ErrorKind, Result};

/// What lies behind a buffer before it is written, to see when too much is.
const CANARY: u8 = 0xa5;
const FLOAT_CANARY: f32 = -1.234_567_9e-21;
/// Floats behind an output.
const MARGIN: usize = 32;

/// A cache line, which is what kernels may expect their data to be aligned to.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// Bytes that begin with a cache line and have a spare line behind them.
pub(crate) struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        Self { lines: vec![Line([CANARY; 64]); len.div_ceil(64) + 1], len }
    }

    fn as_ptr(&self) -> *const c_void {
        self.lines.as_ptr().cast()
    }

    fn at(&mut self, offset: usize) -> *mut c_void {
        assert!(offset <= self.len);
        self.lines.as_mut_ptr().cast::<u8>().wrapping_add(offset).cast()
    }

    /// Whether nothing was written behind the end.
    fn is_whole(&self) -> bool {
        let bytes = self.lines.iter().flat_map(|line| line.0);
        bytes.skip(self.len).all(|byte| byte == CANARY)
    }
}

/// Floats with a margin that must stay as it is.
fn output(len: usize) -> Vec<f32> {
    vec![FLOAT_CANARY; len + MARGIN]
}

fn without_margin(mut floats: Vec<f32>, what: &str) -> Result<Vec<f32>, String> {
    let len = floats.len() - MARGIN;
    if floats[len..].iter().any(|float| float.to_bits() != FLOAT_CANARY.to_bits()) {
        return Err(format!("{what} writes behind its output"));
    }
    floats.truncate(len);
    Ok(floats)
}

/// Rows that a layout has packed.
pub(crate) struct Packed {
    columns: usize,
    groups: usize,
    group_bytes: usize,
    bytes: Aligned,
}

/// A packed layout of this build, for the CPU level that runs.
#[derive(Clone, Copy)]
pub(crate) struct RawLayout(&'static sys::smol_layout);

// SAFETY: layouts are constants of the library (layout.h); the pointers in them lead to constants and functions, which
// have no state.
unsafe impl Send for RawLayout {}
// SAFETY: as above.
unsafe impl Sync for RawLayout {}

/// A function of a layout; every layout has all but `accepts` (layout.h), which may be `None`.
macro_rules! function {
    ($layout:expr, $name:ident) => {
        $layout.$name.expect(concat!("every layout has ", stringify!($name)))
    };
}

/// The layouts, for one type the preferred one first.
pub(crate) fn layouts() -> Result<Vec<RawLayout>> {
    call::init()?;
    let mut n = 0;
    // SAFETY: writes the number of layouts (layout.h, smol_layouts); the CPU level is settled by init().
    let all = unsafe { sys::smol_layouts(&mut n) };
    // SAFETY: a constant array of `n` pointers (layouts.cpp).
    let all = unsafe { slice::from_raw_parts(all, n) };
    // SAFETY: each points to a constant (layouts.cpp).
    Ok(all.iter().map(|layout| RawLayout(unsafe { &**layout })).collect())
}

fn constant(text: *const c_char) -> &'static str {
    assert!(!text.is_null());
    // SAFETY: a string literal of the library, not null.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

impl RawLayout {
    pub(crate) fn name(self) -> &'static str {
        constant(self.0.name)
    }

    pub(crate) fn version(self) -> u32 {
        self.0.version
    }

    /// Number of the weights' type.
    pub(crate) fn weight_type(self) -> u32 {
        self.0.type_
    }

    pub(crate) fn rows(self) -> usize {
        self.0.rows as usize
    }

    pub(crate) fn columns(self) -> usize {
        self.0.columns as usize
    }

    pub(crate) fn exact(self) -> bool {
        self.0.exact
    }

    pub(crate) fn optional(self) -> bool {
        self.0.optional
    }

    pub(crate) fn selective(self) -> bool {
        self.0.accepts.is_some()
    }

    pub(crate) fn activation(self) -> &'static str {
        constant(self.activation_kind().name)
    }

    fn activation_kind(self) -> &'static sys::smol_activation {
        assert!(!self.0.activation.is_null());
        // SAFETY: points to a constant of the library (layout.h), not null.
        unsafe { &*self.0.activation }
    }

    pub(crate) fn group_bytes(self, columns: usize) -> usize {
        assert!(columns.is_multiple_of(self.columns()));
        let function = function!(self.0, group_bytes);
        // SAFETY: computes a number from a row length that the layout takes (layout.h).
        unsafe { function(columns as i64) }
    }

    /// The layout that the overlay names; `None` for null.
    pub(crate) fn from_ptr(layout: *const sys::smol_layout) -> Option<Self> {
        // SAFETY: null or one of the constants that smol_layouts returns (packed_weights.cpp, candidates).
        unsafe { layout.as_ref() }.map(Self)
    }

    pub(crate) fn as_ptr(self) -> *const sys::smol_layout {
        self.0
    }

    /// Bytes of `rows` packed rows.
    pub(crate) fn packed_bytes(self, columns: usize, rows: usize) -> usize {
        rows.div_ceil(self.rows()) * self.group_bytes(columns)
    }

    /// Packs rows of `stride` bytes, in whole groups, into memory of [`packed_bytes`](Self::packed_bytes).
    pub(crate) fn pack_into(self, columns: usize, rows: &[u8], stride: usize, packed: &mut [u8]) {
        let n = rows.len() / stride;
        let group_bytes = self.group_bytes(columns);
        assert_eq!(packed.len(), self.packed_bytes(columns, n));
        let function = function!(self.0, pack);
        let groups = rows.chunks(self.rows() * stride).zip(packed.chunks_exact_mut(group_bytes));
        for (from, to) in groups {
            let count = (from.len() / stride) as i64;
            let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
            // SAFETY: `count` rows of `stride` bytes lie at `from`, and the group has room at `to` (layout.h, pack).
            unsafe { function(columns as i64, from, stride, count, to) };
        }
    }

    /// Runs the test that is run before a layout is used; what it finds wrong.
    pub(crate) fn self_test(self) -> Option<String> {
        // SAFETY: the layout is whole; the test brings its own data (smol.h, smol_self_test).
        let fault = unsafe { sys::smol_self_test(self.0) };
        // SAFETY: a string literal, not null (self_test.cpp).
        (!fault.is_null()).then(|| unsafe { CStr::from_ptr(fault) }.to_string_lossy().into_owned())
    }

    /// Whether the layout takes rows of `stride` bytes.
    pub(crate) fn accepts(self, columns: usize, rows: &[u8], stride: usize) -> bool {
        let Some(function) = self.0.accepts else { return true };
        let blocks = aligned_copy(rows);
        let n = rows.len() / stride;
        // SAFETY: `n` rows of `stride` bytes of the layout's type are there (layout.h, accepts).
        unsafe { function(columns as i64, blocks.as_ptr(), stride, n as i64) }
    }

    /// Packs rows of `stride` bytes, in whole groups; the error says what went wrong.
    pub(crate) fn pack(self, columns: usize, rows: &[u8], stride: usize) -> Result<Packed, String> {
        let group_bytes = self.group_bytes(columns);
        let n = rows.len() / stride;
        let groups = n.div_ceil(self.rows());
        let source = aligned_copy(rows);
        let mut bytes = Aligned::new(groups * group_bytes);
        let function = function!(self.0, pack);
        for group in 0..groups {
            let first = group * self.rows();
            let count = self.rows().min(n - first);
            let from = source.as_ptr().wrapping_byte_add(first * stride);
            let to = bytes.at(group * group_bytes);
            // SAFETY: `count` rows of `stride` bytes lie at `from`, and the group has room at `to` (layout.h, pack).
            unsafe { function(columns as i64, from, stride, count as i64, to) };
        }
        if !bytes.is_whole() {
            return Err("packing writes behind the group".to_owned());
        }
        Ok(Packed { columns, groups, group_bytes, bytes })
    }

    pub(crate) fn unpack_row(self, packed: &Packed, row: usize) -> Result<Vec<f32>, String> {
        let (group, row) = (row / self.rows(), row % self.rows());
        assert!(group < packed.groups);
        let group = packed.bytes.as_ptr().wrapping_byte_add(group * packed.group_bytes);
        let mut out = output(packed.columns);
        let function = function!(self.0, unpack_row);
        // SAFETY: a packed group, a row of it, and room for its floats (layout.h, unpack_row).
        unsafe { function(packed.columns as i64, group, row as i64, out.as_mut_ptr()) };
        without_margin(out, "unpacking")
    }

    /// Prepares one row of activations for the kernels.
    pub(crate) fn prepare(self, row: &[f32]) -> Result<Aligned, String> {
        let kind = self.activation_kind();
        let size = function!(kind, bytes);
        // SAFETY: computes a number (layout.h, smol_activation).
        let mut prepared = Aligned::new(unsafe { size(row.len() as i64) });
        let function = function!(kind, prepare);
        // SAFETY: a row of a length that the layout takes, and as much room as it asks for (layout.h).
        unsafe { function(row.len() as i64, row.as_ptr(), prepared.at(0)) };
        if !prepared.is_whole() {
            return Err("preparing activations writes behind them".to_owned());
        }
        Ok(prepared)
    }

    pub(crate) fn gemv(self, packed: &Packed, row: &Aligned) -> Result<Vec<f32>, String> {
        self.one_row(packed, row, function!(self.0, gemv), "gemv")
    }

    pub(crate) fn reference(self, packed: &Packed, row: &Aligned) -> Result<Vec<f32>, String> {
        self.one_row(packed, row, function!(self.0, reference), "the reference")
    }

    fn one_row(
        self,
        packed: &Packed,
        row: &Aligned,
        function: unsafe extern "C" fn(i64, *const c_void, i64, *const c_void, *mut f32),
        what: &str,
    ) -> Result<Vec<f32>, String> {
        let mut out = output(packed.groups * self.rows());
        let (columns, groups) = (packed.columns as i64, packed.groups as i64);
        // SAFETY: `groups` packed groups, a row that was prepared for this layout, and a float for each packed row
        // (layout.h, gemv).
        unsafe {
            function(columns, packed.bytes.as_ptr(), groups, row.as_ptr(), out.as_mut_ptr());
        }
        without_margin(out, what)
    }

    /// One vector of products for each row of activations.
    pub(crate) fn gemm(self, packed: &Packed, rows: &[Aligned]) -> Result<Vec<Vec<f32>>, String> {
        let mut outs: Vec<_> = rows.iter().map(|_| output(packed.groups * self.rows())).collect();
        let to: Vec<_> = outs.iter_mut().map(|out| out.as_mut_ptr()).collect();
        let from: Vec<_> = rows.iter().map(Aligned::as_ptr).collect();
        let (columns, groups) = (packed.columns as i64, packed.groups as i64);
        let (n, bytes) = (rows.len() as i64, packed.bytes.as_ptr());
        let function = function!(self.0, gemm);
        // SAFETY: as for gemv, with `n` rows and as many outputs (layout.h, gemm).
        unsafe { function(columns, bytes, groups, n, from.as_ptr(), to.as_ptr()) };
        outs.into_iter().map(|out| without_margin(out, "gemm")).collect()
    }
}

/// ggml reads blocks as structs, which a slice of bytes need not be aligned for.
fn aligned_copy(bytes: &[u8]) -> Aligned {
    let mut copy = Aligned::new(bytes.len());
    let to = copy.at(0).cast::<u8>();
    // SAFETY: the copy has room for all bytes, and is new.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    copy
}

/// Weights in one kind of memory.
pub(crate) struct RawMatrix(NonNull<sys::smol_matrix>);

// SAFETY: weights that nobody changes once they are made (matrix_product.cpp).
unsafe impl Send for RawMatrix {}
// SAFETY: as above.
unsafe impl Sync for RawMatrix {}

/// Where a matrix is to lie.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Packed(RawLayout),
    /// A buffer type of ggml by its name.
    Buffer(&'static str),
}

impl RawMatrix {
    /// `matrices` is 0 for one plain matrix; `rows` are its bytes. [`ErrorKind::Unsupported`] if the place can't keep it.
    pub(crate) fn new(
        weight_type: u32,
        [columns, rows, matrices]: [usize; 3],
        bytes: &[u8],
        place: Place,
    ) -> Result<Self> {
        call::init()?;
        let (layout, buffer_type) = match place {
            Place::Packed(layout) => (ptr::from_ref(layout.0), None),
            Place::Buffer(name) => (ptr::null(), CString::new(name).ok()),
        };
        let params = sys::smol_matrix_params {
            type_: weight_type as sys::ggml_type,
            columns: columns as i64,
            rows: rows as i64,
            matrices: matrices as i64,
            layout,
            buffer_type: buffer_type.as_ref().map_or(ptr::null(), |name| name.as_ptr()),
        };
        let mut matrix = ptr::null_mut();
        // SAFETY: `bytes` are the rows of the matrix, whose number the caller has checked; the parameters are whole
        // and live through the call; guarded (smol.h, smol_matrix_new).
        let status = unsafe { sys::smol_matrix_new(&params, bytes.as_ptr().cast(), &mut matrix) };
        match NonNull::new(matrix) {
            Some(matrix) => Ok(Self(matrix)),
            None => Err(error(status, "a matrix")),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        // SAFETY: a matrix that lives (smol.h, smol_matrix_bytes).
        unsafe { sys::smol_matrix_bytes(self.0.as_ptr()) }
    }
}

impl Drop for RawMatrix {
    fn drop(&mut self) {
        // SAFETY: made by smol_matrix_new and freed once; products keep it alive.
        unsafe { sys::smol_matrix_free(self.0.as_ptr()) };
    }
}

/// What a product does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProductKind {
    Product,
    Experts,
    Rows,
}

/// One graph node with a matrix, and the threads that compute it.
pub(crate) struct RawProduct {
    product: NonNull<sys::smol_product>,
    // Freed after the product.
    _matrix: Arc<RawMatrix>,
    _pool: ThreadPool,
}

// SAFETY: a backend, a graph and buffers on the heap (matrix_product.cpp) that one thread at a time uses: computing
// takes `&mut self`.
unsafe impl Send for RawProduct {}

impl RawProduct {
    pub(crate) fn new(
        matrix: &Arc<RawMatrix>,
        kind: ProductKind,
        activations: [usize; 3],
        stride: usize,
        ids: [usize; 2],
        threads: u32,
    ) -> Result<Self> {
        let pool = ThreadPool::new(threads)?;
        let params = sys::smol_product_params {
            op: match kind {
                ProductKind::Product => sys::GGML_OP_MUL_MAT,
                ProductKind::Experts => sys::GGML_OP_MUL_MAT_ID,
                ProductKind::Rows => sys::GGML_OP_GET_ROWS,
            },
            ne: activations.map(|n| n as i64),
            stride: stride as i64,
            ids: ids.map(|n| n as i64),
        };
        let mut product = ptr::null_mut();
        let threads = threads as i32;
        // SAFETY: matrix and pool live as long as the product, which owns them; the parameters are checked on the
        // other side; guarded (smol.h, smol_product_new).
        let status = unsafe {
            sys::smol_product_new(matrix.0.as_ptr(), &params, pool.as_ptr(), threads, &mut product)
        };
        match NonNull::new(product) {
            Some(product) => Ok(Self { product, _matrix: Arc::clone(matrix), _pool: pool }),
            None => Err(error(status, "a product")),
        }
    }

    pub(crate) fn set_inputs(&mut self, activations: &[f32], ids: &[i32]) -> Result<()> {
        let product = self.product.as_ptr();
        // SAFETY: two slices with their lengths, which are compared with what the product wants; guarded (smol.h).
        let status = unsafe {
            sys::smol_product_input(
                product,
                activations.as_ptr(),
                activations.len(),
                ids.as_ptr(),
                ids.len(),
            )
        };
        if status == sys::SMOL_OK { Ok(()) } else { Err(error(status, "inputs")) }
    }

    pub(crate) fn compute(&mut self, times: u32) -> Result<()> {
        // SAFETY: a product whose inputs are valid: zeros, or what smol_product_input took; guarded (smol.h).
        let status = unsafe { sys::smol_product_compute(self.product.as_ptr(), times) };
        if status == sys::SMOL_OK { Ok(()) } else { Err(error(status, "computing")) }
    }

    pub(crate) fn output(&self) -> &[f32] {
        let mut n = 0;
        // SAFETY: a product that lives; writes the number of floats (smol.h, smol_product_output).
        let floats = unsafe { sys::smol_product_output(self.product.as_ptr(), &mut n) };
        // SAFETY: the result tensor has `n` contiguous floats, cleared when it was made, and only compute(), which
        // takes `&mut self`, writes them.
        unsafe { slice::from_raw_parts(floats, n) }
    }
}

impl Drop for RawProduct {
    fn drop(&mut self) {
        // SAFETY: made by smol_product_new and freed once, before its matrix and its pool.
        unsafe { sys::smol_product_free(self.product.as_ptr()) };
    }
}

fn error(status: sys::smol_status, what: &str) -> Error {
    let message = call::last_error();
    if status == sys::SMOL_ERR_MISSING {
        return Error::new(ErrorKind::Unsupported, message);
    }
    call::failure(status, &message, ErrorKind::InvalidArgument, what, Vec::new())
}

#[cfg(test)]
pub(crate) mod faulty {
    //! Layouts with a fault each, to see that faults are found.

    use super::*;

    unsafe extern "C" fn shifted_gemv(
        k: i64,
        group: *const c_void,
        groups: i64,
        activation: *const c_void,
        out: *mut f32,
    ) {
        let layout = layouts().expect("layouts")[0];
        // SAFETY: the arguments are the layout's own.
        unsafe { function!(layout.0, gemv)(k, group, groups, activation, out) };
        // SAFETY: there is at least one row, and nobody else writes it.
        let first = unsafe { &mut *out };
        *first = f32::from_bits(first.to_bits() ^ 1);
    }

    unsafe extern "C" fn long_gemv(
        k: i64,
        group: *const c_void,
        groups: i64,
        activation: *const c_void,
        out: *mut f32,
    ) {
        let layout = layouts().expect("layouts")[0];
        // SAFETY: the arguments are the layout's own.
        unsafe { function!(layout.0, gemv)(k, group, groups, activation, out) };
        let behind = out.wrapping_add(groups as usize * layout.rows());
        // SAFETY: the margin of the output.
        unsafe { *behind = 0.0 };
    }

    unsafe extern "C" fn lazy_gemm(
        k: i64,
        group: *const c_void,
        groups: i64,
        n: i64,
        activations: *const *const c_void,
        out: *const *mut f32,
    ) {
        let layout = layouts().expect("layouts")[0];
        // SAFETY: the arguments are the layout's own, with one row less.
        unsafe { function!(layout.0, gemm)(k, group, groups, n - 1, activations, out) };
    }

    unsafe extern "C" fn swapped_unpack(k: i64, group: *const c_void, row: i64, out: *mut f32) {
        let layout = layouts().expect("layouts")[0];
        // SAFETY: the arguments are the layout's own, with another row of the group.
        unsafe { function!(layout.0, unpack_row)(k, group, row ^ 1, out) };
    }

    /// The first layout of the build with one function replaced.
    pub(crate) fn all() -> Vec<(RawLayout, &'static str)> {
        let good = layouts().expect("layouts")[0].0;
        let bad = |change: &dyn Fn(&mut sys::smol_layout)| {
            let mut layout = sys::smol_layout { ..*good };
            change(&mut layout);
            RawLayout(Box::leak(Box::new(layout)))
        };
        vec![
            (bad(&|layout| layout.gemv = Some(shifted_gemv)), "gemv"),
            (bad(&|layout| layout.gemv = Some(long_gemv)), "behind its output"),
            (bad(&|layout| layout.gemm = Some(lazy_gemm)), "gemm"),
            (bad(&|layout| layout.unpack_row = Some(swapped_unpack)), "unpack"),
        ]
    }
}

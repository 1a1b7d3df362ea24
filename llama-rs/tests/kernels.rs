//! Every packed layout of this CPU level: the kernels against each other and against ggml's own way, with inputs that a
//! model would hardly have.

use llama_rs::ErrorKind;
use llama_rs::gguf::TensorType;
use llama_rs::kernels::{
    CheckOptions, Layout, Matrix, MatrixShape, Operation, Pair, Product, Storage, check, layouts,
};
use std::fmt::Write as _;
use std::time::Duration;

/// Numbers that look random and are the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Between -1 and 1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// -1, 0 or 1: what every layout takes.
    fn ternary(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.next() % 3) as f32 - 1.0).collect()
    }
}

fn quantized(layout: Layout, weights: &[f32], columns: usize) -> Vec<u8> {
    ggml_sys::quants::quantize(layout.weight_type().id() as i32, weights, columns).unwrap()
}

fn dequantized(layout: Layout, bytes: &[u8]) -> Vec<f32> {
    let ty = layout.weight_type();
    let n = bytes.len() / ty.block_bytes() as usize * ty.block_len() as usize;
    ggml_sys::quants::dequantize(ty.id() as i32, bytes, n).unwrap()
}

/// Weights of any kind where the layout takes any, and ternary ones where not.
fn weights(layout: Layout, n: usize, random: &mut Random) -> Vec<f32> {
    if layout.is_selective() { random.ternary(n) } else { random.units(n) }
}

/// The name of activations that some types can't hold; the kernels still have to agree.
const HUGE: &str = "huge";

/// Activations of any size, of which rounding to 8 bits makes the largest numbers there are, both ways, and the smallest.
fn activations(columns: usize, random: &mut Random) -> Vec<(&'static str, Vec<f32>)> {
    let alternating =
        |a: f32, b: f32| (0..columns).map(|i| if i % 2 == 0 { a } else { b }).collect();
    let mut outlier = random.units(columns);
    outlier[columns / 2] = 1e6;
    let mut negative_outlier = random.units(columns);
    negative_outlier[columns - 1] = -1e6;
    vec![
        ("random", random.units(columns)),
        ("zeros", vec![0.0; columns]),
        ("negative zeros", vec![-0.0; columns]),
        ("ones", vec![1.0; columns]),
        ("minus ones", vec![-1.0; columns]),
        ("both extremes", alternating(-1.0, 1.0)),
        ("extreme and zero", alternating(-3.5, 0.0)),
        ("halves that round", alternating(1.0, 0.5 / 127.0)),
        ("an outlier", outlier),
        ("a negative outlier", negative_outlier),
        ("denormals", random.units(columns).iter().map(|x| x * 1e-39).collect()),
        ("the smallest", vec![f32::from_bits(1); columns]),
        ("a tiny scale", random.units(columns).iter().map(|x| x * 1e-36).collect()),
        // The largest with a half-precision scale, and beyond it.
        ("large", random.units(columns).iter().map(|x| x * 8e6).collect()),
        (HUGE, random.units(columns).iter().map(|x| x * 1e32).collect()),
    ]
}

/// Weights with extreme blocks as well: bytes that no quantizer makes of reasonable weights.
fn weight_rows(
    layout: Layout,
    columns: usize,
    random: &mut Random,
) -> Vec<(&'static str, Vec<f32>)> {
    let scaled = |weights: Vec<f32>, scale: f32| weights.iter().map(|w| w * scale).collect();
    let mut alone = vec![0.0; columns];
    alone[columns - 1] = 1.0;
    vec![
        ("random", weights(layout, columns, random)),
        ("zeros", vec![0.0; columns]),
        ("ones", vec![1.0; columns]),
        ("minus ones", vec![-1.0; columns]),
        ("one weight", alone),
        ("half-precision denormals", scaled(weights(layout, columns, random), 1e-6)),
        // Scales are half-precision floats.
        ("the largest scales", scaled(random.ternary(columns), 65504.0)),
        ("ternary", random.ternary(columns)),
    ]
}

/// What rounding the activations may change at most: half a step of the row's 8-bit scale each, and the same again for
/// sums in floats and for types with minima. The scale itself may be a half-precision float, whose steps end at 2^-24.
fn rounding(weights: &[f32], activations: &[f32]) -> f64 {
    let largest = activations.iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let size: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
    let step = f64::from(largest) / 127.0 + 127.0 * 2_f64.powi(-25);
    size * step + f64::from(f32::MIN_POSITIVE)
}

fn product(weights: &[f32], activations: &[f32]) -> f64 {
    weights.iter().zip(activations).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
}

#[test]
fn each_layout_passes_its_check() {
    for layout in layouts().unwrap() {
        let options = CheckOptions { time: Duration::from_millis(100), ..CheckOptions::default() };
        let findings = check(layout, &options).unwrap();
        for name in ["self-test", "bits", "MUL_MAT", "MUL_MAT_ID", "GET_ROWS"] {
            assert!(findings.iter().any(|finding| finding.name == name), "{layout:?}: {name}");
        }
        for finding in findings {
            assert_eq!(finding.fault, None, "{layout:?}: {finding:?}");
        }
    }
}

#[test]
fn gemv_and_gemm_are_the_reference_and_the_product() {
    let mut random = Random(3);
    for layout in layouts().unwrap() {
        for blocks in [1, 3, 16] {
            let columns = blocks * layout.column_multiple();
            let rows = weight_rows(layout, columns, &mut random);
            let bytes: Vec<u8> =
                rows.iter().flat_map(|(_, row)| quantized(layout, row, columns)).collect();
            let inputs = activations(columns, &mut random);
            let all: Vec<f32> = inputs.iter().flat_map(|(_, row)| row.clone()).collect();
            let found = layout.verify(columns, &bytes, &all).unwrap();
            assert_eq!(found.fault, None, "{layout:?} with {columns} columns");
            for ((what, input), products) in inputs.iter().zip(&found.products) {
                if *what == HUGE {
                    continue;
                }
                let unpacked = found.unpacked.chunks_exact(columns);
                for (((kind, _), weights), got) in rows.iter().zip(unpacked).zip(products) {
                    let exact = product(weights, input);
                    let bound = rounding(weights, input);
                    assert!(
                        (f64::from(*got) - exact).abs() <= bound,
                        "{layout:?}, {columns} columns, weights {kind}, activations {what}: {got:e}, not {exact:e} within {bound:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn any_number_of_rows_is_packed() {
    let mut random = Random(5);
    for layout in layouts().unwrap() {
        let group = layout.group_rows();
        let columns = 2 * layout.column_multiple();
        // The last groups of heads with 65,668 and 151,669 rows are not full.
        for rows in
            [1, group - 1, group, group + 1, group + 65_668 % group, 2 * group + 151_669 % group]
        {
            let rows = rows.max(1);
            let bytes = quantized(layout, &weights(layout, rows * columns, &mut random), columns);
            let found = layout.verify(columns, &bytes, &random.units(5 * columns)).unwrap();
            assert_eq!(found.fault, None, "{layout:?}, {rows} rows");
            assert_eq!(found.products[4].len(), rows);
            if layout.is_exact() {
                assert_eq!(found.unpacked, dequantized(layout, &bytes), "{layout:?}, {rows} rows");
            }
            // In a graph: nothing but the rows is written, and each in its place.
            let shape = MatrixShape::new(rows, columns);
            let (mut ours, mut plain) = both(layout, shape, &bytes, &Operation::product(5));
            let inputs = random.units(5 * columns);
            let error = difference(&mut ours, &mut plain, &inputs, &[]);
            assert!(error <= layout.error_limit(), "{layout:?}, {rows} rows: {error:e}");
            let all = 0..rows as i32;
            let ids: Vec<_> = all.clone().rev().chain(all).collect();
            let (mut ours, mut plain) = both(layout, shape, &bytes, &Operation::rows(ids.len()));
            let error = difference(&mut ours, &mut plain, &[], &ids);
            assert_eq!(error, 0.0, "{layout:?}, {rows} rows");
        }
    }
}

#[test]
fn bytes_that_no_quantizer_makes() {
    let mut random = Random(7);
    for layout in layouts().unwrap().into_iter().filter(|layout| !layout.is_selective()) {
        let columns = 4 * layout.column_multiple();
        let ty = layout.weight_type();
        let bytes = ty.row_bytes(columns as u64).unwrap() as usize * (layout.group_rows() + 1);
        for round in 0..4 {
            // Any bits are weights; those of half-precision scales may be infinite or no numbers.
            let bytes: Vec<u8> = (0..bytes).map(|_| (random.next() >> 32) as u8).collect();
            let found = layout.verify(columns, &bytes, &random.units(3 * columns)).unwrap();
            assert_eq!(found.fault, None, "{layout:?}, round {round}");
        }
    }
}

/// The operation with packed weights, and with plain ones: as a lossy layout has them for such a layout.
fn both(layout: Layout, shape: MatrixShape, bytes: &[u8], op: &Operation) -> (Product, Product) {
    let packed = Storage::Packed(layout);
    let ours = Matrix::new(layout.weight_type(), shape, bytes, packed).unwrap();
    let plain = if layout.is_exact() {
        Matrix::new(layout.weight_type(), shape, bytes, Storage::Plain)
    } else {
        let floats = layout.round_trip(shape.columns, bytes).unwrap();
        let floats: Vec<u8> = floats.iter().flat_map(|x| x.to_ne_bytes()).collect();
        Matrix::new(TensorType::F32, shape, &floats, Storage::Plain)
    };
    // More threads than groups: some have nothing to do.
    (ours.operation(op, 2).unwrap(), plain.unwrap().operation(op, 1).unwrap())
}

/// The largest difference as a part of the largest value.
fn difference(ours: &mut Product, plain: &mut Product, inputs: &[f32], ids: &[i32]) -> f64 {
    for product in [&mut *ours, &mut *plain] {
        product.set_inputs(inputs, ids).unwrap();
        product.compute(1).unwrap();
    }
    assert_eq!(ours.output().len(), plain.output().len());
    let largest = plain.output().iter().fold(0.0_f32, |a, x| a.max(x.abs()));
    let apart = ours.output().iter().zip(plain.output()).map(|(a, b)| (a - b).abs());
    // A NaN stays.
    let apart = apart.fold(0.0_f32, |a, b| if a >= b { a } else { b });
    if apart == 0.0 { 0.0 } else { f64::from(apart / largest) }
}

#[test]
fn experts_used_twice_not_at_all_and_left_out() {
    let mut random = Random(11);
    let (experts, used) = (6, 4);
    for layout in layouts().unwrap() {
        let columns = layout.column_multiple();
        let shape = MatrixShape::experts(experts, layout.group_rows() + 5, columns);
        let n = shape.weights().unwrap();
        let bytes = quantized(layout, &weights(layout, n, &mut random), columns);
        // Many tokens, so that an expert gets more of them than a kernel takes at once.
        let tokens = 40;
        let ids: Vec<i32> = (0..tokens * used)
            .map(|i| match (i / used, i % used) {
                // One token with the same expert four times, one without any.
                (0, _) => 2,
                (1, _) => -1,
                (_, 3) => -1,
                // Expert 5 is left to nobody.
                _ => (random.next() % 5) as i32,
            })
            .collect();
        for inputs in [1, used] {
            let op = Operation::experts(tokens, used, inputs);
            let activations = random.units(op.activations(columns));
            let (mut ours, mut plain) = both(layout, shape, &bytes, &op);
            let error = difference(&mut ours, &mut plain, &activations, &ids);
            assert!(error <= layout.error_limit(), "{layout:?}, {inputs} inputs: {error:e}");
            for (i, id) in ids.iter().enumerate() {
                let out = &ours.output()[i * shape.rows..(i + 1) * shape.rows];
                assert_eq!(*id == -1, out.iter().all(|x| x.to_bits() == 0), "{layout:?}, use {i}");
            }
            // The same expert with the same activations gives the same.
            if inputs == 1 {
                let out = ours.output();
                assert_eq!(out[..shape.rows], out[shape.rows..2 * shape.rows], "{layout:?}");
            }
            // What was there before is overwritten, and all can be left out.
            ours.set_inputs(&activations, &vec![-1; ids.len()]).unwrap();
            ours.compute(1).unwrap();
            assert!(ours.output().iter().all(|x| x.to_bits() == 0), "{layout:?}");
        }
    }
}

#[test]
fn batches_and_gaps_between_rows() {
    let mut random = Random(13);
    for layout in layouts().unwrap() {
        let columns = 2 * layout.column_multiple();
        let shape = MatrixShape::new(layout.group_rows() + 1, columns);
        let bytes =
            quantized(layout, &weights(layout, shape.weights().unwrap(), &mut random), columns);
        let batch = [3, 2, 2];
        let plain = Operation::batched_product(batch);
        let with_gap = plain.with_gap(37);
        let spread = random.units(with_gap.activations(columns));
        let dense: Vec<f32> =
            spread.chunks_exact(columns + 37).flat_map(|row| row[..columns].to_vec()).collect();
        let (mut ours, mut theirs) = both(layout, shape, &bytes, &with_gap);
        let error = difference(&mut ours, &mut theirs, &spread, &[]);
        assert!(error <= layout.error_limit(), "{layout:?}: {error:e}");
        let (mut same, _) = both(layout, shape, &bytes, &plain);
        same.set_inputs(&dense, &[]).unwrap();
        same.compute(1).unwrap();
        assert_eq!(same.output(), ours.output(), "{layout:?}");
        // One row at a time gives the same bits.
        let (mut single, _) = both(layout, shape, &bytes, &Operation::product(1));
        for (row, out) in dense.chunks_exact(columns).zip(ours.output().chunks_exact(shape.rows)) {
            single.set_inputs(row, &[]).unwrap();
            single.compute(1).unwrap();
            assert_eq!(single.output(), out, "{layout:?}");
        }
    }
}

#[test]
fn more_columns_and_threads_than_a_chunk() {
    let mut random = Random(17);
    for layout in layouts().unwrap() {
        let columns = layout.column_multiple();
        let shape = MatrixShape::new(9 * layout.group_rows() + 1, columns);
        let bytes =
            quantized(layout, &weights(layout, shape.weights().unwrap(), &mut random), columns);
        let op = Operation::product(71);
        let inputs = random.units(op.activations(columns));
        let matrix =
            Matrix::new(layout.weight_type(), shape, &bytes, Storage::Packed(layout)).unwrap();
        let outputs: Vec<_> = [1, 2, 3, 5]
            .into_iter()
            .map(|threads| {
                let mut product = matrix.operation(&op, threads).unwrap();
                product.set_inputs(&inputs, &[]).unwrap();
                product.compute(3).unwrap();
                product.output().to_vec()
            })
            .collect();
        for output in &outputs[1..] {
            assert_eq!(&outputs[0], output, "{layout:?}");
        }
    }
}

#[test]
fn packed_size_is_what_the_layout_says() {
    let mut told = String::new();
    for layout in layouts().unwrap() {
        let columns = 4 * layout.column_multiple();
        let shape = MatrixShape::experts(3, layout.group_rows() + 1, columns);
        let bytes = quantized(layout, &vec![1.0; shape.weights().unwrap()], columns);
        let matrix =
            Matrix::new(layout.weight_type(), shape, &bytes, Storage::Packed(layout)).unwrap();
        // Each expert is padded on its own.
        assert_eq!(Some(matrix.bytes()), layout.packed_bytes(columns, shape.rows).map(|n| 3 * n));
        let plain = layout.weight_type().bits_per_element();
        writeln!(told, "{}: {} of {plain} bits", layout.name(), layout.bits_per_weight()).unwrap();
        // Only what is asked for by name may trade memory for speed.
        assert!(layout.is_optional() || layout.bits_per_weight() <= plain * 1.05, "{told}");
    }
}

#[test]
fn what_cannot_be_is_an_error() {
    let layout = layouts().unwrap()[0];
    let ty = layout.weight_type();
    let columns = layout.column_multiple();
    let shape = MatrixShape::new(3, columns);
    let bytes = quantized(layout, &vec![1.0; 3 * columns], columns);
    let kind = |result: llama_rs::Result<Matrix>| result.unwrap_err().kind().clone();
    let packed = Storage::Packed(layout);
    assert_eq!(kind(Matrix::new(ty, shape, &bytes[1..], packed)), ErrorKind::InvalidArgument);
    assert_eq!(
        kind(Matrix::new(ty, MatrixShape::new(0, columns), &[], packed)),
        ErrorKind::InvalidArgument
    );
    let huge = MatrixShape::experts(usize::MAX, 2, columns);
    assert_eq!(kind(Matrix::new(ty, huge, &bytes, packed)), ErrorKind::InvalidArgument);
    let f32s = vec![0; 3 * columns * 4];
    assert_eq!(kind(Matrix::new(TensorType::F32, shape, &f32s, packed)), ErrorKind::Unsupported);
    assert_eq!(
        kind(Matrix::new(TensorType::F32, shape, &f32s, Storage::Repack)),
        ErrorKind::Unsupported
    );

    let matrix = Matrix::new(ty, shape, &bytes, packed).unwrap();
    let refused = |op: Operation, threads| {
        let error = matrix.operation(&op, threads).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument, "{op:?}: {error}");
    };
    refused(Operation::product(0), 1);
    refused(Operation::product(usize::MAX), 1);
    refused(Operation::product(1).with_gap(usize::MAX), 1);
    refused(Operation::product(1), 0);
    refused(Operation::product(1), 100_000);
    refused(Operation::experts(1, 1, 1), 1);
    refused(Operation::rows(0), 1);
    let mut product = matrix.operation(&Operation::rows(2), 1).unwrap();
    for ids in [&[0][..], &[0, 3], &[-1, 0], &[0, 1, 2]] {
        let error = product.set_inputs(&[], ids).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    }
    product.set_inputs(&[], &[2, 0]).unwrap();
    let columns = columns + 1;
    let error = Pair::new(layout, MatrixShape::new(3, columns)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Unsupported);

    let experts = MatrixShape::experts(3, 1, layout.column_multiple());
    let matrix = Matrix::new(ty, experts, &bytes, packed).unwrap();
    for op in [Operation::product(1), Operation::rows(1), Operation::experts(1, 3, 2)] {
        let error = matrix.operation(&op, 1).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument, "{op:?}");
    }
    let mut product = matrix.operation(&Operation::experts(2, 1, 1), 1).unwrap();
    let inputs = vec![0.0; 2 * layout.column_multiple()];
    assert!(product.set_inputs(&inputs, &[3, 0]).is_err());
    assert!(product.set_inputs(&inputs, &[-2, 0]).is_err());
    product.set_inputs(&inputs, &[-1, 2]).unwrap();
}

//! A layout beside ggml's own way with the same weights.

use std::time::{Duration, Instant};

use smol_gguf::TensorType;

use super::random::{Random, Weights, many_rows};
use super::{Layout, Matrix, MatrixShape, Operation, Product, Storage};
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::clock::ThreadTime;

/// The same random weights twice: packed by a layout, and as stock llama.cpp keeps them.
#[derive(Debug)]
pub struct Pair {
    ours: Matrix,
    stock: Matrix,
}

/// What a packed matrix is put beside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Beside {
    /// The same weights as stock llama.cpp keeps them.
    Stock,
    /// What the layout has made of the weights, in full precision.
    Unpacked,
}

/// How far two outputs are apart.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// The largest difference, as a part of the root mean square of the products with the same row of activations.
    pub error: f64,
    /// Whether there is no difference at all.
    pub identical: bool,
}

/// How to measure.
#[derive(Debug, Clone)]
pub struct MeasureOptions {
    /// Threads that compute.
    pub threads: u32,
    /// Most time for one measurement. It is exceeded only if each way once takes longer.
    pub time: Duration,
    /// Stops the measurement.
    pub cancel: CancelToken,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        Self { threads: 1, time: Duration::from_secs(1), cancel: CancelToken::new() }
    }
}

/// Times of an operation.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Times {
    /// The shortest.
    pub best: Duration,
    /// The median.
    pub median: Duration,
}

/// An operation measured both ways by turns.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Measurement {
    /// With the layout.
    pub ours: Times,
    /// As stock llama.cpp does it.
    pub stock: Times,
    /// How many times as fast the layout is, by the shortest times: what else the machine does only adds to times.
    pub ratio: f64,
    /// The median over pairs of neighbouring samples.
    pub median_ratio: f64,
    /// Products of a weight with an activation.
    pub products: u64,
    /// Number of samples of each way.
    pub samples: usize,
    /// The two outputs.
    pub comparison: Comparison,
}

impl Pair {
    /// Makes random weights of the kind that the layout takes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the layout doesn't take rows of this length; [`ErrorKind::OutOfMemory`].
    pub fn new(layout: Layout, shape: MatrixShape) -> Result<Self> {
        Self::beside(layout, shape, Beside::Stock)
    }

    pub(super) fn beside(layout: Layout, shape: MatrixShape, beside: Beside) -> Result<Self> {
        layout.plain_row_bytes(shape.columns)?;
        let (Some(rows), Some(_)) = (shape.all_rows().filter(|rows| *rows > 0), shape.weights())
        else {
            return Err(Error::invalid(format!("there is no matrix {shape}")));
        };
        let weight_type = layout.weight_type();
        let mut refusal = None;
        for weights in Weights::ALL {
            let mut random = Random::new(7);
            let bytes = many_rows(weights, weight_type, rows, shape.columns, &mut random)?;
            match Matrix::new(weight_type, shape, &bytes, Storage::Packed(layout)) {
                Ok(ours) if beside == Beside::Stock => {
                    return Ok(Self { ours, stock: Matrix::stock(weight_type, shape, &bytes)? });
                }
                Ok(ours) => {
                    let floats = layout.round_trip(shape.columns, &bytes)?;
                    let floats: Vec<u8> = floats.iter().flat_map(|x| x.to_ne_bytes()).collect();
                    let stock = Matrix::new(TensorType::F32, shape, &floats, Storage::Plain)?;
                    return Ok(Self { ours, stock });
                }
                Err(error) if error.kind() == &ErrorKind::Unsupported => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(refusal.unwrap_or_else(|| Error::invalid("no weights")))
    }

    /// Returns the packed matrix.
    pub fn ours(&self) -> &Matrix {
        &self.ours
    }

    /// Returns the matrix as stock llama.cpp keeps it.
    pub fn stock(&self) -> &Matrix {
        &self.stock
    }

    /// Computes an operation with random inputs both ways and compares the outputs.
    ///
    /// # Errors
    /// As [`Matrix::operation`].
    pub fn compare(&self, operation: &Operation, threads: u32) -> Result<Comparison> {
        let (mut ours, mut stock) = self.products(operation, threads)?;
        ours.compute(1)?;
        stock.compute(1)?;
        Ok(self.comparison(operation, &ours, &stock))
    }

    /// Returns the largest `n` up to `most` for which `operation(n)` takes at most `time` both ways together, at least 1.
    ///
    /// # Errors
    /// As [`Matrix::operation`].
    pub fn affordable(
        &self,
        operation: impl Fn(usize) -> Operation,
        most: usize,
        time: Duration,
        threads: u32,
    ) -> Result<usize> {
        // More than one: prompts take less time a token.
        let trial = most.clamp(1, 4);
        let (mut ours, mut stock) = self.products(&operation(trial), threads)?;
        // The first time pays for page faults.
        ours.compute(1)?;
        stock.compute(1)?;
        let start = Instant::now();
        ours.compute(1)?;
        stock.compute(1)?;
        let each = start.elapsed().as_secs_f64() / trial as f64;
        let n = (time.as_secs_f64() / each.max(1e-9)) as usize;
        // Round numbers compare better with other machines.
        let round = if n < 16 { n } else { n / 16 * 16 };
        Ok(round.clamp(1, most.max(1)))
    }

    /// Times an operation both ways by turns.
    ///
    /// With one thread it is the time that the thread computes, where the system tells it: what other programs do
    /// meanwhile counts less. With more it is the time that passes.
    ///
    /// # Errors
    /// As [`Matrix::operation`]; [`ErrorKind::Cancelled`].
    pub fn measure(&self, operation: &Operation, options: &MeasureOptions) -> Result<Measurement> {
        // Shorter samples would measure the start of a graph.
        const SAMPLE: Duration = Duration::from_millis(2);
        const LEAST_SAMPLES: usize = 3;
        let begin = Instant::now();
        let (mut ours, mut stock) = self.products(operation, options.threads)?;
        // The first time pays for page faults.
        let time = if options.threads == 1 { thread_time } else { wall_time };
        let first = (time(&mut ours, 1)?, time(&mut stock, 1)?);
        let comparison = self.comparison(operation, &ours, &stock);
        let times = |first: Duration| {
            (SAMPLE.as_secs_f64() / first.as_secs_f64().max(1e-9)).ceil().clamp(1.0, 1e4) as u32
        };
        let (ours_times, stock_times) = (times(first.0), times(first.1));
        let mut samples = Vec::new();
        while samples.len() < LEAST_SAMPLES || begin.elapsed() < options.time {
            if options.cancel.is_cancelled() {
                return Err(Error::cancelled("the measurement"));
            }
            // Both orders, so that neither way gains by its place.
            samples.push(if samples.len() % 2 == 0 {
                let ours = time(&mut ours, ours_times)?;
                (ours, time(&mut stock, stock_times)?)
            } else {
                let stock = time(&mut stock, stock_times)?;
                (time(&mut ours, ours_times)?, stock)
            });
            let one_more = samples
                .last()
                .map_or(Duration::ZERO, |(ours, stock)| *ours * ours_times + *stock * stock_times);
            if begin.elapsed() + one_more > options.time && samples.len() >= LEAST_SAMPLES {
                break;
            }
        }
        let mut ratios: Vec<_> = samples
            .iter()
            .map(|(ours, stock)| stock.as_secs_f64() / ours.as_secs_f64().max(1e-12))
            .collect();
        ratios.sort_by(f64::total_cmp);
        let shape = self.ours.shape();
        let products = shape.rows as u64 * shape.columns as u64 * operation.columns() as u64;
        let ours = Times::of(samples.iter().map(|(ours, _)| *ours));
        let stock = Times::of(samples.iter().map(|(_, stock)| *stock));
        Ok(Measurement {
            ours,
            stock,
            ratio: stock.best.as_secs_f64() / ours.best.as_secs_f64().max(1e-12),
            median_ratio: ratios[ratios.len() / 2],
            products,
            samples: samples.len(),
            comparison,
        })
    }

    /// The operation both ways, with the same random inputs.
    fn products(&self, operation: &Operation, threads: u32) -> Result<(Product, Product)> {
        let shape = self.ours.shape();
        let mut random = Random::new(11);
        let activations = random.activations(operation.activations(shape.columns));
        let range = operation.id_range(shape);
        let ids: Vec<_> = (0..operation.ids()).map(|_| random.below(range) as i32).collect();
        let make = |matrix: &Matrix| -> Result<Product> {
            let mut product = matrix.operation(operation, threads)?;
            product.set_inputs(&activations, &ids)?;
            Ok(product)
        };
        Ok((make(&self.ours)?, make(&self.stock)?))
    }

    fn comparison(&self, operation: &Operation, ours: &Product, stock: &Product) -> Comparison {
        let shape = self.ours.shape();
        let row = if operation.activations(1) == 0 { shape.columns } else { shape.rows };
        Comparison::of(ours.output(), stock.output(), row)
    }
}

impl Comparison {
    /// Compares outputs of which `row` floats belong together.
    fn of(ours: &[f32], stock: &[f32], row: usize) -> Self {
        let mut error = 0.0_f64;
        for (ours, stock) in ours.chunks(row).zip(stock.chunks(row)) {
            let squares: f64 = stock.iter().map(|value| f64::from(*value).powi(2)).sum();
            let scale = (squares / stock.len() as f64).sqrt();
            let differences = ours.iter().zip(stock).map(|(a, b)| f64::from((a - b).abs()));
            // Other than with f64::max a NaN stays.
            let largest = differences.fold(0.0, |a, b| if b > a || b.is_nan() { b } else { a });
            let part = if largest == 0.0 { 0.0 } else { largest / scale };
            error = if part > error || part.is_nan() { part } else { error };
            if error.is_nan() {
                break;
            }
        }
        let identical = ours.iter().zip(stock).all(|(a, b)| a.to_bits() == b.to_bits());
        Self { error, identical }
    }
}

impl Times {
    fn of(times: impl Iterator<Item = Duration>) -> Self {
        let mut times: Vec<_> = times.collect();
        times.sort();
        Self { best: times[0], median: times[times.len() / 2] }
    }
}

/// The time that passes in one of `times` computations.
fn wall_time(product: &mut Product, times: u32) -> Result<Duration> {
    let start = Instant::now();
    product.compute(times)?;
    Ok(start.elapsed() / times)
}

/// The time that this thread, the only one, computes in one of `times` computations.
fn thread_time(product: &mut Product, times: u32) -> Result<Duration> {
    let start = ThreadTime::now();
    product.compute(times)?;
    Ok(start.elapsed() / times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_parts_of_the_rows_size() {
        let same = Comparison::of(&[1.0, -2.0], &[1.0, -2.0], 2);
        assert_eq!(same, Comparison { error: 0.0, identical: true });
        let off = Comparison::of(&[3.0, -3.0, 1e6], &[3.0, -3.3, 1e6], 1);
        assert!((off.error - 0.3 / 3.3).abs() < 1e-6 && !off.identical, "{off:?}");
        let none = Comparison::of(&[f32::NAN, 1.0, 2.0], &[1.0, 1.0, 1.0], 1);
        assert!(none.error.is_nan() && !none.identical);
        assert_eq!(Comparison::of(&[1.0], &[0.0], 1).error, f64::INFINITY);
    }

    #[test]
    fn medians_and_minima() {
        let times = Times::of([3, 1, 2].into_iter().map(Duration::from_secs));
        assert_eq!((times.best.as_secs(), times.median.as_secs()), (1, 2));
    }
}

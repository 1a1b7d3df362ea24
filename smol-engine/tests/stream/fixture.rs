//! Models to stream from.

use crate::files::Fake;
use smol_engine::io::ReadAt;
use smol_engine::stream::{Packer, Stream, StreamConfig, StreamTensor};
use std::sync::{Arc, Barrier};

/// Bytes of a row: on no boundary of anything.
pub const ROW: usize = 1010;
/// Rows of each tensor: one read, several, many.
pub const ROWS: [u64; 7] = [300, 1, 66, 150, 412, 97, 8];
/// Rows that are packed together.
pub const GROUP: usize = 5;
/// Bytes of a packed group.
const PACKED: usize = 79 * 64;
/// The order in which a graph uses them, one twice.
pub const ORDER: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 1];

/// Turns each group of rows around, and makes it longer.
struct Groups;

impl Packer for Groups {
    fn pack(&self, plain: &[u8], packed: &mut [u8]) {
        let packed = packed.chunks_mut(PACKED);
        for (group, packed) in plain.chunks(GROUP * ROW).zip(packed) {
            let (front, rest) = packed.split_at_mut(group.len());
            for (to, from) in front.iter_mut().zip(group.iter().rev()) {
                *to = !from;
            }
            rest.fill(0xab);
        }
    }
}

/// Returns the tensors, each packed whose number has its bit in `packed`, and the bytes of a file
/// that they lie in.
pub fn tensors(packed: u32) -> (Vec<StreamTensor>, usize) {
    let mut offset = 1234;
    let mut tensors = Vec::new();
    for (number, rows) in ROWS.into_iter().enumerate() {
        let is_packed = packed >> number & 1 == 1;
        let file_bytes = rows * ROW as u64;
        let packed = rows.div_ceil(GROUP as u64) as usize * (PACKED);
        tensors.push(StreamTensor {
            name: format!("blk.{number}.ffn_up.weight"),
            file: 0,
            offset,
            file_bytes,
            bytes: if is_packed { packed } else { file_bytes as usize },
            row_bytes: ROW,
            rows,
            packed: None,
            packer: is_packed.then(|| Arc::new(Groups) as Arc<dyn Packer>),
            group_rows: if number == 6 { 0 } else { GROUP },
        });
        offset += file_bytes + 96;
    }
    (tensors, offset as usize)
}

/// Some packed, some not.
pub const MIXED: u32 = 0b101_0101;

/// Makes a stream of a file in memory whose zone has so many bytes more than the least one.
pub fn stream(
    more: u64,
    packed: u32,
    alignment: usize,
    config: StreamConfig,
) -> (Arc<Stream>, Arc<Fake>) {
    let (tensors, len) = tensors(packed);
    let file = Fake::new(len, alignment);
    let files = vec![Arc::clone(&file) as Arc<dyn ReadAt>];
    let zone = Stream::floor(&files, &tensors, &config) + more;
    let stream = Stream::new(files, tensors, &StreamConfig { zone, ..config }).unwrap();
    assert!(stream.held() <= zone);
    (stream, file)
}

/// A stream on its floor.
pub fn small() -> (Arc<Stream>, Arc<Fake>) {
    stream(0, MIXED, 512, StreamConfig::default())
}

/// Checks the bytes of a use that [`Stream::wait`] has returned `true` for.
pub fn check(stream: &Stream, data: &[u8], tensor: u32, weights: *const u8) {
    let tensor = &stream.tensors()[tensor as usize];
    // SAFETY: wait() has returned true, so that these bytes are there, and the use is not over.
    let weights = unsafe { std::slice::from_raw_parts(weights, tensor.bytes) };
    let plain = &data[tensor.offset as usize..][..tensor.file_bytes as usize];
    match &tensor.packer {
        None => assert!(weights == plain, "{}", tensor.name),
        Some(packer) => {
            let mut packed = vec![0; tensor.bytes];
            packer.pack(plain, &mut packed);
            assert!(weights == packed, "{}, packed", tensor.name);
        }
    }
}

/// Computes a graph with some threads in step, as kernels do it, without its end. `false`: the
/// run has failed.
pub fn compute(stream: &Stream, data: &[u8], run: usize, order: &[u32], threads: usize) -> bool {
    let Some(weights) = stream.begin(run, order) else { return false };
    assert_eq!(weights.len(), order.len());
    let places: Vec<usize> = weights.iter().map(|weights| weights.expose_provenance()).collect();
    let step = Barrier::new(threads);
    let thread = || {
        let mut good = true;
        for (index, &tensor) in order.iter().enumerate() {
            good = stream.wait(run, index) && good;
            if good {
                check(stream, data, tensor, std::ptr::with_exposed_provenance(places[index]));
            }
            step.wait();
        }
        good
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(thread)).collect();
        let good = thread();
        others.into_iter().fold(good, |good, other| other.join().unwrap() && good)
    })
}

/// Computes a graph and ends it well.
pub fn pass(stream: &Stream, data: &[u8], run: usize, order: &[u32], threads: usize) {
    assert!(compute(stream, data, run, order, threads));
    stream.end(run).unwrap();
}

/// Bytes that a graph needs from the file at least.
pub fn bytes(stream: &Stream, order: &[u32]) -> u64 {
    order.iter().map(|&tensor| stream.tensors()[tensor as usize].file_bytes).sum()
}

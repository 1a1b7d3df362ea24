//! What memory is read and written by whom, small enough for Miri.

use super::*;
use crate::io::in_memory::{InMemory, Inverts};
use crate::stream::Packer;
use std::sync::Barrier;

const ROWS: [u64; 5] = [20, 3, 12, 25, 1];
const ROW: usize = 16;

/// Makes a stream of tensors of 16 bytes a row, every second of them packed in groups of 4 rows.
fn stream(zone: impl Fn(u64) -> u64, verify: bool) -> (Arc<Stream>, Vec<u8>) {
    let mut offset = 5;
    let tensor = |(number, rows): (usize, u64)| {
        let bytes = rows as usize * ROW;
        offset += bytes as u64;
        let packed = (rows as usize).div_ceil(4) * 4 * ROW;
        StreamTensor {
            name: number.to_string(),
            file: 0,
            offset: offset - bytes as u64,
            file_bytes: bytes as u64,
            bytes: if number % 2 == 0 { packed } else { bytes },
            row_bytes: ROW,
            rows,
            packed: None,
            packer: (number % 2 == 0).then(|| Arc::new(Inverts) as Arc<dyn Packer>),
            group_rows: 4,
        }
    };
    let tensors: Vec<_> = ROWS.into_iter().enumerate().map(tensor).collect();
    let data: Vec<u8> = (0..offset + 3).map(|i| (i * 7) as u8).collect();
    let files: Vec<Arc<dyn ReadAt>> = vec![Arc::new(InMemory(data.clone(), Mode::Direct))];
    let mut config = StreamConfig { readers: 2, verify, ..StreamConfig::default() };
    config.zone = zone(Plan::least(&files, &tensors, &config, &[64]));
    (Stream::with_reads(files, tensors, &config, &[64]).unwrap(), data)
}

fn check(stream: &Stream, data: &[u8], tensor: u32, weights: *const u8) {
    let tensor = &stream.tensors()[tensor as usize];
    let len = tensor.file_bytes as usize;
    // SAFETY: wait() has returned true for as many bytes or more, and the use is not over.
    let weights = unsafe { std::slice::from_raw_parts(weights, len) };
    let plain = &data[tensor.offset as usize..][..len];
    let packed: Vec<u8> = plain.iter().map(|byte| !byte).collect();
    assert_eq!(weights, if tensor.packer.is_some() { &packed } else { plain });
}

fn pass(stream: &Stream, data: &[u8], order: &[u32]) {
    let weights = stream.begin(1, order).expect("it begins");
    let places: Vec<usize> = weights.iter().map(|weights| weights.addr()).collect();
    let step = Barrier::new(2);
    let compute = || {
        for (index, (&tensor, place)) in order.iter().zip(&places).enumerate() {
            assert!(stream.wait(1, index));
            let ring = stream.shared.lock().ring.as_ref().map(|ring| ring.address(0));
            let ring = ring.expect("something is streamed");
            check(stream, data, tensor, ring.wrapping_add(place - ring.addr()));
            step.wait();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(compute);
        compute();
    });
    stream.end(1).unwrap();
}

#[test]
fn every_use_sees_its_bytes() {
    for (verify, zone) in [(false, 0), (true, 0), (false, 4096), (false, 1 << 20)] {
        let (stream, data) = stream(|floor| floor + zone, verify);
        assert!(stream.shared.plan.tensors[0].pieces.len() > 2);
        for order in [&[0, 1, 2, 3, 4][..], &[0, 1, 2], &[3, 3], &[]] {
            pass(&stream, &data, order);
        }
        assert_eq!(stream.statistics().passes, 3);
    }
}

#[test]
fn memory_is_given_back_while_reads_go_on() {
    let (stream, data) = stream(|_| 1 << 20, true);
    for (zone, rows) in [(0, 25), (1 << 20, 61), (0, 25)] {
        pass(&stream, &data, &[0, 1, 2, 3, 4]);
        let held = stream.set_zone(zone);
        assert_eq!(held, stream.held());
        assert!(stream.shared.lock().state.capacity() >= rows * ROW as u64);
    }
    pass(&stream, &data, &[4, 3, 2, 1, 0]);
}

#[test]
fn what_is_overwritten_while_it_is_used_is_found() {
    for end in [false, true] {
        let (stream, _) = stream(|floor| floor, true);
        let weights = stream.begin(1, &[3, 1]).unwrap()[0];
        assert!(stream.wait(1, 0));
        let mut byte = weights.cast_mut();
        byte = byte.wrapping_add(17);
        // SAFETY: within the tensor's bytes, which no other thread looks at now.
        let old = unsafe { byte.read() };
        // SAFETY: as above; no reference to them exists before the next call.
        unsafe { byte.write(!old) };
        if !end {
            assert!(!stream.wait(1, 1));
        }
        let error = stream.end(1).unwrap_err();
        assert!(matches!(&error, Error::Overwritten { tensor } if tensor == "3"), "{error}");
        // The next run reads it anew.
        assert!(stream.begin(1, &[3]).is_some() && stream.wait(1, 0));
        stream.end(1).unwrap();
    }
}

#[test]
fn rows_are_those_of_the_file() {
    let (stream, data) = stream(|floor| floor, false);
    let ids = [24, 0, 3, 3, 24, 7];
    let mut out = vec![0; ids.len() * ROW];
    stream.rows(3, &ids, &mut out).unwrap();
    let start = stream.tensors()[3].offset as usize;
    for (id, row) in ids.into_iter().zip(out.chunks(ROW)) {
        assert_eq!(row, &data[start + id as usize * ROW..][..ROW]);
    }
}

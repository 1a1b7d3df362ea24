//! Every use sees the bytes of the file, whatever the zone.

use crate::files::{Random, eventually};
use crate::fixture::{MIXED, ORDER, ROW, ROWS, bytes, compute, pass, stream, tensors};
use smol_engine::io::{IoChoice, ReadAt};
use smol_engine::stream::{Error, PackedPlace, Stream, StreamConfig};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn any_zone_form_and_number_of_readers() {
    let all = 3_000_000;
    for (number, more) in [0, 1, 5000, 70_000, 300_000, all].into_iter().enumerate() {
        for (packed, alignment) in [(0, 512), (u32::MAX, 4096), (MIXED, 512), (MIXED, 1)] {
            let readers = [0, 1, 2, 7, 0, 3][number];
            let verify = packed == MIXED;
            let config = StreamConfig { readers, verify, ..StreamConfig::default() };
            let (stream, file) = stream(more, packed, alignment, config);
            for threads in [1, 3] {
                for _ in 0..2 {
                    pass(&stream, &file.data, 1, &ORDER, threads);
                }
            }
            let statistics = stream.statistics();
            assert_eq!((statistics.passes, statistics.wasted_mb), (4, 0.0));
            let least = 4 * bytes(&stream, &ORDER);
            assert!(statistics.bytes_read >= least);
            if alignment == 1 {
                // What is read ahead for a fifth pass comes on top.
                assert!(statistics.bytes_read <= least + bytes(&stream, &ORDER));
            }
            assert!(readers == 0 || statistics.readers == readers);
            assert_eq!(statistics.io_mode, "direct");
        }
    }
}

#[test]
fn any_order() {
    let mut random = Random(4711);
    for more in [0, 100_000, 600_000] {
        let (stream, file) = stream(more, MIXED, 512, StreamConfig::default());
        let mut order = Vec::new();
        for _ in 0..40 {
            match random.below(3) {
                0 => {}
                // As before, but for the end.
                1 => order.truncate(random.below(9)),
                _ => order = (0..random.below(12)).map(|_| random.below(7) as u32).collect(),
            }
            pass(&stream, &file.data, 1, &order, 1 + random.below(2));
        }
    }
}

#[test]
fn the_next_pass_is_read_ahead() {
    // One reader, so that what is needed first has come if as much has.
    let config = StreamConfig { readers: 1, ..StreamConfig::default() };
    let (stream, file) = stream(400_000, MIXED, 1, config);
    pass(&stream, &file.data, 1, &ORDER, 1);
    // As much as there is room for; then it rests.
    let start = bytes(&stream, &ORDER[..3]);
    let read = || stream.statistics().bytes_read - bytes(&stream, &ORDER);
    eventually(|| read() >= start);
    let late = stream.statistics().late;
    let gate = file.close_gate();
    let weights = stream.begin(1, &ORDER).unwrap();
    assert_eq!(weights.len(), ORDER.len());
    assert!((0..3).all(|index| stream.wait(1, index)), "without a read");
    assert_eq!(stream.statistics().late, late);
    gate.open();
    assert!((3..ORDER.len()).all(|index| stream.wait(1, index)));
    stream.end(1).unwrap();
    assert_eq!(stream.statistics().wasted_mb, 0.0);
}

#[test]
fn another_order_costs_what_was_read_in_vain() {
    let (stream, file) = stream(400_000, 0, 1, StreamConfig::default());
    pass(&stream, &file.data, 1, &ORDER, 1);
    eventually(|| stream.statistics().bytes_read > bytes(&stream, &ORDER) + 350_000);
    let other = [3, 5];
    pass(&stream, &file.data, 1, &other, 1);
    let statistics = stream.statistics();
    assert!(statistics.wasted_mb > 0.3, "{statistics:?}");
    pass(&stream, &file.data, 1, &ORDER, 1);
}

#[test]
fn graphs_that_alternate_are_foreseen() {
    let (stream, file) = stream(400_000, MIXED, 512, StreamConfig::default());
    let drafts = [3, 5];
    let cycle = || {
        for order in [&ORDER[..], &drafts, &drafts] {
            pass(&stream, &file.data, 1, order, 1);
        }
    };
    cycle();
    cycle();
    let wasted = stream.statistics().wasted_mb;
    for _ in 0..4 {
        cycle();
    }
    assert_eq!(stream.statistics().wasted_mb, wasted);
}

#[test]
fn slow_files_cost_time_only() {
    let (stream, file) = stream(0, MIXED, 512, StreamConfig::default());
    file.set_delay(Duration::from_millis(10));
    pass(&stream, &file.data, 1, &ORDER, 2);
    let statistics = stream.statistics();
    // All of them, unless what computes is slower than the file.
    assert!((1..=ORDER.len() as u64).contains(&statistics.late), "{statistics:?}");
    assert!(statistics.wait_ms_per_pass > 0.0, "{statistics:?}");
}

#[test]
fn files_on_a_disk() {
    let (tensors, len) = tensors(MIXED);
    let data = crate::files::Fake::new(len, 1).data.clone();
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
    file.write_all(&data).unwrap();
    for io in IoChoice::ALL {
        for zone in [900_000, 2 << 20] {
            let config = StreamConfig { zone, io, ..StreamConfig::default() };
            let stream = Stream::open([file.path()], tensors.clone(), &config).unwrap();
            for _ in 0..3 {
                pass(&stream, &data, 1, &ORDER, 2);
            }
            let mode = stream.statistics().io_mode;
            assert!(io == IoChoice::Auto || mode == "buffered: it was asked for", "{mode}");
        }
    }
    let missing = Stream::open(["/none/model.gguf"], tensors, &StreamConfig::default());
    assert!(missing.unwrap_err().to_string().contains("/none/model.gguf"));
}

#[test]
fn rows_come_as_they_are_in_the_file() {
    for alignment in [1, 512] {
        let (stream, file) = stream(0, MIXED, alignment, StreamConfig::default());
        let mut random = Random(3);
        for (tensor, rows) in ROWS.into_iter().enumerate() {
            let ids: Vec<u32> = (0..50).map(|_| random.below(rows as usize) as u32).collect();
            let mut out = vec![0; ids.len() * ROW];
            stream.rows(tensor as u32, &ids, &mut out).unwrap();
            let start = stream.tensors()[tensor].offset as usize;
            for (id, row) in ids.into_iter().zip(out.chunks(ROW)) {
                assert!(row == &file.data[start + id as usize * ROW..][..ROW]);
            }
        }
        stream.rows(0, &[], &mut []).unwrap();
        assert!(stream.statistics().bytes_read > 0 && stream.statistics().passes == 0);
    }
}

#[test]
fn packed_bytes_come_from_where_they_lie() {
    for (alignment, verify) in [(512, false), (4096, true), (1, false)] {
        let (mut tensors, len) = tensors(MIXED);
        let plain = crate::files::Fake::new(len, alignment);
        let mut data = Vec::new();
        for tensor in &mut tensors {
            let Some(packer) = &tensor.packer else { continue };
            let start = data.len().next_multiple_of(4096);
            data.resize(start + tensor.bytes, 0);
            let from = &plain.data[tensor.offset as usize..][..tensor.file_bytes as usize];
            packer.pack(from, &mut data[start..]);
            tensor.packed = Some(PackedPlace { file: 1, offset: start as u64 });
        }
        let packed = crate::files::Fake::of(data, alignment);
        let both = [&plain, &packed].map(|file| Arc::clone(file) as Arc<dyn ReadAt>);
        let files = || both.to_vec();
        let config = StreamConfig { verify, ..StreamConfig::default() };
        let zone = Stream::floor(&files(), &tensors, &config);
        let config = StreamConfig { zone, ..config };
        let stream = Stream::new(files(), tensors.clone(), &config).unwrap();
        assert!(stream.held() <= zone);
        for threads in [1, 2] {
            pass(&stream, &plain.data, 1, &ORDER, threads);
        }
        // But for the blocks at both ends, which have bytes of others too.
        let inside = |tensor: usize| {
            let start = tensors[tensor].offset + 4096;
            let end = start + tensors[tensor].file_bytes - 2 * 4096;
            plain.offsets.lock().unwrap().iter().any(|offset| (start..end).contains(offset))
        };
        assert!(inside(1) || inside(3), "plain ones");
        assert!(!inside(0) && !inside(4), "packed ones");
        // Rows are those of the model.
        let mut row = [0; ROW];
        stream.rows(4, &[411], &mut row).unwrap();
        assert!(row == plain.data[tensors[4].offset as usize + 411 * ROW..][..ROW]);
        // The second file is watched as well.
        packed.changed.store(true, std::sync::atomic::Ordering::SeqCst);
        let failed = !compute(&stream, &plain.data, 1, &ORDER, 1);
        assert!(stream.end(1).is_err() || failed);
    }
}

#[test]
fn rows_that_do_not_exist_are_refused() {
    let (stream, _) = stream(0, 0, 512, StreamConfig::default());
    let mut out = [0; ROW];
    for (tensor, ids, len, text) in [
        (7, &[0][..], ROW, "no streamed tensor 7 of 7"),
        (0, &[300], ROW, "no row 300 of 300"),
        (0, &[0], ROW - 1, "do not fill 1009 bytes"),
        (0, &[0, 1], ROW, "2 rows"),
    ] {
        let error = stream.rows(tensor, ids, &mut out[..len]).unwrap_err();
        assert!(matches!(&error, Error::Request(told) if told.contains(text)), "{error}");
    }
}

#[test]
fn tables_of_rows_take_no_memory() {
    let (mut tensors, len) = tensors(0);
    for tensor in [0, 3, 4] {
        tensors[tensor].bytes = 0;
    }
    let file = crate::files::Fake::new(len, 512);
    let files =
        || vec![std::sync::Arc::clone(&file) as std::sync::Arc<dyn smol_engine::io::ReadAt>];
    let config = StreamConfig { zone: 110_000, ..StreamConfig::default() };
    assert!(Stream::floor(&files(), &tensors, &config) < 110_000, "the largest has 98 kB");
    let stream = Stream::new(files(), tensors.clone(), &config).unwrap();
    pass(&stream, &file.data, 1, &[1, 2, 5, 6], 1);
    let mut row = [0; ROW];
    stream.rows(4, &[411], &mut row).unwrap();
    assert!(row == file.data[tensors[4].offset as usize + 411 * ROW..][..ROW]);
    assert!(!compute(&stream, &file.data, 1, &[1, 4], 1));
    let text = stream.end(1).unwrap_err().to_string();
    assert!(text.contains("`blk.4.ffn_up.weight` is streamed by row"), "{text}");
    // Nothing but rows.
    tensors.truncate(1);
    let stream = Stream::new(files(), tensors, &StreamConfig { zone: 0, ..config }).unwrap();
    stream.rows(0, &[7], &mut row).unwrap();
    assert_eq!((stream.held(), stream.set_zone(1 << 20)), (0, 0));
    pass(&stream, &file.data, 1, &[], 1);
}

//! Files that fail, stop short, lie or change.

use crate::files::{ChangingFile, Fake, Outcome, Random, eventually};
use crate::fixture::{MIXED, ORDER, bytes, compute, pass, small, stream, tensors};
use smol_engine::io::{self, ReadAt};
use smol_engine::stream::{Error, Packer, Stream, StreamConfig};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const RUN: usize = 7;

#[test]
fn a_failed_read_ends_the_run_and_names_file_and_offset() {
    for (more, threads) in [(0, 1), (0, 3), (2_000_000, 2)] {
        let (stream, file) = stream(more, MIXED, 512, StreamConfig::default());
        let tensor = &stream.tensors()[3];
        let middle = tensor.offset + tensor.file_bytes / 2;
        let broken = Arc::new(AtomicBool::new(true));
        let still = Arc::clone(&broken);
        file.script(move |at, len| {
            let hit = (at..at + len as u64).contains(&middle);
            if hit && still.load(Ordering::SeqCst) {
                Outcome::Fails(std::io::ErrorKind::PermissionDenied)
            } else {
                Outcome::Good
            }
        });
        assert!(!compute(&stream, &file.data, RUN, &ORDER, threads));
        assert!(!stream.wait(RUN, 7), "a failed run stays so");
        let error = stream.end(RUN).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/models/fake.gguf") && text.contains("at offset"), "{text}");
        let Error::Io(io::Error::Read { offset, len, .. }) = error else { panic!("{error:?}") };
        assert!((offset..offset + len as u64).contains(&middle));
        // The next run tries again.
        broken.store(false, Ordering::SeqCst);
        for _ in 0..2 {
            pass(&stream, &file.data, RUN, &ORDER, threads);
        }
        assert_eq!(stream.statistics().passes, 2);
    }
}

#[test]
fn what_fails_ahead_of_time_is_tried_again() {
    // One reader, which reads in order.
    let config = StreamConfig { readers: 1, ..StreamConfig::default() };
    let (stream, file) = stream(2_000_000, MIXED, 512, config);
    let gate = file.close_gate();
    let weights = stream.begin(RUN, &[0, 1]).unwrap();
    assert_eq!(weights.len(), 2);
    let noted = Arc::new(AtomicBool::new(false));
    let note = Arc::clone(&noted);
    let (mut seen, start) = (0, stream.tensors()[0].offset / 512 * 512);
    file.script(move |at, _| {
        seen += u64::from(at == start);
        // The reader asks for more only after it has told what became of the read before.
        note.fetch_or(seen >= 2 && at != start, Ordering::SeqCst);
        let is_ahead = seen == 2 && at == start;
        if is_ahead { Outcome::Fails(std::io::ErrorKind::Other) } else { Outcome::Good }
    });
    gate.open();
    assert!(stream.wait(RUN, 0) && stream.wait(RUN, 1));
    stream.end(RUN).unwrap();
    eventually(|| noted.load(Ordering::SeqCst));
    pass(&stream, &file.data, RUN, &[0, 1], 2);
}

#[test]
fn short_and_interrupted_reads_are_completed() {
    for alignment in [1, 512] {
        let (stream, file) = stream(0, MIXED, alignment, StreamConfig::default());
        let mut random = Random(5);
        file.script(move |_, _| match random.below(4) {
            0 => Outcome::Fails(std::io::ErrorKind::Interrupted),
            1 => Outcome::Short(1 + random.below(30_000)),
            2 => Outcome::Short(1 + random.below(1000)),
            _ => Outcome::Good,
        });
        for _ in 0..3 {
            pass(&stream, &file.data, RUN, &ORDER, 2);
        }
    }
}

#[test]
fn reads_that_never_get_on_and_files_that_end_fail() {
    for (most, text) in [(100, "stop short"), (0, "Truncated")] {
        let (stream, file) = small();
        file.script(move |_, _| Outcome::Short(most));
        assert!(!compute(&stream, &file.data, RUN, &ORDER, 2));
        let told = format!("{:?}", stream.end(RUN).unwrap_err());
        assert!(told.contains(text), "{told}");
    }
}

#[test]
fn a_changed_file_ends_all_runs_for_good() {
    let (stream, file) = small();
    pass(&stream, &file.data, RUN, &ORDER, 1);
    file.changed.store(true, Ordering::SeqCst);
    for run in [RUN, RUN, RUN + 1] {
        compute(&stream, &file.data, run, &ORDER, 1);
        let error = stream.end(run).unwrap_err();
        assert!(matches!(error, Error::Io(io::Error::Changed { .. })), "{error:?}");
    }
    file.changed.store(false, Ordering::SeqCst);
    assert!(stream.begin(RUN, &ORDER).is_none());
    assert!(stream.end(RUN).is_err());
}

#[test]
fn a_long_run_notices_within_seconds() {
    let (stream, file) = small();
    file.changed.store(true, Ordering::SeqCst);
    file.set_delay(Duration::from_millis(20));
    let order: Vec<u32> = (0..400).map(|index| index % 7).collect();
    assert!(!compute(&stream, &file.data, RUN, &order, 1));
    assert!(matches!(stream.end(RUN), Err(Error::Io(io::Error::Changed { .. }))));
}

#[test]
fn a_failure_of_a_changed_file_says_that_it_was_changed() {
    let (stream, file) = small();
    file.changed.store(true, Ordering::SeqCst);
    file.script(|_, _| Outcome::Fails(std::io::ErrorKind::Other));
    assert!(!compute(&stream, &file.data, RUN, &ORDER, 1));
    let text = stream.end(RUN).unwrap_err().to_string();
    assert!(text.contains("was changed while in use"), "{text}");
}

#[test]
fn verifying_finds_what_the_disk_got_wrong() {
    for verify in [false, true] {
        let config = StreamConfig { verify, ..StreamConfig::default() };
        let (stream, file) = stream(0, MIXED, 512, config);
        let count = AtomicU64::new(0);
        file.script(move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
            6 => Outcome::Wrong,
            _ => Outcome::Good,
        });
        let good = stream.begin(RUN, &ORDER).is_some()
            && (0..ORDER.len()).all(|index| stream.wait(RUN, index));
        match (verify, good, stream.end(RUN)) {
            (false, true, Ok(())) => {}
            (true, false, Err(Error::Io(io::Error::Corrupt { .. }))) => {}
            (_, _, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_packer_that_panics_fails_the_run() {
    struct Panics;
    impl Packer for Panics {
        fn pack(&self, _: &[u8], _: &mut [u8]) {
            panic!("on purpose");
        }
    }
    let (mut tensors, len) = tensors(0);
    tensors[2].packer = Some(Arc::new(Panics));
    let file = Fake::new(len, 512);
    let files = vec![Arc::clone(&file) as Arc<dyn ReadAt>];
    let config = StreamConfig { zone: 1_000_000, ..StreamConfig::default() };
    let stream = Stream::new(files, tensors, &config).unwrap();
    assert!(!compute(&stream, &file.data, RUN, &ORDER, 1));
    let text = stream.end(RUN).unwrap_err().to_string();
    assert!(text.contains("`blk.2.ffn_up.weight` did not come"), "{text}");
    // The threads live on.
    for _ in 0..2 {
        pass(&stream, &file.data, RUN, &[0, 1, 3, 4], 1);
    }
}

#[test]
fn what_does_not_exist_fails_the_run_only() {
    let (stream, file) = small();
    for order in [&[7][..], &[0, 1, u32::MAX]] {
        assert!(stream.begin(RUN, order).is_none());
        assert!(!stream.wait(RUN, 0));
        assert!(matches!(stream.end(RUN), Err(Error::Request(_))));
    }
    for (first, second) in [(3, 3), (1, 0), (0, usize::MAX)] {
        assert!(stream.begin(RUN, &[0, 1, 2]).is_some());
        assert_eq!(stream.wait(RUN, first), first < 3);
        assert!(!stream.wait(RUN, second));
        assert!(matches!(stream.end(RUN), Err(Error::Request(_))));
    }
    // A run that has not begun has nothing to wait for and nothing to end.
    assert!(!stream.wait(99, 0));
    stream.end(99).unwrap();
    assert!(stream.begin(RUN, &[1]).is_some());
    assert!(!stream.wait(99, 0));
    stream.end(99).unwrap();
    assert!(stream.wait(RUN, 0));
    stream.end(RUN).unwrap();
    pass(&stream, &file.data, RUN, &ORDER, 1);
}

#[test]
fn graphs_that_are_left_early() {
    let (stream, file) = stream(300_000, MIXED, 512, StreamConfig::default());
    for last in [0, 3, 6, 2] {
        let weights = stream.begin(RUN, &ORDER).unwrap();
        assert_eq!(weights.len(), ORDER.len());
        assert!((0..last).all(|index| stream.wait(RUN, index)));
        stream.end(RUN).unwrap();
    }
    assert_eq!(stream.statistics().passes, 0);
    pass(&stream, &file.data, RUN, &ORDER, 2);
}

#[test]
fn uses_that_are_not_waited_for() {
    let (stream, file) = small();
    for _ in 0..5 {
        let weights = stream.begin(RUN, &ORDER).unwrap();
        for index in [2, 5, 7] {
            assert!(stream.wait(RUN, index));
            crate::fixture::check(&stream, &file.data, ORDER[index], weights[index]);
        }
        stream.end(RUN).unwrap();
    }
    assert_eq!(stream.statistics().passes, 5);
}

#[test]
fn dropping_while_reads_are_in_flight() {
    for more in [0, 2_000_000] {
        for _ in 0..10 {
            let (stream, file) = stream(more, MIXED, 512, StreamConfig::default());
            let gate = file.close_gate();
            assert!(stream.begin(RUN, &ORDER).is_some());
            file.await_reading(1);
            let dropped = std::thread::spawn(move || drop(stream));
            gate.open();
            dropped.join().unwrap();
            // Threads and files are gone: only the test has the file.
            assert_eq!(Arc::strong_count(&file), 1);
        }
    }
}

#[test]
fn a_replaced_or_truncated_file_is_refused() {
    let (tensors, len) = tensors(MIXED);
    let data = Fake::new(len, 1).data.clone();
    let file = ChangingFile::new(&data);
    let path = file.path();
    let config = StreamConfig { zone: 1_000_000, ..StreamConfig::default() };
    for change in 0..ChangingFile::CHANGES {
        file.write();
        let stream = Stream::open([&path], tensors.clone(), &config).unwrap();
        pass(&stream, &data, RUN, &ORDER, 1);
        file.change(change);
        if stream.begin(RUN, &ORDER).is_some() {
            (0..ORDER.len()).for_each(|index| _ = stream.wait(RUN, index));
        }
        let error = stream.end(RUN).unwrap_err();
        assert!(matches!(error, Error::Io(io::Error::Changed { .. })), "{error:?}");
        assert!(error.to_string().contains("model.gguf"), "{error}");
    }
    // Without a name it is still the same.
    file.write();
    let stream = Stream::open([&path], tensors, &config).unwrap();
    std::fs::remove_file(&path).unwrap();
    pass(&stream, &data, RUN, &ORDER, 1);
    assert!(stream.statistics().bytes_read >= bytes(&stream, &ORDER));
}

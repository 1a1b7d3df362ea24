//! Files that fail, stop short, lie or change.

use crate::files::ChangingFile;
use crate::fixture::{Outcome, Random, SIZES, Shape, eventually, layer};
use smol_engine::expert::{Error, Packer, Pager, PagerConfig};
use smol_engine::io::{self, ReadAt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const RUN: usize = 7;

#[test]
fn a_failed_read_ends_the_run_and_names_file_and_offset() {
    for budget in [None, Some(u64::MAX)] {
        let config = PagerConfig::default();
        let budget = budget.unwrap_or_else(|| Shape::SMALL.floor(&config, 512));
        let (pager, file) = Shape::SMALL.pager(&PagerConfig { budget, ..config }, 512);
        // The second tensor of expert 5, in a slot or a ring buffer.
        let tensor = &pager.layers()[1].tensors[1];
        let offset = tensor.offset + 5 * tensor.stride;
        let broken = Arc::new(AtomicBool::new(true));
        let still = Arc::clone(&broken);
        file.script(move |at, len| {
            let hit = (at..at + len as u64).contains(&offset) && at >= offset - 511;
            if hit && still.load(Ordering::SeqCst) {
                Outcome::Fails(std::io::ErrorKind::PermissionDenied)
            } else {
                Outcome::Good
            }
        });
        let all: Vec<u32> = (0..8).collect();
        assert!(layer(&pager, &file.data, RUN, 0, &all));
        assert!(!layer(&pager, &file.data, RUN, 1, &all));
        assert_eq!(pager.wait(RUN, 0), None, "a failed run stays so");
        let error = pager.end(RUN).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/models/fake.gguf") && text.contains(&offset.to_string()), "{text}");
        assert!(matches!(error, Error::Io(io::Error::Read { len: 5000, .. })), "{error:?}");
        // The next run tries again, and all that the failed one held is free.
        broken.store(false, Ordering::SeqCst);
        for number in 0..3 {
            assert!(layer(&pager, &file.data, RUN, number, &all));
        }
        pager.end(RUN).unwrap();
    }
}

#[test]
fn a_run_that_does_not_need_what_fails_goes_on() {
    let config = PagerConfig::default();
    let (pager, file) = Shape::SMALL.pager(&config, 512);
    let tensor = &pager.layers()[0].tensors[0];
    let (start, end) = (tensor.offset, tensor.offset + tensor.stride);
    file.script(move |at, _| {
        if at + 511 >= start && at < end - 1024 {
            Outcome::Fails(std::io::ErrorKind::Other)
        } else {
            Outcome::Good
        }
    });
    pager.begin(1, 0, 0, &[0], &[1]);
    pager.begin(2, 0, 0, &[3], &[1]);
    assert_eq!(pager.wait(1, 0), None);
    assert!(pager.wait(2, 0).is_some());
    assert!(pager.end(1).is_err());
    pager.end(2).unwrap();
}

#[test]
fn two_runs_that_need_what_fails_both_fail() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    let gate = file.close_gate();
    file.script(|_, _| Outcome::Fails(std::io::ErrorKind::Other));
    for run in [1, 2] {
        pager.begin(run, 0, 0, &[4], &[1]);
    }
    gate.open();
    for run in [1, 2] {
        assert_eq!(pager.wait(run, 0), None);
        assert!(pager.end(run).unwrap_err().to_string().contains("at offset"));
    }
}

#[test]
fn short_and_interrupted_reads_are_completed() {
    for alignment in [1, 512] {
        let config = PagerConfig::default();
        let budget = Shape::SMALL.floor(&config, alignment);
        let (pager, file) = Shape::SMALL.pager(&PagerConfig { budget, ..config }, alignment);
        let mut random = Random(5);
        file.script(move |_, _| match random.below(4) {
            0 => Outcome::Fails(std::io::ErrorKind::Interrupted),
            1 => Outcome::Short(1 + random.below(3000)),
            2 => Outcome::Short(1 + random.below(100)),
            _ => Outcome::Good,
        });
        let mut random = Random(9);
        for _ in 0..20 {
            for number in 0..3 {
                let count = 1 + random.below(8);
                let experts = random.choose(count, 8);
                assert!(layer(&pager, &file.data, RUN, number, &experts));
            }
            pager.end(RUN).unwrap();
        }
    }
}

#[test]
fn reads_that_never_get_on_fail() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    file.script(|_, _| Outcome::Short(100));
    assert!(!layer(&pager, &file.data, RUN, 0, &[1]));
    let text = format!("{:?}", pager.end(RUN).unwrap_err());
    assert!(text.contains("stop short"), "{text}");
}

#[test]
fn the_end_of_the_file_is_an_error() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    file.script(|_, _| Outcome::Short(0));
    assert!(!layer(&pager, &file.data, RUN, 0, &[1]));
    let error = pager.end(RUN).unwrap_err();
    assert!(matches!(error, Error::Io(io::Error::Truncated { .. })), "{error:?}");
}

#[test]
fn a_changed_file_ends_all_runs_for_good() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    assert!(layer(&pager, &file.data, RUN, 0, &[1, 2]));
    file.changed.store(true, Ordering::SeqCst);
    // All bytes came, but nobody knows from which file.
    for run in [RUN, RUN + 1] {
        pager.begin(run, 1, 0, &[1], &[1]);
        pager.wait(run, 0);
        let error = pager.end(run).unwrap_err();
        assert!(matches!(error, Error::Io(io::Error::Changed { .. })), "{error:?}");
    }
    pager.want(RUN, 0, &[1]);
    assert!(pager.end(RUN).is_err());
}

#[test]
fn a_long_run_notices_within_seconds() {
    let config = PagerConfig::default();
    let budget = Shape::SMALL.floor(&config, 512);
    let (pager, file) = Shape::SMALL.pager(&PagerConfig { budget, ..config }, 512);
    file.changed.store(true, Ordering::SeqCst);
    file.set_delay(Duration::from_millis(20));
    let all: Vec<u32> = (0..8).collect();
    let rounds = (0..200).take_while(|_| layer(&pager, &file.data, RUN, 0, &all)).count();
    assert!(rounds < 200);
    assert!(matches!(pager.end(RUN), Err(Error::Io(io::Error::Changed { .. }))));
}

#[test]
fn a_failure_of_a_changed_file_says_that_it_was_changed() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    file.changed.store(true, Ordering::SeqCst);
    file.script(|_, _| Outcome::Fails(std::io::ErrorKind::Other));
    assert!(!layer(&pager, &file.data, RUN, 0, &[1]));
    let text = pager.end(RUN).unwrap_err().to_string();
    assert!(text.contains("was changed while in use"), "{text}");
}

#[test]
fn verifying_finds_what_the_disk_got_wrong() {
    for verify in [false, true] {
        let config = PagerConfig { verify, ..PagerConfig::default() };
        let (pager, file) = Shape { packed: true, ..Shape::SMALL }.pager(&config, 512);
        let count = AtomicU64::new(0);
        file.script(move |_, _| match count.fetch_add(1, Ordering::SeqCst) {
            6 => Outcome::Wrong,
            _ => Outcome::Good,
        });
        for tensor in 0..3 {
            pager.begin(RUN, 0, tensor, &[1, 2, 3], &[1; 3]);
            for index in 0..3 {
                pager.wait(RUN, index);
                pager.done(RUN, index);
            }
        }
        match (verify, pager.end(RUN)) {
            (false, Ok(())) => {}
            (true, Err(Error::Io(io::Error::Corrupt { len, .. }))) => assert!(SIZES.contains(&len)),
            (_, other) => panic!("{other:?}"),
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
    let (mut layers, len) = Shape::SMALL.layers();
    layers[0].tensors[2].packer = Some(Arc::new(Panics));
    let file: Arc<dyn ReadAt> = crate::fixture::Fake::new(len, 512);
    let pager = Pager::new(vec![file], layers, &PagerConfig::default()).unwrap();
    pager.begin(RUN, 0, 2, &[6], &[1]);
    assert_eq!(pager.wait(RUN, 0), None);
    let text = pager.end(RUN).unwrap_err().to_string();
    assert!(text.contains("expert 6 of `blk.0.2`"), "{text}");
    // The threads live on.
    pager.begin(RUN, 1, 2, &[6], &[1]);
    assert!(pager.wait(RUN, 0).is_some());
    pager.end(RUN).unwrap();
}

#[test]
fn what_does_not_exist_fails_the_run_only() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    let requests: [&dyn Fn(); 5] = [
        &|| pager.want(RUN, 3, &[0]),
        &|| pager.want(RUN, 0, &[8]),
        &|| pager.begin(RUN, 0, 3, &[0], &[1]),
        &|| pager.begin(RUN, 0, 0, &[u32::MAX], &[1]),
        &|| pager.begin(RUN, 0, 0, &[0, 1], &[1]),
    ];
    for request in requests {
        request();
        assert_eq!(pager.wait(RUN, 0), None);
        assert!(matches!(pager.end(RUN), Err(Error::Request(_))));
    }
    pager.predict(3, &[0]);
    pager.predict(0, &[9]);
    pager.done(99, 0);
    assert_eq!(pager.wait(99, 0), None);
    assert!(!pager.is_resident(9, 9) && !pager.is_resident(0, 8));
    pager.end(99).unwrap();
    pager.begin(RUN, 0, 0, &[], &[]);
    assert_eq!(pager.wait(RUN, 0), None);
    pager.end(RUN).unwrap();
    assert!(layer(&pager, &file.data, RUN, 0, &[1, 1, 2]));
    pager.end(RUN).unwrap();
}

#[test]
fn dropping_while_reads_are_in_flight() {
    let mut left_out = 0;
    for _ in 0..20 {
        let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
        let gate = file.close_gate();
        pager.want(RUN, 0, &[0, 1, 2, 3]);
        pager.predict(1, &[0, 1, 2, 3]);
        file.await_reading(4);
        let dropped = std::thread::spawn(move || drop(pager));
        std::thread::sleep(Duration::from_millis(5));
        gate.open();
        dropped.join().unwrap();
        // Threads and files are gone: only the test has the file.
        assert_eq!(Arc::strong_count(&file), 1);
        left_out += u32::from(file.reads.load(Ordering::SeqCst) < 24);
    }
    // Unless the gate was open before the other thread had got so far.
    assert!(left_out > 0, "queued reads are not done any more");
}

#[test]
fn a_replaced_or_truncated_file_is_refused() {
    let (layers, len) = Shape::SMALL.layers();
    let data = crate::fixture::Fake::new(len, 1).data.clone();
    let file = ChangingFile::new(&data);
    let path = file.path();
    for change in 0..ChangingFile::CHANGES {
        file.write();
        let pager = Pager::open([&path], layers.clone(), &PagerConfig::default()).unwrap();
        assert!(layer(&pager, &data, RUN, 0, &[1, 2]));
        pager.end(RUN).unwrap();
        file.change(change);
        layer_of_anything(&pager, 2);
        let error = pager.end(RUN).unwrap_err();
        assert!(matches!(error, Error::Io(io::Error::Changed { .. })), "{error:?}");
        assert!(error.to_string().contains("model.gguf"), "{error}");
    }
    // Without a name it is still the same.
    file.write();
    let pager = Pager::open([&path], layers, &PagerConfig::default()).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(layer(&pager, &data, RUN, 0, &[1, 2]));
    pager.end(RUN).unwrap();
    eventually(|| pager.is_resident(0, 2));
}

/// Computes a layer of a file that may hold other bytes.
fn layer_of_anything(pager: &Pager, number: usize) {
    for tensor in 0..3 {
        pager.begin(RUN, number, tensor, &[3, 4], &[1, 1]);
        for index in 0..2 {
            pager.wait(RUN, index);
            pager.done(RUN, index);
        }
    }
}

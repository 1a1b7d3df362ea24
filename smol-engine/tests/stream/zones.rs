//! How much memory a stream takes, and gives back.

use crate::files::Fake;
use crate::fixture::{MIXED, ORDER, pass, small, stream, tensors};
use smol_engine::io::ReadAt;
use smol_engine::stream::{Error, Stream, StreamConfig};
use std::sync::Arc;

#[test]
fn less_than_the_floor_is_refused_with_the_number() {
    let (tensors, len) = tensors(MIXED);
    let files: Vec<Arc<dyn ReadAt>> = vec![Fake::new(len, 512)];
    for (readers, verify) in [(0, false), (3, false), (0, true)] {
        let config = StreamConfig { readers, verify, ..StreamConfig::default() };
        let floor = Stream::floor(&files, &tensors, &config);
        let zone = floor - 1;
        let refused =
            Stream::new(files.clone(), tensors.clone(), &StreamConfig { zone, ..config.clone() });
        let error = refused.unwrap_err();
        assert!(error.to_string().contains(&floor.to_string()), "{error}");
        assert!(matches!(error, Error::Zone { floor: told, .. } if told == floor));
        let config = StreamConfig { zone: floor, ..config };
        let stream = Stream::new(files.clone(), tensors.clone(), &config).unwrap();
        assert!(stream.held() <= floor);
    }
}

#[test]
fn the_zone_shrinks_and_grows_between_graphs() {
    let (stream, file) = stream(600_000, MIXED, 512, StreamConfig::default());
    let most = stream.held();
    for (zone, least, limit) in
        [(0, 1, most / 2 + 200_000), (u64::MAX, most, 3_000_000), (most, 1, most)]
    {
        pass(&stream, &file.data, 1, &ORDER, 2);
        let held = stream.set_zone(zone);
        assert_eq!(held, stream.held());
        assert!(held >= least && held <= limit, "{held} {zone}");
        assert!((stream.statistics().zone_mb - held as f64 / 1e6).abs() < 1e-9);
        pass(&stream, &file.data, 1, &ORDER, 1);
    }
}

#[test]
fn a_run_keeps_its_memory_until_its_end() {
    let (stream, file) = stream(600_000, MIXED, 512, StreamConfig::default());
    let weights = stream.begin(1, &ORDER).unwrap();
    assert!(stream.wait(1, 0));
    let held = stream.held();
    assert_eq!(stream.set_zone(0), held);
    for (index, (&tensor, &weights)) in ORDER.iter().zip(&weights).enumerate() {
        assert!(stream.wait(1, index));
        crate::fixture::check(&stream, &file.data, tensor, weights);
    }
    stream.end(1).unwrap();
    assert!(stream.held() < held);
    pass(&stream, &file.data, 1, &ORDER, 1);
}

#[test]
fn memory_is_given_back_and_taken_back_as_the_machine_has_it() {
    let (stream, file) = stream(600_000, MIXED, 512, StreamConfig::default());
    let most = stream.held();
    let reserve = 1_000_000;
    assert_eq!(stream.relieve(reserve, reserve), most);
    let less = stream.relieve(reserve - 100_000, reserve);
    assert!(less <= most - 100_000 && less >= most - 200_000, "{less} of {most}");
    pass(&stream, &file.data, 1, &ORDER, 1);
    let least = stream.relieve(0, reserve);
    assert_eq!(stream.relieve(0, reserve), least);
    assert_eq!(least, stream.set_zone(0));
    assert_eq!(stream.set_zone(most), most);
    stream.relieve(0, reserve);
    // A little more is nothing; with much it grows by half of it, and no further than it may.
    assert_eq!(stream.relieve(reserve + 1000, reserve), least);
    let more = stream.relieve(reserve + 500_000, reserve);
    assert!(more > least + 150_000 && more <= least + 250_000, "{more} {least}");
    assert_eq!(stream.relieve(u64::MAX, reserve), most);
    pass(&stream, &file.data, 1, &ORDER, 1);
}

#[test]
fn nothing_changes_while_a_run_computes() {
    let (stream, file) = small();
    let held = stream.held();
    assert!(stream.begin(1, &ORDER).is_some());
    assert_eq!(stream.set_zone(u64::MAX), held);
    assert_eq!(stream.relieve(0, 1 << 30), held);
    assert!(stream.wait(1, 0));
    stream.end(1).unwrap();
    assert_eq!(stream.held(), held, "the last word counts");
    pass(&stream, &file.data, 1, &ORDER, 1);
}

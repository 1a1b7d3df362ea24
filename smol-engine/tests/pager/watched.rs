//! Who watches a pager is told of each read.

use crate::fixture::{Outcome, SIZES, Shape, layer};
use smol_engine::expert::PagerConfig;
use smol_engine::expert::trace::{LayerHeader, TensorSize, Trace, TraceHeader, TraceWriter};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn each_read_is_told() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    file.set_delay(Duration::from_millis(2));
    let before = Instant::now();
    let told = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&told);
    assert!(pager.watch_reads(move |read| list.lock().unwrap().push(*read)));
    assert!(!pager.watch_reads(|_| panic!("the first one stays")));
    assert!(layer(&pager, &file.data, 0, 1, &[6, 2]));
    pager.end(0).unwrap();
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2 * SIZES.len());
    for read in told.iter() {
        assert!(read.layer == 1 && [2, 6].contains(&read.expert), "{read:?}");
        assert!(read.started >= before && read.took >= Duration::from_millis(2), "{read:?}");
    }
    let bytes: u64 = told.iter().map(|read| read.bytes).sum();
    assert_eq!(bytes, pager.statistics().bytes_read);
}

#[test]
fn a_failed_read_is_none_and_a_watcher_that_panics_ends_the_run() {
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    pager.watch_reads(|_| panic!("told of a read"));
    file.script(|_, _| Outcome::Fails(io::ErrorKind::Other));
    assert!(!layer(&pager, &file.data, 0, 0, &[1]));
    assert!(pager.end(0).unwrap_err().to_string().contains("fake.gguf"));
    file.script(|_, _| Outcome::Good);
    assert!(!layer(&pager, &file.data, 0, 0, &[1]));
    assert!(pager.end(0).is_err());
}

/// A trace tells the speed of the reads that were recorded.
#[test]
fn reads_are_in_the_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.trace");
    let tensors = SIZES.map(|size| TensorSize { file: size as u64, memory: size as u64 });
    let header = |block| LayerHeader { block, experts: 8, used: 2, tensors: tensors.to_vec() };
    let layers = (0..Shape::SMALL.layers).map(header).collect();
    let header = TraceHeader { model: "fake".into(), layers };
    let writer = Arc::new(TraceWriter::create(&path, &header).unwrap());
    let (pager, file) = Shape::SMALL.pager(&PagerConfig::default(), 512);
    let reads = Arc::clone(&writer);
    pager.watch_reads(move |read| {
        reads.read(read.layer, read.expert, read.started, read.took, read.bytes);
    });
    for experts in [[1, 2], [2, 3]] {
        writer.choose(0, 0, 2, &experts.map(|expert| expert as i32));
        assert!(layer(&pager, &file.data, 0, 0, &experts));
        writer.end(0, Duration::ZERO);
        pager.end(0).unwrap();
    }
    let read = pager.statistics().bytes_read;
    drop(pager);
    Arc::into_inner(writer).unwrap().finish().unwrap();
    let trace = Trace::read(&path).unwrap();
    assert!(trace.damage.is_none());
    let reads = trace.graphs.iter().flat_map(|graph| &graph.reads);
    assert_eq!(reads.map(|read| read.bytes).sum::<u64>(), read);
    assert_eq!(trace.graphs[1].reads.len(), SIZES.len());
}

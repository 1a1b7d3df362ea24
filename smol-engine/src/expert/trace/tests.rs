use super::format::{Cursor, put_block, put_graph};
use super::*;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

fn header() -> TraceHeader {
    let tensor = |file| TensorSize { file, memory: file + 1 };
    let layer = |block, experts, used| LayerHeader {
        block,
        experts,
        used,
        tensors: vec![tensor(4096), tensor(300_000)],
    };
    TraceHeader { model: "Größe 7".into(), layers: vec![layer(1, 128, 6), layer(2, 300, 2)] }
}

fn time() -> impl Strategy<Value = Duration> {
    (0..u64::from(u32::MAX)).prop_map(Duration::from_micros)
}

fn layer() -> impl Strategy<Value = (usize, usize, Vec<u32>)> {
    (0..2usize, 1..9usize, 0..20usize).prop_flat_map(|(layer, used, tokens)| {
        let experts = header().layers[layer].experts;
        let ids = prop::collection::vec(0..experts, used * tokens);
        (Just(layer), Just(used), ids)
    })
}

fn read() -> impl Strategy<Value = Read> {
    (0..2u32, 0..128u32, time(), time(), any::<u64>()).prop_map(
        |(layer, expert, started, took, bytes)| Read { layer, expert, started, took, bytes },
    )
}

prop_compose! {
    fn graph()(
        started in time(),
        took in time(),
        waited in time(),
        layers in prop::collection::vec(layer(), 0..5),
        reads in prop::collection::vec(read(), 0..5),
    ) -> Graph {
        let mut graph = Graph { started, took, waited, reads, ..Graph::default() };
        layers.iter().for_each(|(layer, used, ids)| graph.push(*layer, *used, ids));
        graph
    }
}

fn write(path: &Path, graphs: &[Graph]) {
    let writer = TraceWriter::create(path, &header()).unwrap();
    graphs.iter().for_each(|graph| writer.write(graph).unwrap());
    assert_eq!(writer.finish().unwrap(), graphs.len() as u64);
}

/// A trace of several blocks.
fn long(folder: &Path) -> (PathBuf, Vec<Graph>) {
    let graphs: Vec<_> = (0..3000_u32)
        .map(|token| {
            let started = Duration::from_micros(token.into());
            let mut graph = Graph { started, ..Graph::default() };
            graph.push(0, 6, &std::array::from_fn::<_, 60, _>(|i| (i as u32 * 7 + token) % 128));
            graph
        })
        .collect();
    let path = folder.join("long.trace");
    write(&path, &graphs);
    assert!(fs::metadata(&path).unwrap().len() > 150_000);
    (path, graphs)
}

/// The trace must be a start of `graphs`, and say what is wrong unless it is all of them.
fn is_good_start(bytes: &[u8], graphs: &[Graph]) -> usize {
    let reader = TraceReader::new(Path::new("t.trace"), bytes);
    match reader.and_then(TraceReader::read_all) {
        Ok(trace) => {
            assert!(trace.graphs.len() <= graphs.len());
            assert!(trace.graphs.iter().zip(graphs).all(|(read, written)| read == written));
            assert_eq!(trace.header, header());
            let damage = trace.damage.expect("it is damaged").to_string();
            assert!(damage.contains("damaged at byte"), "{damage}");
            trace.graphs.len()
        }
        Err(Error::NotATrace { .. } | Error::Version { .. } | Error::Damaged { .. }) => 0,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #[test]
    fn graphs_are_read_as_written(graphs in prop::collection::vec(graph(), 0..12)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.trace");
        write(&path, &graphs);
        let trace = Trace::read(&path).unwrap();
        prop_assert!(trace.damage.is_none());
        prop_assert_eq!(trace.header, header());
        prop_assert_eq!(trace.graphs, graphs);
    }

    #[test]
    fn every_cut_and_change_is_noticed(
        graphs in prop::collection::vec(graph(), 0..4),
        bit in 0..8u32,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.trace");
        write(&path, &graphs);
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            is_good_start(&bytes[..at], &graphs);
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            is_good_start(&changed, &graphs);
        }
        let mut longer = bytes;
        longer.push(0);
        is_good_start(&longer, &graphs);
    }

    /// Blocks with the right checksum may still hold anything.
    #[test]
    fn no_payload_breaks_the_reader(
        graph in graph(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut payload = Vec::new();
        put_graph(&graph, Duration::ZERO, &mut payload);
        let at = at.index(payload.len());
        payload[at] = byte;
        for payload in [payload, noise] {
            let mut cursor = Cursor(&payload);
            while !cursor.is_empty() && cursor.record(&header(), Duration::ZERO).is_ok() {}
            let _ = Cursor(&payload).header();
        }
    }
}

#[test]
fn what_comes_before_the_damage_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let (path, graphs) = long(folder.path());
    let bytes = fs::read(&path).unwrap();
    let mut most = 0;
    for at in (0..bytes.len()).step_by(bytes.len() / 40) {
        let cut = is_good_start(&bytes[..at], &graphs);
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        let changed = is_good_start(&changed, &graphs);
        // No more than a block is lost.
        let bytes_a_graph = bytes.len() / graphs.len();
        assert!(cut * bytes_a_graph + (70 << 10) > at, "{cut} graphs of {at} bytes");
        assert!(changed * bytes_a_graph + (70 << 10) > at, "{changed} graphs of {at} bytes");
        assert!(cut >= most, "longer files have no less");
        most = cut;
    }
    assert!(most > 1000);
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    assert!(matches!(Trace::read(&path), Err(Error::Io { .. })));
    for bytes in [&b""[..], b"SMOL", b"GGUF\0\0\0\0\0\0\0\0\0\0\0\0", &[0; 100]] {
        fs::write(&path, bytes).unwrap();
        assert!(matches!(Trace::read(&path), Err(Error::NotATrace { .. })), "{bytes:?}");
    }
    write(&path, &[]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 77;
    fs::write(&path, &bytes).unwrap();
    let error = Trace::read(&path).unwrap_err().to_string();
    assert!(error.contains("version 77"), "{error}");
    // A length that no memory could hold.
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 1;
    bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(Trace::read(&path), Err(Error::Damaged { offset: 12, .. })));
    // A header with the right checksum that no writer makes.
    let mut bytes = format::MAGIC.to_vec();
    bytes.extend(format::VERSION.to_le_bytes());
    put_block(&[0, 0], &mut bytes);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(Trace::read(&path), Err(Error::Damaged { offset: 12, .. })));
}

#[test]
fn models_that_cannot_be_are_not_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let refused = |change: &dyn Fn(&mut TraceHeader)| {
        let mut header = header();
        change(&mut header);
        let error = TraceWriter::create(&path, &header).unwrap_err();
        assert!(matches!(error, Error::Unrecordable { .. }), "{error}");
        assert!(!path.exists());
    };
    refused(&|header| header.layers.clear());
    refused(&|header| header.layers[0].experts = 0);
    refused(&|header| header.layers[0].experts = 1 << 17);
    refused(&|header| header.layers[1].used = 0);
    refused(&|header| header.layers[1].used = 301);
    refused(&|header| header.layers[1].tensors.clear());
    let writer = TraceWriter::create(&path, &header()).unwrap();
    for (layer, id) in [(0, 128), (2, 0)] {
        let mut graph = Graph::default();
        graph.push(layer, 1, &[id]);
        assert!(matches!(writer.write(&graph), Err(Error::Unrecordable { .. })));
    }
    assert_eq!(writer.finish().unwrap(), 0);
}

#[test]
fn runs_on_several_threads_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.trace");
    let writer = TraceWriter::create(&path, &header()).unwrap();
    std::thread::scope(|scope| {
        for run in 0..4_usize {
            let writer = &writer;
            scope.spawn(move || {
                for token in 0..200 {
                    let id = run as i32 * 10;
                    writer.choose(run, 0, 2, &[id, id + 1]);
                    let started = Instant::now();
                    writer.read(0, id as u32, started, Duration::from_micros(5), 4096);
                    writer.choose(run, 1, 1, &[token]);
                    writer.end(run, Duration::from_micros(run as u64));
                }
            });
        }
    });
    // A graph without layers with experts is none.
    writer.end(9, Duration::ZERO);
    assert_eq!(writer.finish().unwrap(), 800);
    let trace = Trace::read(&path).unwrap();
    assert!(trace.damage.is_none());
    assert_eq!(trace.graphs.iter().map(|graph| graph.reads.len()).sum::<usize>(), 800);
    let mut tokens = [0; 4];
    for graph in &trace.graphs {
        let layers: Vec<_> = graph.layers().collect();
        let run = graph.waited.as_micros() as usize;
        let id = run as u32 * 10;
        assert_eq!(layers[0], Choices { layer: 0, used: 2, ids: &[id, id + 1] });
        assert_eq!(layers[1], Choices { layer: 1, used: 1, ids: &[tokens[run]] });
        assert_eq!(graph.tokens(), 1);
        tokens[run] += 1;
    }
}

#[test]
fn a_dropped_writer_completes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.trace");
    let writer = TraceWriter::create(&path, &header()).unwrap();
    writer.choose(7, 0, 3, &[1, 2, 3, 4, 5, 6]);
    writer.end(7, Duration::ZERO);
    drop(writer);
    let trace = Trace::read(&path).unwrap();
    assert!(trace.damage.is_none());
    assert_eq!(trace.graphs[0].tokens(), 2);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_of_at_the_end() {
    let error = TraceWriter::create("/dev/full", &header()).unwrap_err().to_string();
    assert!(error.contains("/dev/full"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.trace");
    let writer = TraceWriter::create(&path, &header()).unwrap();
    writer.replace_file(fs::File::options().write(true).open("/dev/full").unwrap());
    for token in 0..20_000 {
        writer.choose(0, 0, 6, &[token % 128; 6]);
        writer.end(0, Duration::ZERO);
    }
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, Error::Io { action: "write the trace", .. }), "{error}");
}

/// A token of a 60-layer model costs less than 1 % of a token at 25 a second.
#[test]
fn recording_is_cheap() {
    let folder = tempfile::tempdir().unwrap();
    let writer = TraceWriter::create(folder.path().join("t.trace"), &header()).unwrap();
    let fastest = (0..200)
        .map(|token| {
            let started = Instant::now();
            for layer in 0..60 {
                writer.choose(1, layer % 2, 8, &[1, 2, 3, 4, 5, 6, 7, token % 100]);
            }
            writer.end(1, Duration::ZERO);
            started.elapsed()
        })
        .min();
    assert!(fastest.unwrap() < Duration::from_micros(400), "{fastest:?}");
}

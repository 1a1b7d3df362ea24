//! Watching graphs. A process of its own: observers see all contexts of the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llama_rs::{Context, ErrorKind, LoadMode, Model, NodeInfo, Observer, SeqId, Token, observe};
use testkit::tiny::{self, Arch, TinyOptions};

/// One test at a time: what one decodes the others' observers would see.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn context(folder: &tempfile::TempDir) -> Context {
    let path = folder.path().join("m.gguf");
    tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
    let model = Model::load(&path).unwrap();
    let threads = llama_rs::machine::Cpu::probe().logical.len().min(2) as u32;
    model.context().n_ctx(256).threads(threads, threads).build().unwrap()
}

fn tokens(count: usize) -> Vec<Token> {
    (0..count).map(|n| Token(300 + n as i32)).collect()
}

#[derive(Default)]
struct Recorder {
    begun: AtomicUsize,
    announced: AtomicUsize,
    ended: AtomicUsize,
    ops: Mutex<HashMap<&'static str, usize>>,
    threads: Mutex<HashMap<usize, usize>>,
    attention: Mutex<Option<String>>,
}

impl Observer for Recorder {
    fn graph_begin(&self, n_nodes: usize) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.announced.fetch_add(n_nodes, Ordering::Relaxed);
    }

    fn node(&self, node: &NodeInfo<'_>) {
        *self.ops.lock().unwrap().entry(node.op()).or_default() += 1;
        *self.threads.lock().unwrap().entry(node.thread()).or_default() += 1;
        assert!(node.thread() < node.threads());
        if node.op() == "MUL_MAT" && node.source_types().first() == Some(&"f16") {
            *self.attention.lock().unwrap() = Some(format!("{node:?}"));
        }
    }

    fn graph_end(&self, completed: bool) {
        assert!(completed);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_thread_reports_every_matrix_product() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut context = context(&folder);
    let recorder = Arc::new(Recorder::default());
    let guard = observe(recorder.clone()).unwrap();
    context.prefill(SeqId::FIRST, &tokens(5)).unwrap();
    context.prefill(SeqId::FIRST, &tokens(1)).unwrap();
    drop(guard);
    context.prefill(SeqId::FIRST, &tokens(1)).unwrap();

    let (begun, ended) =
        (recorder.begun.load(Ordering::Relaxed), recorder.ended.load(Ordering::Relaxed));
    assert_eq!((begun, ended), (2, 2));
    let ops = recorder.ops.lock().unwrap();
    // Seven weights a layer and the head; attention may add some.
    let layers = context.model().n_layer();
    let per_graph = ops["MUL_MAT"] / begun / context.threads().0;
    assert!(per_graph > layers * 7, "{ops:?}");
    assert!(recorder.announced.load(Ordering::Relaxed) >= 2 * per_graph);
    let threads = recorder.threads.lock().unwrap();
    assert_eq!(threads.len(), context.threads().0);
    assert!(threads.values().all(|count| *count == threads[&0]), "{threads:?}");
    let text = recorder.attention.lock().unwrap().clone().unwrap();
    assert!(text.contains("shape") && text.contains("f16"), "{text}");
}

#[test]
fn results_do_not_depend_on_being_watched() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let plain =
        context(&folder).prefill(SeqId::FIRST, &tokens(9)).unwrap().last_logits().unwrap().to_vec();
    let _one = observe(Arc::new(Recorder::default())).unwrap();
    let _other = observe(Arc::new(Recorder::default())).unwrap();
    let mut watched = context(&folder);
    assert_eq!(watched.prefill(SeqId::FIRST, &tokens(9)).unwrap().last_logits().unwrap(), plain);
}

#[derive(Default)]
struct Panics {
    in_node: bool,
    calm: AtomicBool,
}

impl Observer for Panics {
    fn graph_begin(&self, _n_nodes: usize) {
        assert!(self.in_node || self.calm.load(Ordering::Relaxed), "panic at the beginning");
    }

    fn node(&self, node: &NodeInfo<'_>) {
        let nasty = self.in_node && node.op() == "MUL_MAT";
        assert!(!nasty || self.calm.load(Ordering::Relaxed), "panic in the middle");
    }
}

#[test]
fn a_panic_stops_the_decode_and_nothing_else() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut context = context(&folder);
    context.prefill(SeqId::FIRST, &tokens(3)).unwrap();
    for in_node in [false, true] {
        let observer = Arc::new(Panics { in_node, ..Panics::default() });
        let _guard = observe(observer.clone()).unwrap();
        let error = context.prefill(SeqId::FIRST, &tokens(4)).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::CallbackPanicked);
        let expected = if in_node { "in the middle" } else { "at the beginning" };
        assert!(error.message().contains(expected), "{error}");
        assert_eq!(context.kv().pos_range(SeqId::FIRST).unwrap(), Some(0..=2));
        observer.calm.store(true, Ordering::Relaxed);
        context.prefill(SeqId::FIRST, &tokens(4)).unwrap();
        assert!(context.kv().remove(SeqId::FIRST, 3..).unwrap());
    }
}

struct Nested;

impl Observer for Nested {
    fn graph_end(&self, _completed: bool) {
        let error = observe(Arc::new(Recorder::default())).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    }
}

#[test]
fn attaching_from_an_observer_is_an_error_instead_of_a_deadlock() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let mut context = context(&folder);
    let _guard = observe(Arc::new(Nested)).unwrap();
    context.prefill(SeqId::FIRST, &tokens(2)).unwrap();
}

/// Shortens a file in the middle of a decode.
struct Shortens(std::path::PathBuf);

impl Observer for Shortens {
    fn graph_begin(&self, _n_nodes: usize) {
        std::fs::OpenOptions::new().write(true).open(&self.0).unwrap().set_len(4096).unwrap();
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn a_mapped_file_shortened_in_a_decode_is_an_error_and_no_signal() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
    let model = Model::builder(&path).load_mode(LoadMode::Mmap).load().unwrap();
    let mut context = model.context().n_ctx(256).threads(1, 1).build().unwrap();
    context.prefill(SeqId::FIRST, &tokens(5)).unwrap();
    let guard = observe(Arc::new(Shortens(path.clone()))).unwrap();
    let error = context.prefill(SeqId::FIRST, &tokens(5)).unwrap_err();
    drop(guard);
    assert_eq!(error.kind(), &ErrorKind::FileChanged, "{error}");
    assert_eq!(context.kv().pos_range(SeqId::FIRST).unwrap(), Some(0..=4));
    // Giving the file its length back doesn't bring its weights back.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    let error = context.prefill(SeqId::FIRST, &tokens(5)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::FileChanged, "{error}");
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn a_mapped_file_shortened_in_a_load_is_an_error_and_no_signal() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();
    let victim = Shortens(path.clone());
    let loaded = Model::builder(&path)
        .load_mode(LoadMode::Mmap)
        .check_tensors(true)
        .on_progress(move |fraction| {
            if fraction > 0.1 && fraction < 0.3 {
                victim.graph_begin(0);
            }
            std::ops::ControlFlow::Continue(())
        })
        .load();
    assert_eq!(loaded.unwrap_err().kind(), &ErrorKind::FileChanged);
}

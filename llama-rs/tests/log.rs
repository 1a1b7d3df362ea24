//! Where lines go. A process of its own: the choice holds for the whole process.

use std::sync::{Arc, Mutex};

use llama_rs::log::{LogLevel, LogLine, LogSource, logging};
use llama_rs::{Model, SeqId, Token};
use testkit::tiny::{self, Arch, TinyOptions};

#[test]
fn lines_reach_the_function_and_errors_carry_them_anyway() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    tiny::write(&path, Arch::Llama, &TinyOptions::default()).unwrap();

    let lines: Arc<Mutex<Vec<LogLine>>> = Arc::default();
    let sink = Arc::clone(&lines);
    logging().to_fn(move |line| sink.lock().unwrap().push(line.clone()));
    let model = Model::load(&path).unwrap();
    let mut context = model.context().n_ctx(256).threads(1, 1).build().unwrap();
    context.prefill(SeqId::FIRST, &[Token(300)]).unwrap();
    {
        let lines = lines.lock().unwrap();
        assert!(lines.len() > 20);
        assert!(lines.iter().all(|line| !line.text.contains('\n') && !line.text.is_empty()));
        assert!(lines.iter().any(|line| line.text.contains("llama_model_loader")));
        assert!(lines.iter().all(|line| line.level < LogLevel::Error), "{lines:?}");
        assert!(lines.iter().any(|line| line.source == LogSource::Llama));
    }

    // A function that panics is dropped; the load goes on.
    let calls = Arc::new(Mutex::new(0));
    let counter = Arc::clone(&calls);
    logging().to_fn(move |_| {
        *counter.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) += 1;
        panic!("no lines, please");
    });
    Model::load(&path).unwrap();
    assert_eq!(*calls.lock().unwrap_or_else(|poisoned| poisoned.into_inner()), 1);

    // Silence concerns the application, not errors.
    logging().silence();
    let count = lines.lock().unwrap().len();
    let good = std::fs::read(&path).unwrap();
    let fault = testkit::bad::by_name("tensor_missing").unwrap();
    std::fs::write(&path, fault.apply(&good).unwrap()).unwrap();
    let error = Model::load(&path).unwrap_err();
    assert!(error.log().iter().any(|line| line.level == LogLevel::Error), "{error:?}");
    assert_eq!(lines.lock().unwrap().len(), count);
}

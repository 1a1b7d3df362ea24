//! Blocks that draft a further token, with a pruned vocabulary head: that of the model, or one of their own.

use std::ffi::CString;
use std::path::Path;
use std::ptr;

use ggml_sys as sys;
use smol_gguf::{Rewriter, Shards, TensorType};
use testkit::tiny::{self, Arch, DraftHead, TinyOptions};

use crate::LayoutOptions;

const TOKENS: i32 = 4;
/// Those of tiny models.
const HIDDEN: usize = 256;
const VOCAB: usize = 1024;
const OWN_HEAD: &str = "blk.4.nextn.shared_head_head.weight";

/// The logits of the drafting block for a few tokens, after states that are numbers like any other.
fn drafted(path: &Path) -> Vec<f32> {
    super::call::init().unwrap();
    let layouts = LayoutOptions { enabled: false, ..LayoutOptions::default() };
    super::layouts::choose(&layouts).unwrap();
    // SAFETY: a pure function without arguments (llama-model.cpp:3410).
    let mut params = unsafe { sys::llama_model_default_params() };
    params.n_gpu_layers = 0;
    params.load_mtp = true;
    let name = CString::new(path.to_str().unwrap()).unwrap();
    let mut model = ptr::null_mut();
    // SAFETY: one NUL-terminated string; guarded (smol.h).
    let status = unsafe { sys::smol_model_load(&mut name.as_ptr(), 1, &params, &mut model) };
    assert!(status == sys::SMOL_OK && !model.is_null(), "{}", super::call::last_error());
    // SAFETY: a pure function without arguments (llama-context.cpp:4044).
    let mut params = unsafe { sys::llama_context_default_params() };
    params.ctx_type = sys::LLAMA_CONTEXT_TYPE_MTP;
    params.n_ctx = 64;
    (params.n_threads, params.n_threads_batch) = (2, 2);
    let mut context = ptr::null_mut();
    // SAFETY: the model lives until the end; guarded (smol.h).
    let status = unsafe { sys::smol_context_new(model, &params, &mut context) };
    assert!(status == sys::SMOL_OK && !context.is_null());
    // SAFETY: the context is alive (llama.h:1023).
    let batch = unsafe { sys::llama_batch_ext_init(context) };
    let width = HIDDEN;
    for position in 0..TOKENS {
        let state: Vec<f32> =
            (0..width).map(|i| ((i * 7 + position as usize) as f32).sin()).collect();
        let state = sys::llama_embd { data: state.as_ptr(), n_rows: 1, n_embd: width };
        // SAFETY: batch and context are alive.
        let at = unsafe { sys::llama_batch_ext_add_token(batch, 0, 300 + position * 41) };
        assert_eq!(at, position);
        // SAFETY: as above; the batch copies the state (llama-batch.cpp).
        assert!(unsafe { sys::llama_batch_ext_set_embd_state(batch, at, state) });
        // SAFETY: as above; the batch copies the position (llama-batch.cpp).
        assert!(unsafe { sys::llama_batch_ext_set_pos(batch, at, &position) });
        // SAFETY: as above.
        assert!(unsafe { sys::llama_batch_ext_set_output_logits(batch, at, true) });
    }
    // SAFETY: as above.
    assert_eq!(unsafe { sys::llama_process(context, sys::LLAMA_PROCESS_TYPE_DECODE, batch) }, 0);
    let mut logits = Vec::new();
    for index in 0..TOKENS {
        let mut row = ptr::null_mut();
        // SAFETY: the context is alive; guarded (smol.h).
        let status = unsafe { sys::smol_logits_ith(context, index, &mut row) };
        assert!(status == sys::SMOL_OK && !row.is_null());
        // SAFETY: a row of logits has one for each token of the vocabulary (llama-context.cpp:1064).
        logits.extend_from_slice(unsafe { std::slice::from_raw_parts(row, VOCAB) });
    }
    // SAFETY: each is freed once, the model last.
    unsafe { sys::llama_batch_ext_free(batch) };
    // SAFETY: as above.
    unsafe { sys::smol_context_free(context) };
    // SAFETY: as above.
    unsafe { sys::smol_model_free(model) };
    logits
}

#[test]
fn drafts_have_the_logits_of_kept_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let ids: Vec<u32> = (0..320).map(|n| if n < 100 { n } else { 100 + (n - 100) * 3 }).collect();
    for (head, tied) in
        [(DraftHead::Shared, true), (DraftHead::Shared, false), (DraftHead::Own, true)]
    {
        let options =
            TinyOptions { drafts: Some(head), tied: Some(tied), ..TinyOptions::default() };
        tiny::write(&path("whole.gguf"), Arch::Qwen35, &options).unwrap();
        let expected = drafted(&path("whole.gguf"));
        let source = Shards::open(path("whole.gguf")).unwrap();
        let mut plan = Rewriter::from_shards(&source);
        plan.prune_head(&source, &ids).unwrap();
        plan.write_file(path("pruned.gguf")).unwrap();
        let mut files = vec!["pruned.gguf"];
        let rows = |file: &Shards| file.tensor(OWN_HEAD).map(|(_, head)| head.n_rows());
        let pruned = Shards::open(path("pruned.gguf")).unwrap();
        assert_eq!(rows(&pruned), (head == DraftHead::Own).then_some(320));
        // As a tool would leave it that does not know of such heads.
        if let Some((file, own)) = source.tensor(OWN_HEAD) {
            let bytes = file.data(own).unwrap().into_owned();
            let mut plan = Rewriter::from_shards(&pruned);
            plan.replace(OWN_HEAD, own.shape(), TensorType::F16, bytes).unwrap();
            plan.write_file(path("own-whole.gguf")).unwrap();
            files.push("own-whole.gguf");
        }
        for file in files {
            let logits = drafted(&path(file));
            assert_eq!(logits.len(), expected.len());
            for (at, (logit, whole)) in logits.iter().zip(&expected).enumerate() {
                let id = (at % VOCAB) as u32;
                let wanted =
                    if ids.binary_search(&id).is_ok() { *whole } else { f32::NEG_INFINITY };
                assert_eq!(*logit, wanted, "{head:?}, tied {tied}, {file}: token {id}");
            }
        }
    }
}

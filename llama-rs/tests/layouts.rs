//! Packed layouts in models: what is packed, that generation stays the same, and that nothing is left on a slow path.

use llama_rs::gguf::TensorType;
use llama_rs::{
    Batch, ErrorKind, LayoutOptions, Model, Result, SeqId, Token, WeightKernel, WeightUse,
};
use tempfile::TempDir;
use testkit::tiny::{self, Arch, TinyOptions};

fn model_file(folder: &TempDir, arch: Arch, options: &TinyOptions) -> std::path::PathBuf {
    let path = folder.path().join("model.gguf");
    tiny::write(&path, arch, options).unwrap();
    path
}

fn off() -> LayoutOptions {
    let mut layouts = LayoutOptions::default();
    layouts.enabled = false;
    layouts
}

/// Greedy tokens after a prompt that is long enough for products of several rows.
fn tokens(model: &Model, n: usize) -> Result<Vec<usize>> {
    let mut context = model.context().n_ctx(128).threads(2, 2).build()?;
    let prompt: Vec<_> = (1..40).map(|token| Token(token * 7 % 500)).collect();
    let mut batch = Batch::sequence(&prompt, 0, SeqId(0));
    let mut tokens = Vec::new();
    for position in (prompt.len() as i32..).take(n) {
        let outputs = context.decode(&batch)?;
        let logits = outputs.last_logits().unwrap();
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        tokens.push(best);
        batch = Batch::sequence(&[Token(best as i32)], position, SeqId(0));
    }
    Ok(tokens)
}

const TYPES: [TensorType; 5] =
    [TensorType::Q1_0, TensorType::Q2_0, TensorType::TQ1_0, TensorType::TQ2_0, TensorType::Q2_K];

fn options(weights: TensorType) -> TinyOptions {
    TinyOptions { weights, pure: true, tied: Some(true), ..TinyOptions::default() }
}

#[test]
fn a_large_tied_head_is_on_the_fast_path() {
    let folder = TempDir::new().unwrap();
    let options = TinyOptions { vocab: 151_669, layers: Some(2), ..options(TensorType::Q1_0) };
    let model = Model::load(model_file(&folder, Arch::Qwen3, &options)).unwrap();
    assert_eq!(model.layout_summary().slow_bytes, 0);
    let head: Vec<_> =
        model.layouts().iter().filter(|weight| weight.name == "token_embd.weight").collect();
    assert_eq!(head.len(), 2, "used in two ways");
    for weight in head {
        assert_eq!(weight.shape[1], 151_669);
        assert!(
            matches!(&weight.kernel, WeightKernel::Packed { layout } if layout.starts_with("q1_0"))
        );
    }
}

#[test]
fn every_packed_type_generates_what_the_plain_one_does() {
    for weights in TYPES {
        for arch in [Arch::Qwen3, Arch::LlamaMoe] {
            let folder = TempDir::new().unwrap();
            let path = model_file(&folder, arch, &options(weights));
            let packed = Model::load(&path).unwrap();
            let plain = Model::builder(&path).layouts(off()).load().unwrap();
            let layouts = packed.layouts();
            assert!(
                layouts.iter().any(|w| matches!(w.kernel, WeightKernel::Packed { .. })),
                "{weights:?}: {layouts:?}"
            );
            for weight in layouts.iter().filter(|weight| weight.ty == weights.name()) {
                assert!(matches!(weight.kernel, WeightKernel::Packed { .. }), "{weight:?}");
            }
            for weight in plain.layouts() {
                assert!(!matches!(weight.kernel, WeightKernel::Packed { .. }), "{weight:?}");
            }
            assert_eq!(tokens(&packed, 8).unwrap(), tokens(&plain, 8).unwrap(), "{weights:?}");
        }
    }
}

#[test]
fn a_head_of_its_own_leaves_the_embeddings_where_they_are() {
    let folder = TempDir::new().unwrap();
    let options = TinyOptions { tied: Some(false), ..options(TensorType::Q2_0) };
    let model = Model::load(model_file(&folder, Arch::Qwen3, &options)).unwrap();
    let rows: Vec<_> =
        model.layouts().iter().filter(|weight| weight.used_as == WeightUse::Rows).collect();
    assert_eq!(rows.len(), 1);
    assert!(
        matches!(&rows[0].kernel, WeightKernel::Plain { reason } if reason.contains("one at a time"))
    );
    assert_eq!(model.layout_summary().slow_bytes, 0);
}

#[test]
fn names_choose_layouts() {
    let folder = TempDir::new().unwrap();
    let path = model_file(&folder, Arch::Qwen3, &options(TensorType::TQ1_0));
    let usual = Model::load(&path).unwrap();
    let all = llama_rs::kernels::layouts().unwrap();
    let named = |prefix: &str| {
        all.iter()
            .map(|layout| layout.name())
            .find(|name| name.starts_with(prefix))
            .unwrap()
            .to_owned()
    };
    let (default, other) = (named("tq1_0-"), named("tq1_0_fields"));
    let used = |model: &Model, name: &str| {
        let is = |w: &llama_rs::WeightLayout| matches!(&w.kernel, WeightKernel::Packed { layout } if layout == name);
        model.layouts().iter().filter(|weight| is(weight)).count()
    };
    assert!(used(&usual, &default) > 0);

    let mut layouts = LayoutOptions::default();
    layouts.prefer = vec![other.clone()];
    let preferred = Model::builder(&path).layouts(layouts.clone()).load().unwrap();
    assert_eq!(used(&preferred, &default), 0);
    assert_eq!(used(&preferred, &other), used(&usual, &default));
    assert_eq!(tokens(&preferred, 4).unwrap(), tokens(&usual, 4).unwrap());

    layouts.prefer.clear();
    layouts.avoid = vec![default.clone()];
    let avoided = Model::builder(&path).layouts(layouts.clone()).load().unwrap();
    assert_eq!(used(&avoided, &default), 0);
    assert!(avoided.layout_summary().slow_bytes > 0);

    layouts.avoid = vec!["q9_9-64".to_owned()];
    let error = Model::builder(&path).layouts(layouts).load().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("q9_9-64"), "{error}");
}

#[test]
fn lossless_ternary_packing_is_used_only_where_it_is_lossless() {
    // Rounding to Q2_0 gives -1, 0 and 1; here one matrix gets a weight of 2, which base 3 cannot say.
    const OTHER: &str = "blk.0.ffn_down.weight";
    let folder = TempDir::new().unwrap();
    let path = model_file(&folder, Arch::Qwen3, &options(TensorType::Q2_0));
    let gguf = llama_rs::gguf::Gguf::open(&path).unwrap();
    let weights = gguf.file_offset(gguf.tensor(OTHER).unwrap()).unwrap();
    drop(gguf);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[weights as usize + 2] |= 3;
    std::fs::write(&path, bytes).unwrap();

    let all = llama_rs::kernels::layouts().unwrap();
    let base3 = all.iter().find(|layout| layout.name().starts_with("q2_0_base3")).unwrap().name();
    let mut layouts = LayoutOptions::default();
    layouts.prefer = vec![base3.to_owned()];
    let preferred = Model::builder(&path).layouts(layouts).load().unwrap();
    for weight in preferred.layouts().iter().filter(|weight| weight.ty == "q2_0") {
        let WeightKernel::Packed { layout } = &weight.kernel else { panic!("{weight:?}") };
        assert_eq!(layout == base3, weight.name != OTHER, "{weight:?}");
    }
    let usual = Model::load(&path).unwrap();
    assert_eq!(tokens(&preferred, 4).unwrap(), tokens(&usual, 4).unwrap());
}

//! Embeddings.

use llama_rs::{Embedder, ErrorKind, Pooling};
use testkit::tiny::Arch;

use crate::models::{assert_close, some_tokens, tiny};

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|x| x * x).sum::<f32>().sqrt()
}

#[test]
fn pooled_embeddings_are_one_unit_vector_a_text() {
    let model = tiny(Arch::Llama);
    for pooling in [Pooling::Mean, Pooling::Cls, Pooling::Last] {
        let mut embedder = Embedder::new(&model, pooling).unwrap();
        let vectors = embedder.embed(&["a cat", "a dog", "a cat"]).unwrap();
        assert_eq!(vectors.len(), 3);
        for vector in &vectors {
            assert_eq!(vector.len(), embedder.dimension());
            assert!((length(vector) - 1.0).abs() < 1e-4);
        }
        assert_close(&vectors[0], &vectors[2]);
        if pooling != Pooling::Cls {
            assert_ne!(vectors[0], vectors[1], "{pooling:?}");
        }
    }
}

#[test]
fn the_mean_is_that_of_the_tokens() {
    let model = tiny(Arch::Llama);
    let tokens = some_tokens(12);
    let mut each = Embedder::new(&model, Pooling::None).unwrap().normalize(false);
    let rows = each.embed_tokens(&tokens).unwrap();
    assert_eq!(rows.len(), 12);
    let mean: Vec<f32> = (0..each.dimension())
        .map(|n| rows.iter().map(|row| row[n]).sum::<f32>() / rows.len() as f32)
        .collect();
    let mut pooled = Embedder::new(&model, Pooling::Mean).unwrap().normalize(false);
    assert_close(&pooled.embed_tokens(&tokens).unwrap()[0], &mean);
    let mut last = Embedder::new(&model, Pooling::Last).unwrap().normalize(false);
    assert_close(&last.embed_tokens(&tokens).unwrap()[0], &rows[11]);
}

#[test]
fn what_cannot_be_embedded_is_an_error() {
    let model = tiny(Arch::Llama);
    let mut each = Embedder::new(&model, Pooling::None).unwrap();
    assert_eq!(each.embed(&["text"]).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    assert_eq!(each.embed_tokens(&[]).unwrap_err().kind(), &ErrorKind::InvalidArgument);
    let builder = model.context().n_ctx(256);
    let mut small = Embedder::with_context(builder, Pooling::Mean).unwrap();
    let error = small.embed_tokens(&some_tokens(300)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::PromptTooLong { prompt: 300, n_ctx: 256 });
    small.embed_tokens(&some_tokens(256)).unwrap();
    // More tokens than are computed at once go in pieces without pooling.
    let builder = model.context().n_ctx(512).n_ubatch(64);
    let mut pieces = Embedder::with_context(builder, Pooling::None).unwrap();
    assert_eq!(pieces.embed_tokens(&some_tokens(200)).unwrap().len(), 200);
}

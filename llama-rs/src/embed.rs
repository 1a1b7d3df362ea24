//! Embeddings: texts as vectors.

use std::fmt;

use crate::context::Context;
use crate::context_builder::{ContextBuilder, Pooling};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Model;
use crate::token::{SeqId, Token};

/// Makes embeddings of texts with one model.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use llama_rs::{Embedder, Model, Pooling};
///
/// let model = Model::load("model.gguf")?;
/// let mut embedder = Embedder::new(&model, Pooling::Mean)?;
/// let vectors = embedder.embed(&["a cat", "a dog"])?;
/// assert_eq!(vectors[0].len(), embedder.dimension());
/// # Ok(())
/// # }
/// ```
pub struct Embedder {
    context: Context,
    normalize: bool,
}

impl Embedder {
    /// Makes an embedder with the default context for `model`.
    ///
    /// # Errors
    /// As [`ContextBuilder::build`].
    pub fn new(model: &Model, pooling: Pooling) -> Result<Self> {
        Self::with_context(model.context(), pooling)
    }

    /// Makes an embedder with the settings of a builder, whose embeddings it turns on.
    ///
    /// A text must fit into the builder's `n_ubatch`, which is its `n_batch` by default.
    ///
    /// # Errors
    /// As [`ContextBuilder::build`], and [`ErrorKind::Unsupported`] for models that rank texts instead.
    pub fn with_context(builder: ContextBuilder, pooling: Pooling) -> Result<Self> {
        let context = builder.embeddings(pooling).build()?;
        if context.raw.pooling() == ggml_sys::LLAMA_POOLING_TYPE_RANK {
            let message = "this model ranks texts; choose a pooling to get embeddings";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(Self { context, normalize: true })
    }

    /// Sets whether vectors have length 1, by default true, so that their dot product is the cosine of their angle.
    #[must_use]
    pub fn normalize(mut self, normalize: bool) -> Self {
        self.normalize = normalize;
        self
    }

    /// Returns the numbers in a vector.
    pub fn dimension(&self) -> usize {
        self.context.model().raw().n_embd_out() as usize
    }

    /// Returns the context, to cancel its work for example.
    pub fn context_mut(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Returns a vector for each text.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] without pooling, where a text has a vector a token
    /// ([`embed_tokens`](Self::embed_tokens)); [`ErrorKind::Tokenize`]; [`ErrorKind::PromptTooLong`];
    /// [`ErrorKind::NonFinite`] if the model computes no numbers; as [`Context::decode`].
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>> {
        if !self.context.is_pooled() {
            let message = "without pooling a text has an embedding a token: use embed_tokens";
            return Err(Error::invalid(message));
        }
        let vocab = self.context.model().vocab();
        let mut vectors = Vec::with_capacity(texts.len());
        for text in texts {
            let tokens = vocab.tokenize(text.as_ref(), true)?;
            vectors.extend(self.embed_tokens(&tokens)?);
        }
        Ok(vectors)
    }

    /// Returns the vectors of a text given as tokens: one if they are pooled, otherwise one a token.
    ///
    /// # Errors
    /// As [`embed`](Self::embed).
    pub fn embed_tokens(&mut self, tokens: &[Token]) -> Result<Vec<Vec<f32>>> {
        self.context.kv().clear()?;
        let pooled = self.context.is_pooled();
        let mut vectors = Vec::new();
        let whole = self.context.needs_whole_sequence();
        let piece = if whole { tokens.len() } else { self.context.n_ubatch() };
        if tokens.is_empty() {
            return Err(Error::invalid("a text without tokens has no embedding"));
        }
        // Some texts must go in one piece, and prefill says so if they are too long.
        for chunk in tokens.chunks(piece) {
            let outputs = self.context.prefill(SeqId::FIRST, chunk)?;
            if pooled {
                vectors.push(outputs.sequence_embedding(SeqId::FIRST).map(<[f32]>::to_vec));
            } else {
                vectors
                    .extend((0..outputs.len()).map(|n| outputs.embedding(n).map(<[f32]>::to_vec)));
            }
        }
        let vectors = vectors.into_iter().map(|vector| {
            let vector = vector.ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, "this model computes no embeddings")
            })?;
            self.finish(vector)
        });
        vectors.collect()
    }

    fn finish(&self, mut vector: Vec<f32>) -> Result<Vec<f32>> {
        let square: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        if !square.is_finite() {
            let message = "the model computed an embedding that is not finite";
            return Err(Error::new(ErrorKind::NonFinite, message));
        }
        if self.normalize && square > 0.0 {
            let scale = square.sqrt().recip();
            vector.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
        }
        Ok(vector)
    }
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder")
            .field("context", &self.context)
            .field("normalize", &self.normalize)
            .finish()
    }
}

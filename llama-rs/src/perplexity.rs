//! Perplexity of a text, computed the way `llama-perplexity` does, so that figures compare.

use std::ops::ControlFlow;
use std::thread;

use crate::batch::Batch;
use crate::context::Context;
use crate::context_builder::{ContextBuilder, MAX_SEQUENCES};
use crate::error::{Error, ErrorKind, Result};
use crate::model::Model;
use crate::plan::PlannedContext;
use crate::sampler::log_softmax;
use crate::token::{SeqId, Token};
use crate::vocab::Vocab;

/// How a text is cut and scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Tokens of a chunk. Each is evaluated on its own; its second half is scored, the first is context.
    pub chunk: usize,
    /// Most chunks scored; `None` scores all.
    pub max_chunks: Option<usize>,
    /// Threads that compute probabilities from logits; `None` takes one for each CPU.
    pub threads: Option<usize>,
    /// Whether [`context`](Self::context) evaluates tokens one at a time, as when text is generated, which is slow.
    /// Where the experts of a token depend on those in memory, a batch would hide what that costs.
    pub one_by_one: bool,
    /// Most chunks that [`context`](Self::context) evaluates at once; `None` takes as many as make 2048 tokens. Fewer need
    /// less memory.
    pub chunks_at_once: Option<usize>,
}

impl Default for PerplexityOptions {
    /// Chunks of 512 tokens, as `llama-perplexity`.
    fn default() -> Self {
        Self {
            chunk: 512,
            max_chunks: None,
            threads: None,
            one_by_one: false,
            chunks_at_once: None,
        }
    }
}

impl PerplexityOptions {
    /// Tokens evaluated at once by [`context`](Self::context), as `llama-perplexity`.
    const BATCH: usize = 2048;

    /// Starts to set up a context that evaluates several chunks at once, or one token at a time.
    ///
    /// # Errors
    /// `InvalidArgument` for a chunk size out of range.
    pub fn context(&self, model: &Model) -> Result<ContextBuilder> {
        self.check()?;
        Ok(model
            .context()
            .n_ctx(self.n_ctx())
            .n_batch(self.n_batch())
            .n_seq_max(self.parallel() as u32)
            .kv_unified(false))
    }

    /// Returns what there is to know about that context before the model is loaded.
    pub fn planned(&self) -> PlannedContext {
        let n_batch = self.n_batch();
        // Half of each chunk is scored.
        let n_outputs = Some(n_batch.div_ceil(2));
        let n_ctx = Some(self.n_ctx());
        PlannedContext { n_ctx, n_batch: Some(n_batch), n_outputs, ..PlannedContext::default() }
    }

    fn n_ctx(&self) -> u32 {
        u32::try_from(self.parallel().saturating_mul(self.chunk)).unwrap_or(u32::MAX)
    }

    fn n_batch(&self) -> u32 {
        if self.one_by_one { 1 } else { self.n_ctx().min(Self::BATCH as u32) }
    }

    /// Chunks that are evaluated at once.
    fn parallel(&self) -> usize {
        let most = if self.one_by_one { Some(1) } else { self.chunks_at_once };
        let most = most.unwrap_or(usize::MAX).clamp(1, MAX_SEQUENCES as usize);
        (Self::BATCH / self.chunk.max(1)).clamp(1, most)
    }

    fn check(&self) -> Result<()> {
        if (4..=1 << 24).contains(&self.chunk) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "chunks of {} tokens: allowed are 4 to {}",
            self.chunk,
            1 << 24
        )))
    }
}

/// The result of [`perplexity`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Perplexity {
    /// Exponential of the mean negative log-likelihood of a scored token.
    pub perplexity: f64,
    /// Standard error of the perplexity.
    pub stderr: f64,
    /// Bits needed for a byte of the scored text: comparable between tokenizers.
    pub bits_per_byte: f64,
    /// Tokens scored.
    pub scored_tokens: usize,
    /// Bytes of the scored tokens.
    pub scored_bytes: usize,
    /// Tokens that would have been scored, but that the model can't write: its vocabulary head is pruned and lacks them.
    /// They count for nothing else here.
    pub outside_tokens: usize,
    /// Bytes of the tokens that the model can't write.
    pub outside_bytes: usize,
    /// Tokens of the text.
    pub tokens: usize,
    /// Chunks evaluated.
    pub chunks: usize,
}

/// How far [`perplexity`] is.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PerplexityProgress {
    /// Chunks scored.
    pub chunk: usize,
    /// Chunks in all.
    pub chunks: usize,
    /// Perplexity of the chunks scored so far.
    pub perplexity: f64,
}

/// Sums over the scored tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Score {
    nll: f64,
    nll_squared: f64,
    tokens: usize,
    bytes: usize,
    outside_tokens: usize,
    outside_bytes: usize,
}

impl Score {
    /// Adds a token that takes `bytes`.
    fn add(&mut self, log_prob: f64, bytes: usize) {
        if log_prob == f64::NEG_INFINITY {
            self.outside_tokens += 1;
            self.outside_bytes += bytes;
            return;
        }
        self.nll -= log_prob;
        self.nll_squared += log_prob * log_prob;
        self.tokens += 1;
        self.bytes += bytes;
    }

    fn perplexity(&self) -> f64 {
        (self.nll / self.tokens as f64).exp()
    }

    fn stderr(&self) -> f64 {
        let count = self.tokens as f64;
        let mean = self.nll / count;
        let variance = self.nll_squared / count - mean * mean;
        if variance <= 0.0 || self.tokens < 2 {
            return 0.0;
        }
        (variance / (count - 1.0)).sqrt() * self.perplexity()
    }
}

/// Computes the perplexity of a text and the bits that a byte of it takes.
///
/// The text is tokenized as a whole and cut into chunks; a rest shorter than a chunk is left out. Several chunks are
/// evaluated at once if the context has sequences for them: see [`PerplexityOptions::context`]. All sequences of the
/// context are emptied, before and after. `progress` is called after each chunk and may stop the work; the context's
/// [`CancelToken`](crate::CancelToken) stops it too.
///
/// # Errors
/// `InvalidArgument` with the counts if the text is shorter than two chunks or a chunk does not fit into the context, or
/// if the model can write none of its tokens; `Cancelled`; `NonFinite` if the model's logits are broken; errors of the
/// evaluation.
///
/// # Examples
/// ```no_run
/// # fn main() -> llama_rs::Result<()> {
/// use std::ops::ControlFlow;
/// use llama_rs::perplexity::{PerplexityOptions, perplexity};
///
/// let model = llama_rs::Model::load("model.gguf")?;
/// let options = PerplexityOptions::default();
/// let mut context = options.context(&model)?.build()?;
/// let text = std::fs::read_to_string("wiki.test.raw")?;
/// let result = perplexity(&mut context, &text, &options, |_| ControlFlow::Continue(()))?;
/// println!("{:.4} +/- {:.5}", result.perplexity, result.stderr);
/// # Ok(())
/// # }
/// ```
pub fn perplexity(
    context: &mut Context,
    text: &str,
    options: &PerplexityOptions,
    mut progress: impl FnMut(PerplexityProgress) -> ControlFlow<()>,
) -> Result<Perplexity> {
    options.check()?;
    let vocab = context.model().vocab();
    if vocab.add_eos() {
        let message = "perplexity of models that end every text with a token is not defined";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if options.chunk > context.n_ctx_seq() {
        return Err(Error::invalid(format!(
            "a chunk of {} tokens does not fit into the context of {}",
            options.chunk,
            context.n_ctx_seq()
        )));
    }
    let tokens = vocab.tokenize(text, true)?;
    if tokens.len() < 2 * options.chunk {
        return Err(Error::invalid(format!(
            "the text has {} tokens, but two chunks of {} are needed; use a longer text or smaller chunks",
            tokens.len(),
            options.chunk
        )));
    }
    let run = Run {
        tokens: &tokens,
        chunk: options.chunk,
        bos: vocab.add_bos().then(|| vocab.bos()).flatten(),
        vocab: &vocab,
        threads: options
            .threads
            .unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from))
            .max(1),
        one_by_one: options.one_by_one,
    };
    let all = tokens.len() / options.chunk;
    let chunks = options.max_chunks.map_or(all, |max| max.min(all)).max(1);
    let parallel = (context.n_batch() / options.chunk).clamp(1, context.n_seq_max());
    let mut score = Score::default();
    let mut done = 0;
    while done < chunks {
        let now = parallel.min(chunks - done);
        let scores = run.chunks(context, done, now);
        // Also after an error: the next user of the context finds it empty.
        context.kv().clear()?;
        for part in scores? {
            score.nll += part.nll;
            score.nll_squared += part.nll_squared;
            score.tokens += part.tokens;
            score.bytes += part.bytes;
            score.outside_tokens += part.outside_tokens;
            score.outside_bytes += part.outside_bytes;
            done += 1;
            let report = PerplexityProgress { chunk: done, chunks, perplexity: score.perplexity() };
            if progress(report).is_break() {
                return Err(Error::cancelled("computing the perplexity"));
            }
        }
    }
    if score.tokens == 0 {
        return Err(Error::invalid(
            "the model can write none of the text's tokens: its vocabulary head is pruned for other texts",
        ));
    }
    Ok(Perplexity {
        perplexity: score.perplexity(),
        stderr: score.stderr(),
        bits_per_byte: score.nll / std::f64::consts::LN_2 / score.bytes.max(1) as f64,
        scored_tokens: score.tokens,
        scored_bytes: score.bytes,
        outside_tokens: score.outside_tokens,
        outside_bytes: score.outside_bytes,
        tokens: tokens.len(),
        chunks,
    })
}

struct Run<'a> {
    tokens: &'a [Token],
    chunk: usize,
    bos: Option<Token>,
    vocab: &'a Vocab,
    threads: usize,
    one_by_one: bool,
}

impl Run<'_> {
    /// Evaluates `count` chunks from `first` on, one in each sequence, and scores them.
    fn chunks(&self, context: &mut Context, first: usize, count: usize) -> Result<Vec<Score>> {
        context.kv().clear()?;
        let mut scores = vec![Score::default(); count];
        // With several sequences the batch holds them whole; a single one may need several batches.
        let width = context.n_batch().min(self.chunk);
        for start in (0..self.chunk).step_by(width) {
            let end = (start + width).min(self.chunk);
            let mut batch = Batch::new();
            // For each row of logits: its chunk, and the token that it predicts.
            let mut targets = Vec::new();
            for seq in 0..count {
                let base = (first + seq) * self.chunk;
                for position in start..end {
                    let bos = self.bos.filter(|_| position == 0);
                    let token = bos.unwrap_or(self.tokens[base + position]);
                    // The first half is context; the last token predicts one of the next chunk.
                    let scored = (self.chunk / 2..self.chunk - 1).contains(&position);
                    if scored {
                        targets.push((batch.len(), seq, self.tokens[base + position + 1]));
                    }
                    // Without an output the last layer would not compute the token.
                    let output = scored || self.one_by_one;
                    batch.push(token, position as i32, SeqId(seq as i32), output);
                }
            }
            let outputs = context.decode(&batch)?;
            let rows = targets
                .iter()
                .map(|&(row, _, target)| {
                    let logits = outputs.logits(row).ok_or_else(|| {
                        Error::new(ErrorKind::Internal, "the evaluation of a token gave no logits")
                    })?;
                    Ok((logits, target))
                })
                .collect::<Result<Vec<_>>>()?;
            let log_probs = log_probs(&rows, self.threads)?;
            for ((_, seq, target), log_prob) in targets.into_iter().zip(log_probs) {
                scores[seq].add(log_prob, self.vocab.token_bytes(target, false)?.len());
            }
        }
        Ok(scores)
    }
}

/// The log-probability of each row's target, in order; the sums do not depend on the number of threads.
fn log_probs(rows: &[(&[f32], Token)], threads: usize) -> Result<Vec<f64>> {
    let part = rows.len().div_ceil(threads).max(1);
    let of_part = |rows: &[(&[f32], Token)]| {
        rows.iter().map(|&(logits, target)| log_softmax(logits, target)).collect::<Result<Vec<_>>>()
    };
    thread::scope(|scope| {
        let workers: Vec<_> = rows
            .chunks(part)
            .map(|rows| (rows, thread::Builder::new().spawn_scoped(scope, move || of_part(rows))))
            .collect();
        let mut all = Vec::with_capacity(rows.len());
        for (rows, worker) in workers {
            let part = match worker {
                Ok(worker) => worker.join().map_err(|_| {
                    Error::new(ErrorKind::Internal, "a thread that scores tokens panicked")
                })?,
                // Where there is no memory or permission for another thread, this one does its part.
                Err(_) => of_part(rows),
            };
            all.extend(part?);
        }
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_error_is_that_of_the_mean() {
        let mut score = Score::default();
        for nll in [1.0, 2.0, 3.0, f64::INFINITY] {
            score.add(-nll, 5);
        }
        assert_eq!((score.tokens, score.bytes), (3, 15));
        assert_eq!((score.outside_tokens, score.outside_bytes), (1, 5));
        assert!((score.perplexity() - 2f64.exp()).abs() < 1e-12);
        let expected = (2.0 / 3.0 / 2.0f64).sqrt() * 2f64.exp();
        assert!((score.stderr() - expected).abs() < 1e-9);
    }

    #[test]
    fn threads_do_not_change_the_order() {
        let logits: Vec<Vec<f32>> =
            (0..7).map(|i| (0..11).map(|j| ((i * 31 + j * 17) % 13) as f32).collect()).collect();
        let rows: Vec<(&[f32], Token)> =
            logits.iter().enumerate().map(|(i, row)| (row.as_slice(), Token(i as i32))).collect();
        let one = log_probs(&rows, 1).unwrap();
        for threads in [2, 3, 16] {
            assert_eq!(log_probs(&rows, threads).unwrap(), one);
        }
        assert!(log_probs(&[], 4).unwrap().is_empty());
    }

    #[test]
    fn chunk_sizes_are_checked() {
        for chunk in [0, 3, usize::MAX] {
            assert!(PerplexityOptions { chunk, ..Default::default() }.check().is_err());
        }
    }
}

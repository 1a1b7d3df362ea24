//! Vocabulary heads with the rows of some tokens only: the logits of these are as before, all others are -inf.

mod common;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use common::{answer, session_with, tokens};
use llama_rs::grammar::Grammar;
use llama_rs::perplexity::{PerplexityOptions, perplexity};
use llama_rs::plan::PlanMode;
use llama_rs::sampler::SamplerBuilder;
use llama_rs::vocab_selection::{TokenCounts, required_tokens, select_tokens};
use llama_rs::{Batch, LayoutOptions, LoadMode, Model, SeqId, StreamSize, Token, WeightStream};
use smol_gguf::{Gguf, OUTPUT_IDS, Rewriter, Shards, TensorType};
use testkit::tiny::{self, Arch, TinyOptions};

struct Files {
    folder: tempfile::TempDir,
    whole: PathBuf,
}

impl Files {
    fn new(arch: Arch, options: &TinyOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let written = tiny::write(&folder.path().join("whole.gguf"), arch, options).unwrap();
        let whole = written.path().to_owned();
        Self { folder, whole }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pruned(&self, ids: &[u32]) -> PathBuf {
        let path = self.path("pruned.gguf");
        let source = Shards::open(&self.whole).unwrap();
        let mut plan = Rewriter::from_shards(&source);
        plan.prune_head(&source, ids).unwrap();
        plan.write_file(&path).unwrap();
        path
    }
}

/// Every third token, and some neighbours.
fn some_ids(count: u32) -> Vec<u32> {
    (0..count).map(|n| if n < 100 { n } else { 100 + (n - 100) * 3 }).collect()
}

fn load(path: &Path, packed: bool) -> Model {
    let mut layouts = LayoutOptions::default();
    layouts.enabled = packed;
    Model::builder(path).layouts(layouts).load_mode(LoadMode::Read).load().unwrap()
}

/// The logits of each token of a prompt and of one more token.
fn logits(model: &Model, threads: u32) -> Vec<Vec<f32>> {
    let mut context = model.context().n_ctx(64).threads(threads, threads).build().unwrap();
    let mut batch = Batch::new();
    for position in 0..9 {
        batch.push(Token(300 + position * 41), position, SeqId::FIRST, true);
    }
    let outputs = context.decode(&batch).unwrap();
    let mut rows: Vec<_> = (0..9).map(|row| outputs.logits(row).unwrap().to_vec()).collect();
    let mut batch = Batch::new();
    batch.push(Token(77), 9, SeqId::FIRST, true);
    rows.push(context.decode(&batch).unwrap().logits(0).unwrap().to_vec());
    rows
}

/// The largest difference of a kept token's logit; all others must be -inf.
fn difference(whole: &[Vec<f32>], pruned: &[Vec<f32>], ids: &[u32]) -> f32 {
    let mut worst = 0.0_f32;
    for (whole, pruned) in whole.iter().zip(pruned) {
        assert_eq!(whole.len(), pruned.len());
        for (id, (whole, pruned)) in whole.iter().zip(pruned).enumerate() {
            if ids.binary_search(&(id as u32)).is_ok() {
                worst = worst.max((whole - pruned).abs());
            } else {
                assert_eq!(*pruned, f32::NEG_INFINITY, "token {id}");
            }
        }
    }
    worst
}

#[test]
fn kept_logits_are_as_before() {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    for entry in tiny::all() {
        let files = Files::new(entry.arch, &entry.options);
        let vocab = entry.options.vocab as u32;
        let whole = load(&files.whole, false);
        let expected = logits(&whole, 1);
        // A number that rows are computed in groups of, one that isn't, a single row, and all.
        for ids in [some_ids(320), some_ids(301), vec![5], (0..vocab).collect()] {
            let pruned = load(&files.pruned(&ids), false);
            for threads in [1, cores.min(3)] {
                let off = difference(&expected, &logits(&pruned, threads), &ids);
                // Fewer rows at once may be added up in another order.
                assert!(off <= 1e-5, "{} with {}: {off}", entry.name, ids.len());
                assert!(
                    off == 0.0 || ids.len() % 64 != 0,
                    "{} with {}: {off}",
                    entry.name,
                    ids.len()
                );
            }
        }
    }
}

#[test]
fn kept_logits_are_as_before_in_packed_layouts() {
    for (weights, tied) in
        [(TensorType::Q4_K, true), (TensorType::Q4_0, false), (TensorType::Q8_0, true)]
    {
        let options = TinyOptions { weights, tied: Some(tied), ..TinyOptions::default() };
        let files = Files::new(Arch::Qwen3, &options);
        let expected = logits(&load(&files.whole, true), 1);
        for ids in [some_ids(384), some_ids(300)] {
            let pruned = load(&files.pruned(&ids), true);
            let off = difference(&expected, &logits(&pruned, 2), &ids);
            assert!(off <= 1e-5, "{weights} {tied} with {}: {off}", ids.len());
        }
    }
}

#[test]
fn embeddings_that_were_the_head_are_read_by_row() {
    let files = Files::new(Arch::Gemma3, &TinyOptions::default());
    let ids = some_ids(320);
    let pruned = files.pruned(&ids);
    let expected = logits(&load(&pruned, false), 1);
    let builder = || {
        let mut layouts = LayoutOptions::default();
        layouts.enabled = false;
        // All matrices may stay.
        let mut stream = WeightStream::default();
        stream.resident = StreamSize::Bytes(1 << 40);
        Model::builder(&pruned).layouts(layouts).repack(false).weight_stream(stream)
    };
    let PlanMode::Streamed { tensors, table: true, .. } = builder().plan().unwrap().mode else {
        panic!();
    };
    assert_eq!(tensors, ["token_embd.weight"]);
    let model = builder().load().unwrap();
    assert!(logits(&model, 2) == expected);
    let statistics = model.stream_statistics().unwrap();
    // Rows of 256 halves for ten tokens, with the blocks of the disk that they lie in.
    assert!((10 * 512..=20 * 16_384).contains(&statistics.bytes_read), "{statistics:?}");
}

#[test]
fn shards_may_be_pruned_and_twice() {
    let files = Files::new(Arch::Llama, &TinyOptions { shards: 3, ..TinyOptions::default() });
    let expected = logits(&load(&files.whole, false), 1);
    let first = files.pruned(&some_ids(320));
    let source = Shards::open(&first).unwrap();
    let ids = some_ids(128);
    let mut plan = Rewriter::from_shards(&source);
    plan.prune_head(&source, &ids).unwrap();
    let again = files.path("again.gguf");
    plan.write_file(&again).unwrap();
    assert_eq!(difference(&expected, &logits(&load(&again, false), 1), &ids), 0.0);
}

#[test]
fn only_kept_tokens_are_sampled() {
    let files = Files::new(Arch::Llama, &TinyOptions::default());
    let ids = some_ids(320);
    let model = load(&files.pruned(&ids), false);
    let samplers = [
        SamplerBuilder::greedy(),
        SamplerBuilder::default().seed(3).temp(2.0).top_k(0).top_p(1.0),
        // The prompt's tokens are penalized, also those that have no row.
        SamplerBuilder::default()
            .seed(4)
            .repeat_penalty(1.3)
            .repeat_last_n(64)
            .logit_bias(Token(999), 50.0),
    ];
    for sampler in samplers {
        let mut session = session_with(&model, 256, sampler);
        let prompt: Vec<Token> = (900..960).map(Token).collect();
        let mut sampled = 0;
        for piece in session.generate(prompt, &tokens(40)).unwrap() {
            if let Some(token) = piece.unwrap().token {
                assert!(ids.binary_search(&(token.0 as u32)).is_ok(), "{token}");
                sampled += 1;
            }
        }
        assert_eq!(sampled, 40);
    }
}

#[test]
fn grammars_use_kept_tokens() {
    let files = Files::new(Arch::Llama, &TinyOptions::default());
    let whole = load(&files.whole, false);
    let ids: Vec<u32> = required_tokens(&whole.vocab()).iter().map(|id| id.0 as u32).collect();
    let model = load(&files.pruned(&ids), false);
    let grammar = Grammar::gbnf(r#"root ::= "the house" | "a river""#).unwrap();
    let mut session =
        session_with(&model, 128, SamplerBuilder::default().seed(1).grammar(grammar.clone()));
    let mut options = tokens(40);
    options.ignore_eog = false;
    let text = answer(&mut session, "Say it: ", &options).text;
    assert!(["the house", "a river"].contains(&text.trim_start()), "{text:?}");

    // Without a row for any token of it, there is nothing to choose.
    let model = load(&files.pruned(&[1, 2, 3]), false);
    let mut session = session_with(&model, 128, SamplerBuilder::greedy().grammar(grammar));
    let error = session.generate("Say it: ", &options).unwrap().complete().unwrap_err();
    assert!(error.to_string().contains("pruned vocabulary head"), "{error}");
}

#[test]
fn perplexity_leaves_out_what_the_head_lacks() {
    let files = Files::new(Arch::Llama, &TinyOptions::default());
    let whole = load(&files.whole, false);
    let vocab = whole.vocab();
    let text: String = (0..120).map(|n| format!("The {n}th house stood by the river. ")).collect();
    let mut counts = TokenCounts::new(&vocab);
    counts.add(&text).unwrap();
    let required = required_tokens(&vocab).len();
    let options = PerplexityOptions {
        chunk: 32,
        max_chunks: Some(8),
        threads: Some(1),
        ..Default::default()
    };
    let measure = |model: &Model| {
        let mut context = options.context(model).unwrap().threads(1, 1).build().unwrap();
        perplexity(&mut context, &text, &options, |_| ControlFlow::Continue(()))
    };
    let full = measure(&whole).unwrap();
    assert_eq!((full.outside_tokens, full.outside_bytes), (0, 0));
    let mut last = usize::MAX;
    for more in [0, 5, 500] {
        let kept =
            select_tokens(&vocab, &[counts.clone()], (required + more).min(vocab.len())).unwrap();
        let ids: Vec<u32> = kept.iter().map(|id| id.0 as u32).collect();
        let result = measure(&load(&files.pruned(&ids), false)).unwrap();
        assert_eq!(result.scored_tokens + result.outside_tokens, full.scored_tokens);
        assert_eq!(result.scored_bytes + result.outside_bytes, full.scored_bytes);
        assert!(result.perplexity.is_finite() && result.bits_per_byte.is_finite());
        assert!(result.outside_tokens <= last);
        assert_eq!(result.outside_tokens == 0, counts.outside(&kept).tokens == 0);
        last = result.outside_tokens;
    }
    assert_eq!(last, 0);
    let error = measure(&load(&files.pruned(&[1]), false)).unwrap_err();
    assert!(error.to_string().contains("pruned for other texts"), "{error}");
}

#[test]
fn selections_hold_what_is_required_and_then_the_frequent() {
    let whole = common::model(Arch::Llama);
    let vocab = whole.vocab();
    let required = required_tokens(&vocab);
    assert!(vocab.eog_tokens().iter().all(|token| required.contains(token)));
    let all = (0..vocab.len() as i32).map(Token);
    let frequent = all.rev().find(|token| !required.contains(token)).unwrap();
    let text = vocab.detokenize(&[frequent; 4], false).unwrap();
    let mut counts = TokenCounts::new(&vocab);
    counts.add(&String::from_utf8(text).unwrap()).unwrap();
    let kept = select_tokens(&vocab, &[counts], required.len() + 4).unwrap();
    assert_eq!(kept.len(), required.len() + 4);
    assert!(kept.is_sorted() && required.iter().all(|token| kept.contains(token)));
    for keep in [0, required.len() - 1, vocab.len() + 1] {
        let error = select_tokens(&vocab, &[], keep).unwrap_err();
        assert!(error.to_string().contains(&required.len().to_string()), "{error}");
    }
}

#[test]
fn wrong_heads_are_refused() {
    let files = Files::new(Arch::Qwen3, &TinyOptions::default());
    let pruned = files.pruned(&some_ids(64));
    let source = Gguf::open(&pruned).unwrap();
    let refused = |what: &str, edit: &dyn Fn(&mut Rewriter<'_>)| {
        let mut plan = Rewriter::new(&source);
        edit(&mut plan);
        let path = files.path("wrong.gguf");
        plan.write_file(&path).unwrap();
        let error = Model::load(&path).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    };
    let ids = |ids: &[i32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    let with = |list: Vec<i32>| {
        let count = list.len() as u64;
        move |plan: &mut Rewriter<'_>| {
            plan.replace(OUTPUT_IDS, &[count], TensorType::I32, ids(&list)).unwrap();
        }
    };
    refused("element 1", &with((0..64).rev().collect()));
    refused("element 63", &with((0..63).chain([1 << 20]).collect()));
    refused("element 0", &with((-1..63).collect()));
    refused("output.weight", &with((0..63).collect()));
    refused("i32 or i64", &|plan| {
        plan.replace(OUTPUT_IDS, &[64], TensorType::F32, vec![0; 256]).unwrap();
    });
    refused("output.weight", &|plan| {
        plan.remove_tensor("output.weight").unwrap();
    });
    // Without its ids the head is just too small.
    refused("output.weight", &|plan| {
        plan.remove_tensor(OUTPUT_IDS).unwrap();
    });
}
